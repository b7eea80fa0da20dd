"""Hugging Face's decoders as language models: GPT-2, Llama and similar models.

GPT-2 (Radford et al. 2019), Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024), Qwen 2
and 3, Gemma 2 (Gemma Team 2024) and Mixtral (Jiang et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lingo.checkpoints.sources.hugging_face import CONFIG
from lingo.config.params import ParamError, Params
from lingo.layers import (
    Attention,
    LayerNorm,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LocalWindow,
    MoE,
    RmsNorm,
    Rotary,
    SoftmaxHead,
    Stack,
    TiedHead,
    TopNRouter,
    TransformerLayer,
)
from tasks.hugging_face.config import Config, HubModel
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

_LAYER = r"model/stack/layers/(\d+)/"

# ---- Llama and similar models --------------------------------------------------------------------


def _llama(config: Config) -> HubModel:
    config.expect(attention_bias=False, mlp_bias=False)
    return _build(config, [_layer(config)], _names(_QKVO, _GATED))


def _qwen2(config: Config) -> HubModel:
    config.expect(use_sliding_window=False)
    layer = _layer(config)
    layer.attention.set(use_bias=True, use_output_bias=False)
    return _build(config, [layer], _names(_QKVO, _BIASES, _GATED))


def _qwen3(config: Config) -> HubModel:
    config.expect(use_sliding_window=False, attention_bias=False)
    layer = _layer(config)
    layer.attention.qk_norm = RmsNorm.params(epsilon=config["rms_norm_eps"])
    norms = {
        _LAYER + "attention/query_norm/scale": r"model.layers.\1.self_attn.q_norm.weight",
        _LAYER + "attention/key_norm/scale": r"model.layers.\1.self_attn.k_norm.weight",
    }
    return _build(config, [layer], _names(_QKVO, norms, _GATED))


def _gemma2(config: Config) -> HubModel:
    config.expect(attention_bias=False)
    wide = _layer(config).set(norm_placement="sandwich")
    wide.attention.set(
        query_scale=config["query_pre_attn_scalar"] ** -0.5,
        logit_cap=config.get("attn_logit_softcapping"),
    )
    local = wide.copy()
    local.attention.mask = LocalWindow.params(window=config["sliding_window"])
    kinds = {"sliding_attention": local, "full_attention": wide}
    num = config["num_hidden_layers"]
    default = ["sliding_attention", "full_attention"] * ((num + 1) // 2)
    types = config.get("layer_types", default[:num])
    if types != default[:num]:
        raise ParamError(f"{CONFIG} has layer_types={types}; lingo's gemma2 alternates")
    norms = {
        _LAYER + "attention_out_norm/scale": r"model.layers.\1.post_attention_layernorm.weight",
        _LAYER + "ffn_norm/scale": r"model.layers.\1.pre_feedforward_layernorm.weight",
        _LAYER + "ffn_out_norm/scale": r"model.layers.\1.post_feedforward_layernorm.weight",
    }
    layers = [kinds[kind] for kind in types[:2]]
    built = _build(config, layers, norms | _names(_QKVO, _GATED))
    built.task.model.set(scale_embedding=True)
    built.task.model.head.logit_cap = config.get("final_logit_softcapping")
    built.task.model.all(RmsNorm).set(adds_one=True)
    return built


def _mixtral(config: Config) -> HubModel:
    config.expect(attention_bias=False)
    layer, num = _layer(config), config["num_local_experts"]
    router = TopNRouter.params(num_choices=config["num_experts_per_tok"], threshold=1e-9)
    layer.ffn = MoE.params(
        expert=layer.ffn,
        num_experts=num,
        router=router,
        capacity_factor=float(num),  # room for all tokens: none is dropped
    )
    expert, theirs = _LAYER + r"ffn/experts/(\d+)/", r"model.layers.\1.block_sparse_moe"
    experts = {
        _LAYER + "ffn/router/w": theirs + ".gate.weight",
        expert + "w_gate": theirs + r".experts.\2.w1.weight",
        expert + "w_out": theirs + r".experts.\2.w2.weight",
        expert + "w_in": theirs + r".experts.\2.w3.weight",
    }
    return _build(config, [layer], _names(_QKVO, experts), skip=(".*/router/load",))


_QKVO = {_LAYER + r"attention/w_([qkvo])\w+": r"model.layers.\1.self_attn.\2_proj.weight"}
_BIASES = {_LAYER + "attention/b_([qkv]).*": r"model.layers.\1.self_attn.\2_proj.bias"}
_GATED = {
    _LAYER + "ffn/w_gate": r"model.layers.\1.mlp.gate_proj.weight",
    _LAYER + "ffn/w_in": r"model.layers.\1.mlp.up_proj.weight",
    _LAYER + "ffn/w_out": r"model.layers.\1.mlp.down_proj.weight",
}
_REST = {
    "model/embedding/table": "model.embed_tokens.weight",
    _LAYER + "attention_norm/scale": r"model.layers.\1.input_layernorm.weight",
    _LAYER + "ffn_norm/scale": r"model.layers.\1.post_attention_layernorm.weight",
    "model/norm/scale": "model.norm.weight",
}


def _names(*parts: Mapping[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for part in parts:
        names |= part
    return names


def _layer(config: Config) -> Params:
    """Returns the layer of Llama and similar models."""
    layer = TransformerLayer.params(norm=RmsNorm.params(epsilon=config["rms_norm_eps"]))
    layer.attention = Attention.params(
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
        positions=_rotary(config),
    )
    activation = config.get("hidden_activation", config.get("hidden_act", "silu"))
    layer.ffn.set(
        hidden_dim=config["intermediate_size"], gated=True, activation=config.activation(activation)
    )
    return layer


def _build(
    config: Config, pattern: list[Params], names: Mapping[str, str], **fields: Any
) -> HubModel:
    """Returns a decoder whose layers repeat `pattern`; `fields` are added to the WarmStart's."""
    stack = Stack.params(
        layer=pattern if len(pattern) > 1 else pattern[0], num_layers=config["num_hidden_layers"]
    )
    model = LanguageModel.params(
        dim=config["hidden_size"],
        scale_embedding=False,
        stack=stack,
        norm=RmsNorm.params(epsilon=config["rms_norm_eps"]),
    )
    rename, transpose = dict(names), [".*/w_.*"]
    for ours, theirs in _REST.items():
        rename.setdefault(ours, theirs)
    if not config.get("tie_word_embeddings", config.get("model_type") == "gemma2"):
        model.head = SoftmaxHead
        rename["model/head/w"] = "lm_head.weight"
        transpose.append("model/head/w")
    if any("router/w" in name for name in rename):
        transpose.append(".*/router/w")
    fields = {"rename": rename, "transpose": tuple(transpose)} | fields
    task = LanguageModeling.params(model=model, vocab_size=config["vocab_size"])
    return HubModel(task, fields, max_length=config["max_position_embeddings"])


def _rotary(config: Config) -> Params:
    """Returns rotary positions with the settings of a `config.json` of transformers 4 or 5."""
    rope = config.get("rope_parameters", config.get("rope_scaling", {}))
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    rotary = Rotary.params(max_wavelength=float(theta))
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
            pass
        case "linear":
            rotary.scaling = LinearScaling.params(factor=float(rope["factor"]))
        case "llama3":
            rotary.scaling = Llama3Scaling.params(
                factor=float(rope["factor"]),
                original_max_position_embeddings=rope["original_max_position_embeddings"],
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
            )
        case kind:
            raise ParamError(
                f"{CONFIG} has rotary positions of the type {kind!r}: default, linear"
                " and llama3 are read"
            )
    return rotary


# ---- GPT-2 ---------------------------------------------------------------------------------------


def _gpt2(config: Config) -> HubModel:
    config.expect(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    norm = LayerNorm.params(epsilon=config["layer_norm_epsilon"])
    layer = TransformerLayer.params(norm=norm)
    layer.attention = Attention.params(num_heads=config["n_head"], use_bias=True)
    layer.ffn.set(
        hidden_dim=config.get("n_inner", 4 * config["n_embd"]),
        activation=config.activation(config["activation_function"]),
        use_bias=True,
    )
    model = LanguageModel.params(
        dim=config["n_embd"],
        scale_embedding=False,
        positions=LearnedPositions.params(max_length=config["n_positions"]),
        stack=Stack.params(layer=layer, num_layers=config["n_layer"]),
        norm=norm,
        head=TiedHead,
    )
    # the files of 2019 have only the model without its head, so names lack the prefix
    prefix = "transformer." if config.has_tensor("transformer.wte.weight") else ""
    theirs, names = rf"{prefix}h.\1.", {"w": "weight", "b": "bias"}
    rename = {
        "model/embedding/table": f"{prefix}wte.weight",
        "model/positions/table": f"{prefix}wpe.weight",
    }
    for short, long in names.items():
        rename |= {
            _LAYER + f"attention/{short}_(?:query|key|value)": f"{theirs}attn.c_attn.{long}",
            _LAYER + f"attention/{short}_output": f"{theirs}attn.c_proj.{long}",
            _LAYER + f"ffn/{short}_in": f"{theirs}mlp.c_fc.{long}",
            _LAYER + f"ffn/{short}_out": f"{theirs}mlp.c_proj.{long}",
        }
    for ours, long in (("scale", "weight"), ("bias", "bias")):
        rename |= {
            _LAYER + f"attention_norm/{ours}": f"{theirs}ln_1.{long}",
            _LAYER + f"ffn_norm/{ours}": f"{theirs}ln_2.{long}",
            f"model/norm/{ours}": f"{prefix}ln_f.{long}",
        }
    parts = {f".*/[wb]_{name}": (i, 3) for i, name in enumerate(("query", "key", "value"))}
    task = LanguageModeling.params(model=model, vocab_size=config["vocab_size"])
    fields = {"rename": rename, "parts": parts}
    return HubModel(task, fields, max_length=config["n_positions"])


DECODERS: dict[str, Callable[[Config], HubModel]] = {
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
