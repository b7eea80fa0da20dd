"""Hugging Face's BERT (Devlin et al. 2019): as pre-training, or its encoder for another task.

A file may be of the encoder alone, with or without a pooler, or with heads; the names of its
tensors tell. A head for classes or answers goes on in the task that has such a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.params import Params
from lingo.layers import LayerNorm, LearnedPositions, Stack
from tasks.bert.model import DENSE, LAYER, Bert, MaskedHead, TypeEmbedding
from tasks.bert.task import BertPretraining
from tasks.hugging_face.config import Config, HubModel

_LAYER = r"model/stack/layers/(\d+)/"
_WORDS = "embeddings.word_embeddings.weight"

# parts that models of these architectures have
_WITH_MASKED = ("BertForPreTraining", "BertForMaskedLM")
_WITH_PAIRS = ("BertForPreTraining", "BertForNextSentencePrediction")
_WITH_POOLER = (*_WITH_PAIRS, "BertModel", "BertForSequenceClassification")


class HubEncoder(NamedTuple):
    """A BERT of the hub for a task whose field `model` is a `Bert`, and `head` a `Linear`."""

    model: Params  # of the Bert
    fields: Mapping[str, Any]  # of the WarmStart that reads its weights
    vocab_size: int
    max_length: int  # positions that it was trained on

    def warm_start(self, path: str) -> Params:
        """Returns the params of a WarmStart from the file or folder of the weights.

        Weights that it does not read, such as a new head's, are drawn as ever.
        """
        return WarmStart.params(path=path, reshape=True, **self.fields)


def configure_encoder(config: Config, *, pooler: bool, head: str = "") -> HubEncoder:
    """Returns the encoder that a configuration describes, for a task of another kind.

    Raises ParamError for what lingo does not have.

    Args:
        config: describes the model, and tells which tensors its file has.
        pooler: whether the task reads the pooled vector. The weights of a pooler that the file
            lacks, as one of BertForMaskedLM does, are drawn as ever.
        head: what the file calls the task's head, such as "classifier"; its weights are read if the
            file has them.
    """
    model, names = _model(config), _Names(config)
    rename = names.encoder()
    fields: dict[str, Any] = {
        "only": ("model/.*",),
        "rename": rename,
        "transpose": (r"model/.*/w_.*",),
    }
    if head and config.knows_tensors and config.has_tensor(f"{head}.weight"):
        rename |= _dense("head", head)
        fields["only"] += ("head/.*",)
        fields["transpose"] += ("head/w",)
    if not pooler:
        model.pooler = None
    elif names.has_pooler:
        rename |= names.pooler()
        fields["transpose"] += ("model/pooler/w",)
    else:
        fields["skip"] = ("model/pooler/.*",)
    return HubEncoder(model, fields, config["vocab_size"], config["max_position_embeddings"])


def _bert(config: Config) -> HubModel:
    """Returns the task of pre-training; heads that a file lacks are drawn as ever."""
    model, names = _model(config), _Names(config)
    rename, skip = names.encoder(), []
    task = BertPretraining.params(model=model, vocab_size=config["vocab_size"])
    task.head = MaskedHead.params(
        activation=config.activation(config["hidden_act"]), norm=_norm(config)
    )
    if names.has_masked:
        rename |= names.masked()
    else:
        skip.append("head/.*")
    if names.has_pooler:
        rename |= names.pooler()
    else:
        task.next_sentence = model.pooler = None
    if names.has_pooler and names.has_pairs:
        rename |= names.pairs()
    elif names.has_pooler:
        skip.append("next_sentence/.*")
    fields = {"rename": rename, "transpose": (r".*/w(?:_\w+)?",), "skip": tuple(skip)}
    return HubModel(task, fields, max_length=config["max_position_embeddings"])


class _Names:
    """Which parts a file has, and the names of their tensors."""

    def __init__(self, config: Config) -> None:
        self._has, self._is_known = config.has_tensor, config.knows_tensors
        architecture = (config.get("architectures") or [""])[0]
        if self._is_known:
            is_alone = self._has(_WORDS)
        else:
            is_alone = architecture == "BertModel"
        self._prefix = "" if is_alone else "bert."
        # files of 2018 have the names that TensorFlow's program gave to scale and bias of a norm
        self._is_old = not self._has(f"{self._prefix}embeddings.LayerNorm.weight")
        # without files the architecture tells which parts there are
        self.has_pooler = self._finds(
            f"{self._prefix}pooler.dense.weight", architecture, _WITH_POOLER
        )
        self.has_pairs = self._finds("cls.seq_relationship.weight", architecture, _WITH_PAIRS)
        self.has_masked = self._finds(
            "cls.predictions.transform.dense.weight", architecture, _WITH_MASKED
        )

    def encoder(self) -> dict[str, str]:
        start, block = f"{self._prefix}embeddings.", rf"{self._prefix}encoder.layer.\1."
        rename = {
            "model/embedding/table": f"{self._prefix}{_WORDS}",
            "model/positions/table": f"{start}position_embeddings.weight",
            "model/types/table": f"{start}token_type_embeddings.weight",
            **self._norm("model/norm", f"{start}LayerNorm"),
            **self._norm(f"{_LAYER}attention_norm", f"{block}attention.output.LayerNorm"),
            **self._norm(f"{_LAYER}ffn_norm", f"{block}output.LayerNorm"),
        }
        for ours, theirs in (("w", "weight"), ("b", "bias")):
            rename |= {
                f"{_LAYER}attention/{ours}_(query|key|value)": (
                    rf"{block}attention.self.\2.{theirs}"
                ),
                f"{_LAYER}attention/{ours}_output": f"{block}attention.output.dense.{theirs}",
                f"{_LAYER}ffn/{ours}_in": f"{block}intermediate.dense.{theirs}",
                f"{_LAYER}ffn/{ours}_out": f"{block}output.dense.{theirs}",
            }
        return rename

    def pooler(self) -> dict[str, str]:
        return _dense("model/pooler", f"{self._prefix}pooler.dense")

    def pairs(self) -> dict[str, str]:
        return _dense("next_sentence", "cls.seq_relationship")

    def masked(self) -> dict[str, str]:
        theirs = "cls.predictions."
        bias = f"{theirs}bias" if self._has(f"{theirs}bias") else f"{theirs}decoder.bias"
        return {
            "head/bias": bias,
            **_dense("head/dense", f"{theirs}transform.dense"),
            **self._norm("head/norm", f"{theirs}transform.LayerNorm"),
        }

    def _norm(self, ours: str, theirs: str) -> dict[str, str]:
        scale, bias = ("gamma", "beta") if self._is_old else ("weight", "bias")
        return {f"{ours}/scale": f"{theirs}.{scale}", f"{ours}/bias": f"{theirs}.{bias}"}

    def _finds(self, tensor: str, architecture: str, architectures: tuple[str, ...]) -> bool:
        return self._has(tensor) if self._is_known else architecture in architectures


def _dense(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}/w": f"{theirs}.weight", f"{ours}/b": f"{theirs}.bias"}


def _model(config: Config) -> Params:
    """Returns the params of a Bert with a pooler; dropout is as the configuration says."""
    config.expect(
        add_cross_attention=False,
        is_decoder=False,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
    )
    norm, dropout = _norm(config), float(config.get("hidden_dropout_prob", 0.0))
    layer = LAYER.copy().set(norm=norm, dropout_rate=dropout)
    layer.attention.set(
        num_heads=config["num_attention_heads"],
        dropout_rate=float(config.get("attention_probs_dropout_prob", 0.0)),
    )
    layer.ffn.set(
        hidden_dim=config["intermediate_size"], activation=config.activation(config["hidden_act"])
    )
    model = Bert.params(
        dim=config["hidden_size"],
        norm=norm,
        dropout_rate=dropout,
        stack=Stack.params(layer=layer, num_layers=config["num_hidden_layers"]),
        pooler=DENSE,
    )
    model.all(LearnedPositions).set(max_length=config["max_position_embeddings"])
    model.all(TypeEmbedding).set(num_types=config["type_vocab_size"])
    return model


def _norm(config: Config) -> Params:
    return LayerNorm.params(epsilon=config["layer_norm_eps"])


ENCODERS: dict[str, Callable[[Config], HubModel]] = {"bert": _bert}
