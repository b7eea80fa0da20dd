"""Recordings with transcripts as an input: log-mel features in buckets of similar length.

    AudioInput.params(source=JsonlAudio.params(file="clips.jsonl"), batch_size=16)

Axes: B examples of a batch, T frames, D features of a frame, U labels, N recordings.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import Operational
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.audio.request import AudioRequests
from lingo.data.audio.source import AudioFiles, AudioSource, SampleCounter
from lingo.data.audio.waveform import BrokenAudio, decode
from lingo.data.bucketed_input import Bucketed, Buckets, rows_of_equal_size
from lingo.data.files import DataError
from lingo.data.index import Index, Progress, open_index
from lingo.data.packing import Piece
from lingo.data.prompt import Answer
from lingo.data.request import RequestReader
from lingo.data.tokenizer import ByteTokenizer, Tokenizer
from lingo.metrics.media import Audio, Media, Table
from lingo.metrics.transcript import normalize_transcript, word_error_results, word_errors
from lingo.ops import random
from lingo.ops.speech.log_mel import LogMel

_MAX_SOUNDS = 4  # recordings whose sound is shown

MEASURES = ("wer", "oracle_wer", "sentence_accuracy")
"""What `AudioInput.score` returns."""


class Utterances(NamedTuple):
    """The recordings that an input has, without those that are left out."""

    index: Index
    documents: np.ndarray  # int64 [N], in the index
    num_frames: np.ndarray  # int64 [N]
    texts: list[str]  # [N], transcripts
    labels: list[np.ndarray]  # [N], int32 [number of labels]
    left_out: dict[str, int]  # reason -> number of recordings


class FeatureStatistics(NamedTuple):
    """Mean and standard deviation of each mel bin, [M], for `LogMel.mean` and `LogMel.stddev`."""

    mean: list[float]
    stddev: list[float]


class AudioInput(Bucketed):
    """Log-mel features and labels of recordings; one bucket of lengths per batch.

    Features are computed on the host in float64. `batch_size` is the number of rows in a batch of
    the last bucket; with `constant_frames`, batches of other buckets have more. Left out, and told
    in the remarks, are recordings without a frame or with more than the last boundary, and empty
    or too long transcripts. Opening the data reads all files once and makes an index, which later
    runs use.

    Batches: `features`, float32 [B, T, D], 0 in padding; `num_frames`, int32 [B]; and, if there are
    transcripts, `labels`, int32 [B, U], the tokens without start and end, padded with `pad_id`, and
    `num_labels`, int32 [B].
    """

    source: AudioSource  # where the recordings are
    front_end: LogMel = LogMel  # computes features
    tokenizer: Tokenizer = ByteTokenizer  # turns transcripts into labels
    boundaries: list[int] = [400, 800, 1200, 1600]  # frames per row of each bucket, after stacking
    constant_frames: bool = True  # more rows in shorter buckets, for about equal frames per batch
    max_labels: int = 400  # U; recordings with longer transcripts are left out
    normalizes_text: bool = False  # lower case, and no punctuation but ' and -
    scores_text: bool = False  # evaluations report word errors; the task must predict `labels`
    shuffle: bool = True  # a new order each epoch; False: the order of names in each bucket
    cache: Operational[bool] = False  # keep features in memory

    thread_safe = True
    text_ids = ("labels", "num_labels")

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "max_labels")

    def setup(self) -> None:
        self.source, self.front_end = self.p.source.build(), self.p.front_end.build()
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size
        if self.p.cache and self.p.front_end.noise_stddev:
            raise ParamError(
                "cache=True keeps features, but front_end.noise_stddev changes them in each epoch:"
                " set one of them to its default"
            )
        self._kept_features: dict[int, np.ndarray] = {}

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the metrics that `score` returns; () without `scores_text`."""
        return MEASURES if self.p.scores_text and self.source.has_transcripts else ()

    def offers(self) -> dict[str, Any]:
        """Returns the number of token ids, D, the features of a frame, and U, the most labels."""
        return {
            "vocab_size": self.vocab_size,
            "feature_dim": self.front_end.dim,
            "max_labels": self.p.max_labels,
        }

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of an input of other recordings, which needs no transcripts.

        `path` is a file, a folder of files at any depth, or a glob. Rows are in the order of names,
        in one bucket, which is as long as the longest recording if that exceeds the boundaries.
        """
        front_end = self.p.front_end.copy().set(noise_stddev=0.0)
        source = AudioFiles.params(pattern=path, max_seconds=self.source.p.max_seconds)
        samples = _open_index(source.build(), self.front_end, None).units
        longest = int(self.front_end.num_stacks(int(samples.max())))
        single = {"shuffle": False, "repeat": False, "max_batches": None, "scores_text": False}
        boundaries = [max(longest, self.p.boundaries[-1])]
        return self.p.copy().set(
            source=source, front_end=front_end, boundaries=boundaries, cache=False, **single
        )

    def request_reader(self) -> RequestReader:
        front_end = self.p.front_end.copy().set(noise_stddev=0.0).build()
        program, key = _make_program(front_end), random.Key(*np.zeros([2, 1], np.uint32))
        return AudioRequests(
            front_end, lambda samples: program(samples, key), max_frames=self.p.boundaries[-1]
        )

    def example_names(self, numbers: np.ndarray) -> list[str]:
        """Returns the file of each recording, [B]."""
        documents = self.utterances.documents[self._row_utterances[numbers]]
        places = map(self.utterances.index.where, documents.tolist())
        return [os.fsencode(place).decode(errors="replace") for place in places]

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data; raises DataError if it is missing or damaged."""
        if "utterances" not in self.__dict__:
            self.utterances = self._open(progress)

    @functools.cached_property
    def utterances(self) -> Utterances:
        """The recordings; opened at first use."""
        return self._open(None)

    def specs(self) -> dict[str, ArraySpec]:
        size, p = self.p.batch_size, self.p
        specs = super().specs() | {
            "features": ((size, p.boundaries[-1], self.front_end.dim), "float32"),
            "num_frames": ((size,), "int32"),
        }
        if not self.source.has_transcripts:
            return specs
        labels = {"labels": ((size, p.max_labels), "int32"), "num_labels": ((size,), "int32")}
        return specs | labels

    def fill(
        self, pieces: Sequence[Piece | None], numbers: np.ndarray, *, length: int
    ) -> dict[str, np.ndarray]:
        """Returns the arrays that `AudioInput` lists; see `Bucketed.fill`."""
        size = len(pieces)
        arrays = {
            "features": np.zeros([size, length, self.front_end.dim], np.float32),
            "num_frames": np.zeros(size, np.int32),
        }
        if self.source.has_transcripts:
            arrays["labels"] = np.full([size, self.p.max_labels], self.tokenizer.pad_id, np.int32)
            arrays["num_labels"] = np.zeros(size, np.int32)
        for row, (piece, number) in enumerate(zip(pieces, numbers.tolist(), strict=True)):
            if piece is None:
                continue
            features = self.features(piece.document, number)
            arrays["features"][row, : len(features)] = features
            arrays["num_frames"][row] = len(features)
            if self.source.has_transcripts:
                labels = self.utterances.labels[piece.document]
                arrays["labels"][row, : len(labels)] = labels
                arrays["num_labels"][row] = len(labels)
        return arrays

    def features(self, utterance: int, number: int = 0) -> np.ndarray:
        """Returns the features of an utterance, float32 [T, D]; the example's number draws noise.

        Raises DataError if its file cannot be read, has changed, or is damaged.
        """
        if (kept := self._kept_features.get(utterance)) is not None:
            return kept
        samples = self.samples(utterance)
        root = random.fold(random.root_key(self.p.seed), random.text_hash("noise"))
        numbers = np.array([number])
        keys = random.fold(random.fold(root, numbers >> 32), numbers)
        features = self._program(samples, keys)
        if self.p.cache:
            self._kept_features[utterance] = features
        return features

    def statistics(self, max_utterances: int = 1000) -> FeatureStatistics:
        """Returns the statistics of mel bins before normalization, over evenly chosen utterances.

        Raises DataError as `features` does.
        """
        settings = self.p.front_end.copy().set(mean=[], stddev=[], noise_stddev=0.0)
        front_end = settings.build()
        num = len(self.utterances.documents)
        chosen = np.unique(np.linspace(0, num - 1, min(max_utterances, num)).astype(np.int64))
        sums, frames = np.zeros([2, settings.num_bins]), 0
        for utterance in chosen.tolist():
            with tf.device("CPU:0"):
                spectra = front_end.spectra(tf.constant(self.samples(utterance)[None])).numpy()[0]
            sums += spectra.sum(axis=0), np.square(spectra).sum(axis=0)
            frames += len(spectra)
        mean, square = sums / frames
        stddev = np.sqrt(np.maximum(square - mean**2, 1e-6))
        return FeatureStatistics(mean.round(4).tolist(), stddev.round(4).tolist())

    def samples(self, utterance: int) -> np.ndarray:
        """Returns the samples of an utterance, float64 [L]; raises DataError as `features` does."""
        index, document = self.utterances.index, int(self.utterances.documents[utterance])
        (data,) = index.texts(np.array([document]))
        limits = {"sample_rate": self.front_end.p.sample_rate, "max_seconds": self._max_seconds}
        try:
            return decode(data, **limits)
        except BrokenAudio as error:
            raise DataError(
                f"{index.where(document)}: the recording cannot be decoded: {error}. Replace it, or"
                " leave it out."
            ) from None

    def score(self, predictions: Mapping[str, np.ndarray]) -> tuple[dict[str, float], list[Answer]]:
        """Returns the measures of `MEASURES`, by `word_error_results`, and the transcripts.

        `predictions` has `labels`, int32 [N, U], or [N, K, U] with the best of K hypotheses first,
        and `num_labels`, int32 [N] or [N, K].
        """
        texts = self._hypotheses(predictions)
        order = self._row_utterances[self._row_utterances >= 0][: len(texts)]
        references = [self.utterances.texts[utterance] for utterance in order.tolist()]
        results = word_error_results(word_errors(references, texts))
        names = map(self.utterances.index.where, self.utterances.documents[order].tolist())
        answers = [Answer(n, r, t[0]) for n, r, t in zip(names, references, texts, strict=True)]
        return {name: results.get(name, np.nan) for name in MEASURES}, answers

    def describe_predictions(self, predictions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns predictions with `audio`, the file, and `text`, the transcript, both str [B].

        If the task predicts K hypotheses, `text` is the first, and `texts`, str [B, K], has all.
        Predictions without `labels` and `num_labels`, as `score` takes them, have no text.
        """
        found = dict(predictions)
        first = {"audio": found.pop("file")} if "file" in found else {}
        if self._has_transcripts(predictions):
            several, shape = self._hypotheses(predictions), predictions["num_labels"].shape
            texts = np.array(several, str).reshape(len(several), *(shape[1:] or [1]))
            first["text"] = texts[:, 0]
            if len(shape) == 2:
                first["texts"] = texts
        return first | found

    def summaries(
        self, numbers: np.ndarray, predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media]:
        """Returns the sound of the first recordings, and transcripts next to predicted ones."""
        names = self.example_names(numbers)
        utterances = self._row_utterances[numbers]
        sounds = [_as_int16(self.samples(one)) for one in utterances[:_MAX_SOUNDS].tolist()]
        rate, references = self.front_end.p.sample_rate, self.utterances.texts
        columns = {"audio": names}
        if self.source.has_transcripts:
            columns["reference"] = [references[one] for one in utterances.tolist()]
        if self._has_transcripts(predictions):
            columns["hypothesis"] = [first for first, *_ in self._hypotheses(predictions)]
        rows = zip(*columns.values(), strict=True)
        captions = [": ".join(row[:2]) for row in rows][:_MAX_SOUNDS]
        return {
            "recordings": Audio(sounds, rate, captions),
            "transcripts": Table(columns),
        }

    def _has_transcripts(self, predictions: Mapping[str, np.ndarray]) -> bool:
        """Returns whether predictions have `labels`, [B, U] or [B, K, U], and their numbers."""
        if not all(name in predictions for name in self.text_ids):
            return False
        labels, sizes = (predictions[name] for name in self.text_ids)
        is_whole = labels.dtype.kind in "iu" and sizes.dtype.kind in "iu"
        return is_whole and labels.ndim in (2, 3) and labels.shape[:-1] == sizes.shape

    def _hypotheses(self, predictions: Mapping[str, np.ndarray]) -> list[list[str]]:
        """Returns the texts of each prediction, [B][K], the best first."""
        labels, sizes = predictions["labels"], predictions["num_labels"]
        if labels.ndim == 2:
            labels, sizes = labels[:, None], sizes[:, None]
        return [
            [self.tokenizer.decode(ids[:size]) for ids, size in zip(every, counts, strict=True)]
            for every, counts in zip(labels, sizes, strict=True)
        ]

    def fingerprint(self) -> dict[str, Any]:
        """Returns the source, the number of recordings, their seconds, and a digest.

        The digest is of the names and contents of files, and of the transcripts.
        """
        index, texts = self.utterances.index, self.utterances.texts
        return {
            "source": self.source.describe(),
            "tokenizer": self.tokenizer.describe(),
            "recordings": len(texts),
            "seconds": round(float(self._seconds.sum()), 3),
            "digest": hashlib.sha256("\n".join([index.digest, *texts]).encode()).hexdigest(),
            "damaged": index.damage.records,
        }

    def remarks(self) -> list[str]:
        seconds, damage = self._seconds, self.utterances.index.damage
        total = seconds.sum() / 3600
        in_all = f"{total:.1f} hours" if total >= 1 else f"{60 * total:.1f} minutes"
        found = [
            f"{_count(len(seconds))} of {seconds.min():.2f} to {seconds.max():.2f} seconds,"
            f" {in_all} in all"
        ]
        if damage.records:
            found.append(f"left out {damage}")
        left_out = self.utterances.left_out.items()
        return found + [f"left out {_count(num)} {reason}" for reason, num in left_out if num]

    @property
    def _seconds(self) -> np.ndarray:
        """The duration of each recording, float64 [N]."""
        units = self.utterances.index.units[self.utterances.documents]
        return units / self.front_end.p.sample_rate

    @property
    def _max_seconds(self) -> float:
        return self.source.p.max_seconds

    @functools.cached_property
    def _plan(self) -> Buckets:
        return Buckets(
            self.utterances.num_frames,
            boundaries=self.p.boundaries,
            rows=self._rows(),
            seed=self.p.seed if self.p.shuffle else None,
        )

    def _rows(self) -> list[int]:
        if not self.p.constant_frames:
            return super()._rows()
        return rows_of_equal_size(self.p.boundaries, self.p.batch_size)

    @functools.cached_property
    def _row_utterances(self) -> np.ndarray:
        """The utterance in each row of the first epoch, int64 [rows]; -1 for padding."""
        rows = np.full(self._plan.num_rows, -1, np.int64)
        for index in range(self._plan.num_batches):
            plan = self._plan.batch(0, index)
            own = slice(plan.rows_before, plan.rows_before + len(plan.pieces))
            rows[own] = [piece.document for piece in plan.pieces]
        return rows

    @functools.cached_property
    def _program(self) -> Callable[[np.ndarray, random.Key], np.ndarray]:
        return _make_program(self.front_end)

    def _open(self, progress: Progress | None) -> Utterances:
        source = self.source
        texts = source.transcripts() if source.has_transcripts else {}
        index = _open_index(source, self.front_end, progress)
        frames = np.array([self.front_end.num_stacks(n) for n in index.units.tolist()], np.int64)
        names = [index.files[file].name for file in index.file_id.tolist()]
        texts = [self._text(texts.get(name, "")) for name in names]
        labels = [self.tokenizer.encode(text) for text in texts]
        kept, left_out = np.ones(len(frames), bool), dict[str, int]()
        for reason, applies in self._reasons(frames, labels).items():
            left_out[reason] = int((kept & applies).sum())
            kept &= ~applies
        if not kept.any():
            told = "; ".join(f"{_count(num)} {reason}" for reason, num in left_out.items() if num)
            raise DataError(f"{source.describe()}: no recording is left: {told}.")
        own = np.flatnonzero(kept)
        return Utterances(
            index, own, frames[own], [texts[i] for i in own], [labels[i] for i in own], left_out
        )

    def _reasons(self, frames: np.ndarray, labels: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns reason to leave recordings out -> whether it applies to each, bool [N]."""
        p, sizes = self.p, np.array([len(one) for one in labels])
        last = p.boundaries[-1]
        reasons = {
            "shorter than a frame": frames < 1,
            f"of more than {last:,} frames, the last of boundaries": frames > last,
        }
        if self.source.has_transcripts:
            reasons["with an empty transcript"] = sizes < 1
            reasons[f"with more than max_labels={p.max_labels} labels"] = sizes > p.max_labels
        return reasons

    def _text(self, text: str) -> str:
        text = normalize_transcript(text) if self.p.normalizes_text else text
        return " ".join(text.split())


def _make_program(front_end: LogMel) -> Callable[[np.ndarray, random.Key], np.ndarray]:
    """Returns a function (samples [L], key's words [1]) -> features, float32 [T, D].

    Its program computes the weights of mel bins once: they take as long as all the rest for one
    recording.
    """
    words = tf.TensorSpec([1], tf.uint32)

    def compute(samples: tf.Tensor, high: tf.Tensor, low: tf.Tensor) -> tf.Tensor:
        values = front_end(samples, tf.shape(samples)[1:], keys=random.Key(high, low)).values
        return tf.cast(values[0], tf.float32)

    specs = [tf.TensorSpec([1, None], tf.float64), words, words]
    program: Any = tf.function(compute, input_signature=specs, autograph=False)

    def features(samples: np.ndarray, key: random.Key) -> np.ndarray:
        with tf.device("CPU:0"):
            return program(samples[None], *key).numpy()

    return features


def _as_int16(samples: np.ndarray) -> np.ndarray:
    """Returns samples [L] as int16 [L, 1]."""
    return np.clip(np.round(samples), -32_768, 32_767).astype(np.int16)[:, None]


def _count(num: int) -> str:
    return f"{num:,} recording" if num == 1 else f"{num:,} recordings"


def _open_index(source: AudioSource, front_end: LogMel, progress: Progress | None) -> Index:
    """Returns the index of a source, whose units are samples at the rate of the front end."""
    counter = SampleCounter.params(
        sample_rate=front_end.p.sample_rate, max_seconds=source.p.max_seconds
    )
    return open_index(source, counter.build(), progress=progress)
