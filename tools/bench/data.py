"""Input: tokens per second and the index, for every source, packing and tokenizer.

A plain `tf.data` pipeline reads the same files in the same run, in turns: it reads, decodes, cuts
rows and shuffles them within a buffer. It makes neither segments nor positions, and cannot resume
at a step without what came before it.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.data import learned_tokenizer, sentence_piece
from lingo.data.bucketed_input import BucketedInput
from lingo.data.document_input import TextInput
from lingo.data.index import open_index
from lingo.data.mixture import Mixture
from lingo.data.prefetch import Item, Prefetch
from lingo.data.record_source import InstalledSource
from lingo.data.sources.jsonl import JsonLines
from lingo.data.sources.tfrecord import TfRecords
from lingo.data.tokenizer import ByteTokenizer
from lingo.datasets.docstrings import Docstrings, Doctests
from tools.harness import Report, alternate, choose, ratios

PACKAGE = "keras"  # whose source is read: some 11 MB in 1,000 files
BATCH_SIZE, LENGTH = 16, 256
BOUNDARIES = [256, 1024, 4096, 16384]
SHUFFLE_ROWS = 1000
VOCAB_SIZE, END_ID = 2000, 1
SECONDS, ROUNDS = choose((0.5, 5), small=(0.02, 1))

Batches = Iterator[int]
"""Makes a batch at each step, and yields its tokens without padding."""


class Case(NamedTuple):
    """Something to measure."""

    name: str  # what it is
    input: Params  # parameters of an input
    theirs: Callable[[], Any] | None = None  # tf.data pipeline that reads the same, if there is one


def rate(batches: Batches) -> float:
    """Returns tokens per second, over about `SECONDS`."""
    tokens, start = 0, time.perf_counter()
    for count in batches:
        tokens += count
        if time.perf_counter() - start > SECONDS:
            break
    return tokens / (time.perf_counter() - start)


def ours(items: Iterable[Item]) -> Batches:
    """Makes batches with lingo, ahead of time in its thread, as training does."""
    for _, batches in items:
        yield int(np.count_nonzero(batches["segments"]))


def theirs(batches: Iterator[Any]) -> Batches:
    """Makes batches with tf.data."""
    for batch in batches:
        yield int(np.count_nonzero(batch[:, 1:]))


def rows(ids: Any) -> Any:
    """Returns batches of rows of a data set of token ids [N], one element a document."""
    documents = ids.map(lambda i: tf.concat([i, [END_ID]], 0))
    return documents.repeat().rebatch(LENGTH + 1).shuffle(SHUFFLE_ROWS).batch(BATCH_SIZE)


def buckets(ids: Any) -> Any:
    """Returns padded batches of documents of about one length."""
    sizes = [BATCH_SIZE * (BOUNDARIES[-1] // b) for b in BOUNDARIES]
    clipped = ids.map(lambda i: i[: BOUNDARIES[-1]]).repeat()
    bounds = [b + 1 for b in BOUNDARIES]
    return clipped.bucket_by_sequence_length(tf.size, bounds, [*sizes, BATCH_SIZE])


def as_bytes(texts: Any) -> Any:
    """Returns the ids of a data set of texts, one token per byte."""
    return texts.map(lambda text: tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32) + 3)


def as_pieces(texts: Any, model: str) -> Any:
    """Returns the ids of a data set of texts, in the pieces of a SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor(model_file=model)

    def encode(text: bytes) -> np.ndarray:
        return np.array(processor.encode(text), np.int32)

    def to_ids(text: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(encode, [text], tf.int32), [None])

    return texts.map(to_ids)


def compare(case: Case, report: Report) -> None:
    """Makes the index, then lets both sides take turns."""
    input = case.input.build()
    start = time.perf_counter()
    input.prepare()
    index = _bytes(input) / 1e6 / (time.perf_counter() - start)
    with Prefetch(input, spans=(range(i, i + 1) for i in itertools.count())) as items:
        sides = {"lingo": lambda: rate(ours(items))}
        if case.theirs is not None:
            batches = case.theirs().prefetch(2).as_numpy_iterator()
            sides["tf.data"] = lambda: rate(theirs(batches))
        rates = alternate(sides, num=ROUNDS)
    note = "".join(f"{statistics.median(r) / 1e6:9.2f}" for r in rates.values())
    ratio = ratios(*rates.values()) if len(rates) > 1 else None
    report.line(case.name, ratio, note=f"{index:6.1f}{note}")


def _bytes(input: Any) -> int:
    """Returns how many bytes the index of an input reads."""
    if isinstance(input, Mixture):
        return sum(map(_bytes, input.inputs.values()))
    return sum(file.size for file in input.index.files)


def cases(folder: Path) -> list[Case]:
    """Writes the files of all cases into a folder, and returns these."""
    source = InstalledSource.params(package=PACKAGE)
    index = open_index(source.build(), ByteTokenizer.params().build())
    paths = [file.path for file in index.files if file.size]
    texts = [Path(path).read_bytes() for path in paths]
    jsonl, records, model = (str(folder / name) for name in ("a.jsonl", "a.tfrecord", "a.model"))
    Path(jsonl).write_text("".join(json.dumps({"text": t.decode()}) + "\n" for t in texts))
    with tf.io.TFRecordWriter(records) as writer:
        for text in texts:
            value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
            example = tf.train.Example(features=tf.train.Features(feature={"text": value}))
            writer.write(example.SerializeToString())
    sample = learned_tokenizer.sample([index], max_bytes=1_000_000)
    Path(model).write_bytes(sentence_piece.train(sample, vocab_size=VOCAB_SIZE))
    tokenizer = sentence_piece.SentencePiece.params(model=model, vocab_size=VOCAB_SIZE)
    spec = {"text": tf.io.FixedLenFeature([], tf.string)}

    def files() -> Any:
        return tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).map(tf.io.read_file)

    def lines() -> Any:
        lines = tf.data.TextLineDataset(jsonl).shuffle(SHUFFLE_ROWS)
        return lines.map(lambda line: tf.numpy_function(_field, [line], tf.string))

    def examples() -> Any:
        serialized = tf.data.TFRecordDataset(records).shuffle(SHUFFLE_ROWS)
        return serialized.map(lambda record: tf.io.parse_single_example(record, spec)["text"])

    data = TextInput.params(source=source, batch_size=BATCH_SIZE, length=LENGTH)
    part = data.copy()
    del part.batch_size
    english = part.copy().set(source=Docstrings.params(packages=[PACKAGE]))
    mixture = Mixture.params(batch_size=BATCH_SIZE, inputs={"source": part, "english": english})
    bucketed = BucketedInput.params(source=source, batch_size=BATCH_SIZE, boundaries=BOUNDARIES)

    return [
        Case("files, stream, bytes", data, lambda: rows(as_bytes(files()))),
        Case("files, bins, bytes", data.copy().set(packing="bins")),
        Case("files, buckets, bytes", bucketed, lambda: buckets(as_bytes(files()))),
        Case(
            "files, stream, SentencePiece",
            data.copy().set(tokenizer=tokenizer),
            lambda: rows(as_pieces(files(), model)),
        ),
        Case(
            "JSONL, stream, bytes",
            data.copy().set(source=JsonLines.params(pattern=jsonl)),
            lambda: rows(as_bytes(lines())),
        ),
        Case(
            "TFRecord, stream, bytes",
            data.copy().set(source=TfRecords.params(pattern=records)),
            lambda: rows(as_bytes(examples())),
        ),
        Case("docstrings, stream, bytes", data.copy().set(source=english.source.copy())),
        Case(
            "doctests, bins, bytes",
            data.copy().set(source=Doctests.params(packages=[PACKAGE]), packing="bins"),
        ),
        Case("mixture of files and docstrings", mixture),
    ]


def _field(line: bytes) -> bytes:
    return json.loads(line)["text"].encode()


def run(report: Report) -> None:
    """Compares every case."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # every index is made anew
        report.table("tokens a second / tf.data", "index MB/s, M tokens/s")
        for case in cases(Path(folder)):
            compare(case, report)
