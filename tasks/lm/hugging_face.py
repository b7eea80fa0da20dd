"""Hugging Face's decoders as language models: the shape from `config.json`, the names of weights.

    config.json      ->  parameters of a LanguageModel    (`read_config`, `Decoder.model`)
    model.safetensors  ->  its weights, by a WarmStart      (`Decoder.warm_start`)

GPT-2 (Radford et al. 2019), Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024), Qwen 2
and 3, Gemma 2 (Gemma Team 2024) and Mixtral (Jiang et al. 2024).

Axes, in comments: D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lingo.checkpoints.warm_start import WarmStart
from lingo.config.params import ParamError, Params, suggest
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
from tasks.lm.model import LanguageModel

CONFIG = "config.json"

_LAYER = r"model/stack/layers/(\d+)/"
_ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class Decoder(NamedTuple):
    """A decoder of Hugging Face's: its model, and how its weights are read."""

    model: Params  # of a LanguageModel
    vocab_size: int
    max_length: int  # positions that it was trained on
    fields: Mapping[str, Any]  # of the WarmStart that reads its weights

    def warm_start(self, path: str) -> Params:
        """Returns the params of a WarmStart from the file or folder of the weights."""
        return WarmStart.params(path=path, reshape=True, **self.fields)


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the content of `config.json` in a folder; raises ParamError if it is not readable."""
    file = Path(os.path.expanduser(folder)) / CONFIG
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise ParamError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ParamError(f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ParamError(f"{file} is not a configuration of a model: it holds no object")
    return config


def decoder(config: Mapping[str, Any]) -> Decoder:
    """Returns the decoder that a configuration describes; raises ParamError if lingo has it not."""
    kind = config.get("model_type", "")
    if kind not in _KINDS:
        near = suggest(str(kind), _KINDS)
        raise ParamError(f"model_type={kind!r} is not one of {', '.join(_KINDS)}.{near}")
    return _KINDS[kind](_Config(config))


class _Config:
    """A configuration whose entries have to be there."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise ParamError(f"{CONFIG} of {self.get('model_type')} has no {name!r}")
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an entry, or the default if it is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def refuse(self, **expected: Any) -> None:
        """Raises ParamError if an entry is there and has another value than expected."""
        for name, value in expected.items():
            if self.get(name, value) != value:
                raise ParamError(
                    f"{CONFIG} has {name}={self.get(name)!r}; lingo's {self.get('model_type')} has"
                    f" {value!r} only"
                )


# ---- Llama and those like it ---------------------------------------------------------------------


def _llama(config: _Config) -> Decoder:
    config.refuse(attention_bias=False, mlp_bias=False)
    return _build(config, [_layer(config)], _names(_QKVO, _GATED))


def _qwen2(config: _Config) -> Decoder:
    config.refuse(use_sliding_window=False)
    layer = _layer(config)
    layer.attention.use_bias = True  # of queries, keys and values; that of the output stays zero
    return _build(config, [layer], _names(_QKVO, _BIASES, _GATED), skip=(".*/attention/b_output",))


def _qwen3(config: _Config) -> Decoder:
    config.refuse(use_sliding_window=False, attention_bias=False)
    layer = _layer(config)
    layer.attention.qk_norm = RmsNorm.params(epsilon=config["rms_norm_eps"])
    norms = {
        _LAYER + "attention/query_norm/scale": r"model.layers.\1.self_attn.q_norm.weight",
        _LAYER + "attention/key_norm/scale": r"model.layers.\1.self_attn.k_norm.weight",
    }
    return _build(config, [layer], _names(_QKVO, norms, _GATED))


def _gemma2(config: _Config) -> Decoder:
    config.refuse(attention_bias=False)
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
    built = _build(
        config,
        [kinds[kind] for kind in types[:2]],
        norms | _names(_QKVO, _GATED),
        offset={".*norm/scale": 1.0},  # a norm multiplies by 1 + w
    )
    built.model.set(scale_embedding=True)
    built.model.head.logit_cap = config.get("final_logit_softcapping")
    return built


def _mixtral(config: _Config) -> Decoder:
    config.refuse(attention_bias=False)
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


def _layer(config: _Config) -> Params:
    """Returns the layer that Llama and those like it have."""
    layer = TransformerLayer.params(norm=RmsNorm.params(epsilon=config["rms_norm_eps"]))
    layer.attention = Attention.params(
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
        positions=_rotary(config),
    )
    activation = config.get("hidden_activation", config.get("hidden_act", "silu"))
    layer.ffn.set(
        hidden_dim=config["intermediate_size"], gated=True, activation=_activation(activation)
    )
    return layer


def _build(
    config: _Config, pattern: list[Params], names: Mapping[str, str], **fields: Any
) -> Decoder:
    """Returns a decoder whose layers take turns; `fields` are those of the WarmStart."""
    stack = Stack.params(
        layer=pattern if len(pattern) > 1 else pattern[0], num_layers=config["num_hidden_layers"]
    )
    model = LanguageModel.params(
        dim=config["hidden_size"],
        scale_embedding=False,
        stack=stack,
        norm=RmsNorm.params(epsilon=config["rms_norm_eps"]),
    )
    rename, transpose = {**names, **{k: v for k, v in _REST.items() if k not in names}}, [".*/w_.*"]
    if not config.get("tie_word_embeddings", config.get("model_type") == "gemma2"):
        model.head = SoftmaxHead
        rename["model/head/w"] = "lm_head.weight"
        transpose.append("model/head/w")
    if any("router/w" in name for name in rename):
        transpose.append(".*/router/w")
    fields = {"rename": rename, "transpose": tuple(transpose)} | fields
    return Decoder(model, config["vocab_size"], config["max_position_embeddings"], fields)


def _rotary(config: _Config) -> Params:
    """Returns the positions of a configuration of transformers 4 or 5."""
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


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise ParamError(
            f"{CONFIG} has the activation {name!r}, not one of {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


# ---- GPT-2 ---------------------------------------------------------------------------------------


def _gpt2(config: _Config) -> Decoder:
    config.refuse(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    norm = LayerNorm.params(epsilon=config["layer_norm_epsilon"])
    layer = TransformerLayer.params(norm=norm)
    layer.attention = Attention.params(num_heads=config["n_head"], use_bias=True)
    layer.ffn.set(
        hidden_dim=config.get("n_inner", 4 * config["n_embd"]),
        activation=_activation(config["activation_function"]),
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
    theirs, names = r"transformer.h.\1.", {"w": "weight", "b": "bias"}
    rename = {
        "model/embedding/table": "transformer.wte.weight",
        "model/positions/table": "transformer.wpe.weight",
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
            f"model/norm/{ours}": f"transformer.ln_f.{long}",
        }
    parts = {f".*/[wb]_{name}": (i, 3) for i, name in enumerate(("query", "key", "value"))}
    return Decoder(
        model, config["vocab_size"], config["n_positions"], {"rename": rename, "parts": parts}
    )


_KINDS: dict[str, Callable[[_Config], Decoder]] = {
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
