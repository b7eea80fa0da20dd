"""Signatures that take texts instead of encoded arrays.

TensorFlow operations in the exported program encode them: bytes as token ids, if a model's tokens
are bytes, and the cells of a table as numbers and categories.

    score_text     texts -> their log-probabilities
    decode_text    prompts -> the texts that continue or answer them
    predict        raw cells of rows -> the predictions of a model of tables

Axes: B texts or rows, T positions, S texts of a prompt, N new tokens of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.data.input import Input
from lingo.data.tables.table_input import TableInput
from lingo.data.tokenizer import ByteTokenizer
from lingo.export.exported_model import Arrays, ExportedModel
from lingo.export.signature import (
    Decode,
    Inputs,
    Mean,
    Predict,
    Run,
    Score,
    Signature,
    count_changes,
    find_signatures,
)

_FIRST_BYTE = 3  # the id of the byte 0 (`ByteTokenizer`)
_PROBE = "ab"
_NOT_UTF_8 = "\ufffd".encode()  # the character that replaces bytes that are not UTF-8


class Layout(NamedTuple):
    """The ids that an input puts before and after a text's ids, each int32 [number of ids]."""

    prefix: np.ndarray
    suffix: np.ndarray

    def encode(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of texts, int32 [B, T], padded with 0, and their lengths, int32 [B]."""
        characters = tf.strings.bytes_split(texts)
        values = tf.reshape(tf.io.decode_raw(characters.flat_values, tf.uint8), [-1])
        ids = characters.with_flat_values(tf.cast(values, tf.int32) + _FIRST_BYTE)
        size = tf.shape(texts)[0]
        parts = (tf.repeat(tf.constant(part)[None], size, axis=0) for part in self)
        ragged: Any = tf.RaggedTensor
        before, after = (ragged.from_tensor(part) for part in parts)
        whole = tf.concat([before, ids, after], axis=1)
        return whole.to_tensor(), tf.cast(whole.row_lengths(), tf.int32)


def find_layout(data: Input) -> Layout | None:
    """Returns the ids that an input adds to a text's ids.

    None: the input turns texts into ids in a way that TensorFlow operations cannot.
    """
    tokenizer = getattr(data, "tokenizer", None)
    if type(tokenizer) is not ByteTokenizer:
        return None
    empty, whole = (_ids(data, text) for text in ("", _PROBE))
    probe = tokenizer.encode(_PROBE)
    for size in range(len(empty) + 1):
        before, after = empty[:size], empty[size:]
        if np.array_equal(np.concatenate([before, probe, after]), whole):
            return Layout(before, after)
    return None


class DecodeText(Signature):
    """Continues or answers texts: a `Decode` for texts in place of token ids.

    Inputs: `text`, string [B], and `seeds` as in `Decode`.

    Outputs: `text`, string [B, S], in UTF-8, in which U+FFFD replaces other bytes; `log_prob`,
    float32 [B, S], the log-probability of a text and its end id.
    """

    name = "decode_text"

    def __init__(self, decode: Decode, layout: Layout, tokenizer: ByteTokenizer) -> None:
        self.inputs: Inputs = {"text": ((None,), "string")} | {
            name: spec for name, spec in decode.inputs.items() if name == "seeds"
        }
        self._decode, self._layout, self._tokenizer = decode, layout, tokenizer

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        tokens, lengths = self._layout.encode(inputs["text"])
        given = dict(inputs) | {"tokens": tokens, "lengths": lengths}
        found = self._decode.compute(model, given)
        byte = found["tokens"] - _FIRST_BYTE
        is_byte = tf.sequence_mask(found["lengths"], tf.shape(byte)[2]) & (byte >= 0) & (byte < 256)
        table = tf.constant([bytes([value]) for value in range(256)])
        characters = tf.where(is_byte, tf.gather(table, tf.clip_by_value(byte, 0, 255)), "")
        text = tf.strings.reduce_join(characters, axis=-1)
        return {
            "text": tf.strings.unicode_transcode(text, "UTF-8", "UTF-8"),
            "log_prob": tf.reduce_sum(found["log_probs"], axis=2),
        }

    def examples(self, batch: Arrays) -> dict[str, np.ndarray]:
        given = self._decode.examples(batch)
        pairs = zip(given["tokens"], given["lengths"], strict=True)
        texts = [self._tokenizer.decode(ids[:size]).encode() for ids, size in pairs]
        others = {name: given[name] for name in self.inputs if name != "text"}
        return {"text": np.array(texts, np.bytes_)} | others

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        ids, lengths = _encode(self._layout, self._tokenizer, inputs["text"])
        found = self._decode.reference(run, {"tokens": ids, "lengths": lengths})
        shape = found["lengths"].shape
        texts = [
            self._tokenizer.decode(found["tokens"][place][: found["lengths"][place]]).encode()
            for place in np.ndindex(shape)
        ]
        return {
            "text": np.array(texts, np.bytes_).reshape(shape),
            "log_prob": found["log_probs"].sum(axis=2),
        }

    def comparable(self, expected: Arrays, found: Arrays) -> np.ndarray:
        """Returns which prompts have equal texts, bool [B].

        Texts with U+FFFD do not count as equal, since U+FFFD may stand for different tokens.
        """
        is_same = expected["text"] == found["text"]
        return (is_same & (np.char.find(expected["text"], _NOT_UTF_8) < 0)).all(axis=1)

    def count_unequal(self, expected: Arrays, found: Arrays) -> tuple[int, int]:
        width = 1 + max(outputs["text"].itemsize for outputs in (expected, found))
        values = [
            np.frombuffer(outputs["text"].astype(f"S{width}").tobytes(), np.uint8)
            for outputs in (expected, found)
        ]
        a, b = (value.reshape(*expected["text"].shape, width) for value in values)
        return count_changes(a, b, np.maximum((a > 0).sum(axis=-1), (b > 0).sum(axis=-1)))


class ScoreText(Signature):
    """Scores texts: a `Score` for texts in place of token ids.

    Input: `text`, string [B]. Outputs: `log_prob`, float32 [B], in nats, without the end id;
    `num_tokens`, int32 [B].
    """

    name = "score_text"

    def __init__(self, score: Score, layout: Layout, tokenizer: ByteTokenizer) -> None:
        self.inputs: Inputs = {"text": ((None,), "string")}
        self._score, self._layout, self._tokenizer = score, layout, tokenizer

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        ids, lengths = self._layout.encode(inputs["text"])
        size, length = tf.shape(ids)[0], tf.shape(ids)[1] - 1
        positions = tf.repeat(tf.range(length)[None], size, axis=0)
        known = {
            "tokens": ids[:, :-1],
            "targets": ids[:, 1:],
            "segments": tf.sequence_mask(lengths - 1, length, tf.int32),
            "positions": positions,
        }
        found = self._score.compute(model, {name: known[name] for name in self._score.inputs})
        return {name: found[name] for name in ("log_prob", "num_tokens")}

    def examples(self, batch: Arrays) -> dict[str, np.ndarray]:
        pairs = zip(batch["tokens"], range(len(batch["tokens"])), strict=True)
        texts = [self._tokenizer.decode(ids[: 8 + i % 9]).encode() for ids, i in pairs]
        return {"text": np.array(texts, np.bytes_)}

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        ids, lengths = _encode(self._layout, self._tokenizer, inputs["text"])
        columns = np.arange(ids.shape[1] - 1, dtype=np.int32)
        known = {
            "tokens": ids[:, :-1],
            "targets": ids[:, 1:],
            "segments": (columns < lengths[:, None] - 1).astype(np.int32),
            "positions": np.tile(columns, [len(ids), 1]),
        }
        found = self._score.reference(run, {name: known[name] for name in self._score.inputs})
        return {name: found[name] for name in ("log_prob", "num_tokens")}

    def evaluate(self, batch: Arrays, outputs: Arrays) -> dict[str, Mean]:
        del batch, outputs
        return {}


class PredictRaw(Signature):
    """The predictions of the task for raw cells.

    Inputs: for each column of the table, float32 [B] of numbers (NaN: missing), or string [B] of
    dates and categories, as they stand in the file. The input's name is the column's, with `_` for
    other characters than letters and digits.
    """

    name = "predict"

    def __init__(self, predict: Predict, data: TableInput) -> None:
        self.inputs: Inputs = data.encoder.raw_specs()
        self._predict, self._data = predict, data

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        arrays = self._data.encoder.encode_raw(inputs)
        return self._predict.compute(model, {name: arrays[name] for name in self._predict.inputs})

    def examples(self, batch: Arrays) -> dict[str, np.ndarray]:
        return self._data.raw_examples(batch["example_id"])

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        return self._predict.reference(run, self._data.encoder.read_raw(inputs))

    def evaluate(self, batch: Arrays, outputs: Arrays) -> dict[str, Mean]:
        return self._predict.evaluate(batch, outputs)


def read_raw_cells(signatures: Sequence[Signature], data: Input) -> list[Signature]:
    """Returns the signatures, with `PredictRaw` in place of `Predict` if the data is a table.

    A table whose rows are augmented has no cells for what the model gets.
    """
    if not isinstance(data, TableInput) or data.p.augment is not None:
        return list(signatures)
    return [PredictRaw(s, data) if isinstance(s, Predict) else s for s in signatures]


def model_signatures(model: ExportedModel, names: Sequence[str], specs: Specs) -> list[Signature]:
    """Returns the signatures of `find_signatures`, and those that do the same with texts.

    For a table, the signature `predict` takes the raw cells of its columns.
    """
    found = find_signatures(model, names, specs)
    signatures = read_raw_cells(found, model.experiment.prediction_input)
    return signatures + text_signatures(model.experiment.train_input, signatures)


def text_signatures(data: Input, signatures: Sequence[Signature]) -> list[Signature]:
    """Returns signatures that do with texts what the given signatures do with token ids.

    []: TensorFlow operations cannot turn texts into ids as the input does.
    """
    layout = find_layout(data)
    if layout is None:
        return []
    tokenizer = ByteTokenizer.params().build()
    arrays = {"tokens", "targets", "segments", "positions"}
    texts: list[Signature] = []
    for signature in signatures:
        if isinstance(signature, Decode):
            texts.append(DecodeText(signature, layout, tokenizer))
        elif isinstance(signature, Score) and {*signature.inputs} <= arrays and len(layout.prefix):
            texts.append(ScoreText(signature, layout, tokenizer))
    return texts


def _ids(data: Input, text: str) -> np.ndarray:
    prompt = data.prompt(text)
    return prompt.tokens if prompt.source is None else prompt.source


def _encode(
    layout: Layout, tokenizer: ByteTokenizer, texts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and lengths of texts as `Layout.encode` does, but computed by NumPy."""
    rows = [np.concatenate([layout.prefix, tokenizer.encode(t), layout.suffix]) for t in texts]
    lengths = np.array([*map(len, rows)], np.int32)
    ids = np.zeros([len(rows), max(lengths)], np.int32)
    for to, row in zip(ids, rows, strict=True):
        to[: len(row)] = row
    return ids, lengths
