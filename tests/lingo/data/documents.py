"""What tests of data share: documents in files, tokenized by bytes."""

from __future__ import annotations

import collections
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.files import Read
from lingo.data.index import Index, open_index
from lingo.data.input import Input
from lingo.data.record_source import RecordSource
from lingo.data.tokenizer import ByteTokenizer, Tokenizer, as_bytes

BYTES = ByteTokenizer.params().build()


class Words(Tokenizer):
    """A token a word, by its number of letters: a tokenizer that has to read a whole document."""

    vocab_size = 1000

    def describe(self) -> str:
        return "words"

    def encode(self, text: str | bytes) -> np.ndarray:
        return np.array([3 + len(word) for word in as_bytes(text).split()], np.int32)


def reader(data: bytes) -> Read:
    """Returns what reads some bytes of a document."""
    return lambda begin, end: data[begin:end]


def opened(kind: type[RecordSource], pattern: pathlib.Path | str, **fields: Any) -> Index:
    """Returns the index of the files that match a pattern."""
    return open_index(kind.params(pattern=str(pattern), **fields).build(), BYTES)


def texts(index: Index) -> list[str]:
    """Returns the text of every document."""
    return [index.read(d, 0, int(n)).decode() for d, n in enumerate(index.size)]


def write_documents(folder: pathlib.Path, documents: list[str]) -> pathlib.Path:
    """Writes 0.txt, 1.txt, ... into a new folder, and returns it."""
    folder.mkdir()
    for i, text in enumerate(documents):
        (folder / f"{i}.txt").write_text(text)
    return folder


def count_targets(batches: list[dict[str, np.ndarray]]) -> collections.Counter[tuple[int, int]]:
    """Counts (token before, target) in batches."""
    pairs = collections.Counter()
    for batch in batches:
        tokens, targets = (batch[n][batch["segments"] > 0].tolist() for n in ("tokens", "targets"))
        pairs.update(zip(tokens, targets, strict=True))
    return pairs


def expected_targets(documents: list[str]) -> collections.Counter[tuple[int, int]]:
    """Counts (token before, target) in documents."""
    ids = [[2, *BYTES.encode(document).tolist(), 1] for document in documents]
    return collections.Counter(itertools.chain.from_iterable(map(itertools.pairwise, ids)))


def example(text: str, **labels: int) -> bytes:
    """Returns a serialized tf.train.Example with the feature `text`, and one number a label."""
    feature = {"text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))}
    for name, label in labels.items():
        numbers = tf.train.Int64List(value=[label])
        feature[name] = tf.train.Feature(int64_list=numbers)
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def random_letters(folder: pathlib.Path, *sizes: int) -> pathlib.Path:
    """Writes files of random letters, 0.txt, 1.txt, ..., and returns their folder."""
    rng = np.random.default_rng(0)
    for i, size in enumerate(sizes):
        letters = rng.integers(97, 123, size).astype(np.uint8)
        (folder / f"{i}.txt").write_bytes(letters.tobytes())
    return folder


def specs_of(batch: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns name -> (shape, dtype) of the arrays of a batch."""
    return {name: (array.shape, array.dtype.name) for name, array in batch.items()}


def assert_starts_anywhere(make: Callable[[], Input], steps: range) -> None:
    """Compares batches of one run, whole and in part, with those of inputs made for each step."""
    batches = list(map(make().batch, steps))
    for step, batch in zip(steps, batches, strict=True):
        assert_equal(make().batch(step), batch)
        part = make().batch(step, rows=slice(1, 2))
        assert_equal(part, {name: array[1:2] for name, array in batch.items()})


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Compares two batches, array by array."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
