"""Hugging Face's encoder-decoders: T5 and Switch Transformers.

T5 (Raffel et al. 2020), T5 1.1 (gated networks; logits are not scaled, and mostly have a matrix of
their own), and Switch Transformers (Fedus et al. 2022). As in T5, attention does not divide by
sqrt(head width).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lingo.config.params import Params
from lingo.layers import (
    Attention,
    Bidirectional,
    CrossAttention,
    FeedForward,
    MoE,
    RelativeBias,
    RmsNorm,
    SoftmaxHead,
    Stack,
    SwitchRouter,
    TiedHead,
    TransformerLayer,
)
from lingo.layers.sequence.dot_product import DotProductAttention
from tasks.hugging_face.config import Config, HubModel
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

_LAYER = r"layers/(\d+)/"


def _t5(config: Config) -> HubModel:
    # transformers 5 writes tie_word_embeddings for every T5: only the weights tell if it is true
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    has_head = not scaled and config.has_tensor("lm_head.weight")
    gated, activation = _activation(config)
    names = {"w_gate": "wi_0", "w_in": "wi_1"} if gated else {"w_in": "wi"}
    names["w_out"] = "wo"
    ffn = FeedForward.params(hidden_dim=config["d_ff"], gated=gated, activation=activation)
    stacks = [Stack.params(layer=_layer(config, ffn), num_layers=n) for n in _num_layers(config)]
    rename = {
        _side(side) + f"ffn/{ours}": _block(side) + f"DenseReluDense.{theirs}.weight"
        for side in ("encoder", "decoder")
        for ours, theirs in names.items()
    }
    return _build(config, stacks, rename, scaled=scaled, has_head=has_head)


def _switch(config: Config) -> HubModel:
    config.expect(router_bias=False, router_dtype="float32")
    tied = config.get("tie_word_embeddings", True)
    _, activation = _activation(config)
    dense = FeedForward.params(hidden_dim=config["d_ff"], activation=activation)
    capacity = config["expert_capacity"]  # tokens that an expert takes of a text, however long
    sparse = MoE.params(
        expert=dense,
        num_experts=config["num_experts"],
        router=SwitchRouter.params(
            jitter=config["router_jitter_noise"],
            balance_loss=config["router_aux_loss_coef"],
            z_loss=config["router_z_loss_coef"],
        ),
        min_capacity=capacity,
        capacity_factor=1e-9,  # less than this minimum for any text
    )
    rename, stacks = dict[str, str](), list[Params]()
    for side, num in zip(("encoder", "decoder"), _num_layers(config), strict=True):
        pattern = _sparse_pattern(config[f"num_sparse_{side}_layers"], num)
        layers = [_layer(config, sparse if is_sparse else dense) for is_sparse in pattern]
        stacks.append(Stack.params(layer=layers, num_layers=num))
        ffn, theirs = _side(side) + "ffn/", _block(side) + "mlp."
        if any(pattern):
            rename[ffn + "router/w"] = theirs + "router.classifier.weight"
        for ours, name in (("w_in", "wi"), ("w_out", "wo")):
            if any(pattern):
                expert = theirs + rf"experts.expert_\2.{name}.weight"
                rename[ffn + rf"experts/(\d+)/{ours}"] = expert
            if not all(pattern):
                rename[ffn + ours] = theirs + f"{name}.weight"
    return _build(config, stacks, rename, scaled=tied, has_head=not tied)


def _build(
    config: Config,
    stacks: Sequence[Params],
    networks: Mapping[str, str],
    *,
    scaled: bool,
    has_head: bool,
) -> HubModel:
    """Returns the model of two stacks; `networks` renames the feed-forward networks' weights."""
    encoder, decoder = stacks
    encoder.all(Attention).set(mask=Bidirectional)
    decoder.all(TransformerLayer).set(cross_attention=_attention(config, CrossAttention))
    head = SoftmaxHead if has_head else TiedHead
    model = EncoderDecoder.params(
        dim=config["d_model"],
        scale_embedding=False,
        encoder=encoder,
        decoder=decoder,
        norm=_norm(config),
        head=head.params(logit_scale=config["d_model"] ** -0.5 if scaled else 1.0),
    )
    skip = [".*/router/load"] if any("router/w" in name for name in networks) else []
    rename = {**networks, **_names()}
    transpose = [r".*/w_\w+"]
    if has_head:
        rename["model/head/w"] = "lm_head.weight"
        transpose.append("model/head/w")
    if skip:
        transpose.append(".*/router/w")
    fields = {"rename": rename, "transpose": tuple(transpose), "skip": tuple(skip)}
    task = SequenceToSequence.params(model=model, vocab_size=config["vocab_size"])
    return HubModel(task, fields, start_id=config["decoder_start_token_id"])


def _layer(config: Config, ffn: Params) -> Params:
    layer = TransformerLayer.params(ffn=ffn.copy(), norm=_norm(config))
    layer.attention = _attention(config, Attention).set(
        positions=RelativeBias.params(
            num_buckets=config["relative_attention_num_buckets"],
            max_distance=config.get("relative_attention_max_distance", 128),
            shared=True,
        )
    )
    return layer


def _attention(config: Config, cls: type[DotProductAttention]) -> Params:
    return cls.params(num_heads=config["num_heads"], head_dim=config["d_kv"], query_scale=1.0)


def _norm(config: Config) -> Params:
    return RmsNorm.params(epsilon=config["layer_norm_epsilon"])


def _num_layers(config: Config) -> tuple[int, int]:
    """Returns the number of layers of the encoder and of the decoder."""
    return config["num_layers"], config.get("num_decoder_layers", config["num_layers"])


def _activation(config: Config) -> tuple[bool, str]:
    """Returns whether the feed-forward networks are gated, and their activation."""
    words = config.get("feed_forward_proj", "relu").split("-")
    gated = words[0] == "gated"
    if config["model_type"] == "switch_transformers":
        config.expect(feed_forward_proj=words[-1])  # transformers has no gated networks for it
    name = "gelu_new" if words == ["gated", "gelu"] else words[-1]
    return gated, config.activation(name)


def _sparse_pattern(num_sparse: int, num_layers: int) -> list[bool]:
    """Returns whether each layer of the repeated pattern has experts, by transformers' rule."""
    every = num_layers // num_sparse if num_sparse else num_layers
    is_sparse = [every == 1 or i % every == 1 for i in range(num_layers)]
    return is_sparse[:every] if num_layers % every == 0 else is_sparse


# ---- names of weights ----------------------------------------------------------------------------


def _side(side: str) -> str:
    """Returns a regular expression of lingo's names for the layers of one side."""
    return f"model/{side}/{_LAYER}"


def _block(side: str) -> str:
    """Returns transformers' prefix of a feed-forward network, after one or two attentions."""
    return rf"{side}.block.\1.layer.{1 if side == 'encoder' else 2}."


def _names() -> dict[str, str]:
    """Returns lingo's names -> transformers' for all weights but feed-forward networks and head."""
    names = {"model/embedding/table": "shared.weight"}
    norms = {"encoder": ("attention", "ffn"), "decoder": ("attention", "cross_attention", "ffn")}
    kinds = {"attention": "SelfAttention", "cross_attention": "EncDecAttention"}
    for side, parts in norms.items():
        for i, part in enumerate(parts):
            theirs = rf"{side}.block.\1.layer.{i}."
            names[_side(side) + f"{part}_norm/scale"] = f"{theirs}layer_norm.weight"
            if part in kinds:
                ours = _side(side) + rf"{part}/w_([qkvo])\w+"
                names[ours] = rf"{theirs}{kinds[part]}.\2.weight"
        names[f"model/{side}_table"] = (
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        )
        names[f"model/{side}_norm/scale"] = f"{side}.final_layer_norm.weight"
    return names


ENCODER_DECODERS: dict[str, Callable[[Config], HubModel]] = {
    "switch_transformers": _switch,
    "t5": _t5,
}
