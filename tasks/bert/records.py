"""BERT's pre-training rows from TFRecord files in the layout of MLPerf's benchmark.

The benchmark's program writes records of the type tf.train.Example. They have lists of integers:
`input_ids`, `input_mask`, `segment_ids` (T each), `masked_lm_positions`, `masked_lm_ids` (K each)
and `next_sentence_labels` (one); and a list of floats, `masked_lm_weights` (K). The program chose
the masked tokens when it wrote the files.

Axes: B examples (rows), T tokens per row, K predictions per row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import REQUIRED
from lingo.data.array_spec import ArraySpec
from lingo.data.epoch_order import EpochOrder
from lingo.data.files import File, Read, refuse_empty
from lingo.data.gzip_copy import describe_copies
from lingo.data.index import Index, Progress, open_index
from lingo.data.input import Input
from lingo.data.record_source import CorruptRecord, DecodedRecords, MatchingFiles
from lingo.data.sources import tfrecord


class Column(NamedTuple):
    """How records store one array of a row."""

    feature: str  # name in the records
    size_field: str  # field with its length, "" for one number
    limit_field: str  # field with its exclusive upper bound, "" for 2


_COLUMNS = {
    "tokens": Column("input_ids", "length", "vocab_size"),
    "types": Column("segment_ids", "length", ""),
    "segments": Column("input_mask", "length", ""),
    "masked_positions": Column("masked_lm_positions", "max_predictions", "length"),
    "masked_ids": Column("masked_lm_ids", "max_predictions", "vocab_size"),
    "masked_weights": Column("masked_lm_weights", "max_predictions", ""),
    "is_random": Column("next_sentence_labels", "", ""),
}
_FLOATS = "masked_weights"


class BertExamples(DecodedRecords, MatchingFiles):
    """Rows in TFRecord files. A document is the bytes of a row's arrays, one after the other.

    A `BertRecords` passes `length`, `max_predictions` and `vocab_size` down to its source.
    """

    length: int  # T, tokens per row
    max_predictions: int  # K, the most tokens to predict in a row
    vocab_size: int  # all token ids are smaller

    checksums: ClassVar[bool] = True

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        refuse_empty(file)
        return tfrecord.records(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        features = tfrecord.parse_example(tfrecord.payload(data, where), where)
        arrays = [self._read(features, name, where) for name in _COLUMNS]
        return b"".join(array.tobytes() for array in arrays)

    def dtype(self) -> np.dtype:
        """Returns the structured type of a document: its fields are a row's arrays, [T] or [K]."""
        return np.dtype(
            [(name, _dtype(name), self._shape(column)) for name, column in _COLUMNS.items()]
        )

    def _shape(self, column: Column) -> tuple[int, ...]:
        return (getattr(self.p, column.size_field),) if column.size_field else ()

    def _read(self, features: Mapping[str, Any], name: str, where: str) -> np.ndarray:
        """Returns an array of a row, [T], [K] or [1]; raises CorruptRecord for wrong numbers."""
        feature, size_field, limit_field = _COLUMNS[name]
        read = tfrecord.floats if name == _FLOATS else tfrecord.integers
        array = read(features, feature, where)
        wanted = getattr(self.p, size_field) if size_field else 1
        if len(array) != wanted:
            kind = "floats" if name == _FLOATS else "integers"
            reason = f"{size_field}={wanted}" if size_field else "one"
            raise CorruptRecord(
                f"{where}: feature {feature!r} has {len(array)} {kind}, not {reason}."
            )
        most = getattr(self.p, limit_field) - 1 if limit_field else 1
        is_wrong = ~((array >= 0) & (array <= most))  # also NaN
        if is_wrong.any():
            reason = f", as {limit_field}={most + 1}" if limit_field else ""
            raise CorruptRecord(
                f"{where}: feature {feature!r} has {array[is_wrong][0]}, but its numbers are from 0"
                f" to {most}{reason}."
            )
        return array.astype(_dtype(name))


class BertRecords(Input):
    """Rows for BERT's pre-training in TFRecord files, each once per epoch, in a new order.

    The first run reads and checks all files, and keeps an index of them for later runs.

    Batches have the arrays of `BertInput` with pairs; T is `length`, K is `max_predictions`.
    """

    source: BertExamples = REQUIRED  # BertExamples(pattern=...), a path or glob
    length: int = 512  # T, tokens per row
    max_predictions: int = 76  # K, the most tokens to predict in a row
    vocab_size: int = 30_522  # token ids of the vocabulary that made the records
    shuffle: bool = True  # a new order each epoch; False: the files' order

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "length", "max_predictions", "vocab_size")

    def setup(self) -> None:
        names = ("length", "max_predictions", "vocab_size")
        self.source = self.p.source.build(**{name: getattr(self.p, name) for name in names})
        self._order = functools.cache(self._make_order)

    def offers(self) -> dict[str, Any]:
        return {"vocab_size": self.p.vocab_size}

    def prepare(self, *, progress: Progress | None = None) -> None:
        if "index" not in self.__dict__:
            self.index = open_index(self.source, progress=progress)

    @functools.cached_property
    def index(self) -> Index:
        """The index of the records; opened at first use."""
        return open_index(self.source)

    def num_examples(self) -> int:
        return len(self.index.size)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns arrays of the examples with ids `numbers`, int64 [B]; zeros after one pass."""
        has_content = self.p.repeat | (numbers < self.num_examples())
        rows = np.zeros(len(numbers), self.source.dtype())
        texts = self.index.texts(self._order().indices(numbers[has_content]))
        rows[has_content] = np.frombuffer(b"".join(texts), rows.dtype)
        return {name: rows[name].astype(_dtype(name)[1:]) for name in _COLUMNS}

    def specs(self) -> dict[str, ArraySpec]:
        size, fields = self.p.batch_size, self.source.dtype().fields or {}
        return super().specs() | {
            name: ((size, *dtype.shape), dtype.base.newbyteorder("=").name)
            for name, (dtype, *_) in fields.items()
        }

    def fingerprint(self) -> dict[str, Any]:
        index = self.index
        return {
            "source": self.source.describe(),
            "records": len(index.size),
            "bytes": int(index.size.sum()),
            "digest": index.digest,
            "damaged": index.damage.records,
        }

    def remarks(self) -> list[str]:
        damage = self.index.damage
        left_out = [f"left out {damage}"] if damage.records else []
        return describe_copies(self.index.files) + left_out

    def _make_order(self) -> EpochOrder:
        p = self.p
        return EpochOrder(self.num_examples(), seed=p.seed, name="records", shuffle=p.shuffle)


def _dtype(name: str) -> str:
    """Returns the NumPy type of an array in a document, little-endian on every machine."""
    return "<f4" if name == _FLOATS else "<i4"
