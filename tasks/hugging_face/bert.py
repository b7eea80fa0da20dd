"""Hugging Face's BERT (Devlin et al. 2019): a task of pre-training, or an encoder for another task.

A file has the encoder, and may have a pooler and heads; the names of its tensors tell which. A task
for classes or answers also reads the file's head.
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
_VOCAB_SIZE = 30_522  # default of transformers' BertConfig

# architectures with a head of masked tokens, a head of pairs, a pooler
_WITH_MASKED = ("BertForPreTraining", "BertForMaskedLM")
_WITH_PAIRS = ("BertForPreTraining", "BertForNextSentencePrediction")
_WITH_POOLER = (*_WITH_PAIRS, "BertModel", "BertForSequenceClassification")


class HubEncoder(NamedTuple):
    """A BERT of the hub for a task with fields `model`, a `Bert`, and `head`, a `Linear`."""

    model: Params  # of the Bert
    fields: Mapping[str, Any]  # of the WarmStart that reads its weights
    vocab_size: int
    max_length: int  # number of positions: the longest row

    def warm_start(self, path: str) -> Params:
        """Returns the params of a WarmStart from a file or folder of weights.

        Weights that it does not read, such as a new head's, are initialized at random.
        """
        return WarmStart.params(path=path, reshape=True, **self.fields)


def configure_encoder(config: Config, *, pooler: bool, head: str = "") -> HubEncoder:
    """Returns the encoder that a configuration describes, for a task other than pre-training.

    Raises ParamError for a setting that lingo does not support.

    Args:
        config: the model's configuration, and the names of its file's tensors.
        pooler: whether the task reads the pooled vector. If the file has no pooler, as files of
            BertForMaskedLM, its weights are initialized at random.
        head: the file's name of the task's head, such as "classifier"; its weights are read if the
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
    return HubEncoder(model, fields, config.size("vocab_size", _VOCAB_SIZE), _max_length(config))


def _bert(config: Config) -> HubModel:
    """Returns the task of pre-training; heads that a file lacks are initialized at random."""
    model, names = _model(config), _Names(config)
    rename, skip = names.encoder(), []
    task = BertPretraining.params(model=model, vocab_size=config.size("vocab_size", _VOCAB_SIZE))
    task.head = MaskedHead.params(activation=_activation(config), norm=_norm(config))
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
    return HubModel(task, fields, max_length=_max_length(config))


class _Names:
    """The parts that a file has (encoder, pooler, heads), and the names of their tensors."""

    def __init__(self, config: Config) -> None:
        self._has, self._is_known = config.has_tensor, config.knows_tensors
        architecture = config.architecture()
        if self._is_known:
            is_alone = self._has(_WORDS)
        else:
            is_alone = architecture == "BertModel"
        self._prefix = "" if is_alone else "bert."
        # files of 2018 have gamma and beta, the names of the authors' TensorFlow program
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
    """Returns the params of a Bert with a pooler, and with the configuration's dropout.

    Entries that the configuration lacks have the defaults of transformers' BertConfig.
    """
    config.expect(
        add_cross_attention=False,
        is_decoder=False,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
    )
    norm, dropout = _norm(config), config.number("hidden_dropout_prob", 0.1)
    layer = LAYER.copy().set(norm=norm, dropout_rate=dropout)
    layer.attention.set(
        num_heads=config.size("num_attention_heads", 12),
        dropout_rate=config.number("attention_probs_dropout_prob", 0.1),
    )
    layer.ffn.set(hidden_dim=config.size("intermediate_size", 3072), activation=_activation(config))
    model = Bert.params(
        dim=config.size("hidden_size", 768),
        norm=norm,
        dropout_rate=dropout,
        stack=Stack.params(layer=layer, num_layers=config.size("num_hidden_layers", 12)),
        pooler=DENSE,
    )
    model.all(LearnedPositions).set(max_length=_max_length(config))
    model.all(TypeEmbedding).set(num_types=config.size("type_vocab_size", 2))
    return model


def _norm(config: Config) -> Params:
    return LayerNorm.params(epsilon=config.number("layer_norm_eps", 1e-12))


def _activation(config: Config) -> str:
    return config.activation(config.get("hidden_act", "gelu"))


def _max_length(config: Config) -> int:
    return config.size("max_position_embeddings", 512)


ENCODERS: dict[str, Callable[[Config], HubModel]] = {"bert": _bert}
