"""Connectionist temporal classification: losses, feasible labels, decoding (Graves et al. 2006).

Class 0 is the blank. A path has one class per frame; repeated classes merge, then blanks go.

Axes: B utterances, T frames, V classes with the blank, U labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.shape import size_of

BLANK = 0
"""The class of the blank."""


class CtcLosses(NamedTuple):
    """Losses, and whether they count."""

    losses: tf.Tensor  # float32 [B], nats per utterance; 0 if no path gives the labels
    is_feasible: tf.Tensor  # bool [B], whether a path gives the labels


def ctc_losses(
    logits: tf.Tensor, labels: tf.Tensor, num_frames: tf.Tensor, num_labels: tf.Tensor
) -> CtcLosses:
    """Returns -log p(labels) of each utterance, not divided by its length.

    TensorFlow gives a finite loss near 700 where no path gives the labels, so these utterances have
    loss 0 and no gradient here, and `is_feasible` tells them apart.

    Args:
        logits: float [B, T, V], before the softmax.
        labels: int32 [B, U], in 1..V - 1; what follows an utterance's labels does not matter.
        num_frames: int32 [B]; later frames are padding.
        num_labels: int32 [B].

    >>> logits = tf.constant([[[1.0, 2, 0], [0, 1, 2], [2, 0, 1], [1, 1, 0]]])
    >>> args = tf.constant([[1, 2]]), tf.constant([4]), tf.constant([2])
    >>> ctc_losses(logits, *args).losses.numpy().round(4)
    array([1.3491], dtype=float32)
    """
    num_frames, num_labels = (tf.cast(n, tf.int32) for n in (num_frames, num_labels))
    is_feasible = ctc_is_feasible(labels, num_frames, num_labels)
    is_label = tf.sequence_mask(num_labels, size_of(labels, 1))
    losses = tf.nn.ctc_loss(
        labels=tf.where(is_label, tf.cast(labels, tf.int32), BLANK),
        logits=tf.cast(logits, tf.float32),
        # An utterance without a path gets no labels: its gradient is finite, and not used.
        label_length=tf.where(is_feasible, num_labels, 0),
        logit_length=num_frames,
        logits_time_major=False,
        blank_index=BLANK,
    )
    return CtcLosses(tf.where(is_feasible, losses, 0.0), is_feasible)


def ctc_is_feasible(labels: tf.Tensor, num_frames: tf.Tensor, num_labels: tf.Tensor) -> tf.Tensor:
    """Returns whether a path gives an utterance's labels, bool [B].

    A path needs a frame per label, and one more between equal neighbours. Arguments are as in
    `ctc_losses`.

    >>> labels = tf.constant([[1, 1], [1, 2]])
    >>> ctc_is_feasible(labels, tf.constant([2, 2]), tf.constant([2, 2])).numpy()
    array([False,  True])
    """
    is_label = tf.sequence_mask(num_labels, size_of(labels, 1))
    repeats = tf.equal(labels[:, 1:], labels[:, :-1]) & is_label[:, 1:]
    needed = tf.cast(num_labels, tf.int32) + tf.reduce_sum(tf.cast(repeats, tf.int32), axis=1)
    return needed <= tf.cast(num_frames, tf.int32)


class Decoded(NamedTuple):
    """Labels of some utterances."""

    labels: tf.Tensor  # int32 [B, T]; what follows an utterance's labels is 0
    num_labels: tf.Tensor  # int32 [B]


def ctc_greedy(logits: tf.Tensor, num_frames: tf.Tensor) -> Decoded:
    """Returns the labels of each utterance's likeliest path.

    Args:
        logits: float [B, T, V].
        num_frames: int32 [B]; later frames are padding.

    >>> logits = tf.constant([[[1.0, 2, 0], [0, 1, 2], [2, 0, 1], [1, 1, 0]]])
    >>> ctc_greedy(logits, tf.constant([4])).labels.numpy().tolist()
    [[1, 2, 0, 0]]
    """
    path = tf.argmax(logits, axis=-1, output_type=tf.int32)
    before = tf.pad(path[:, :-1], [[0, 0], [1, 0]], constant_values=BLANK)
    is_frame = tf.sequence_mask(num_frames, size_of(path, 1))
    is_kept = (path != BLANK) & (path != before) & is_frame
    # A stable sort moves what is kept to the front.
    order = tf.argsort(tf.cast(~is_kept, tf.int32), axis=1, stable=True)
    labels = tf.gather(tf.where(is_kept, path, BLANK), order, batch_dims=1)
    return Decoded(labels, tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1))


# ---- prefix beam search ------------------------------------------------------------------------

Scorer = Callable[[tuple[int, ...], int], float]
"""Returns the log-score of a label after some labels, which a prefix beam search adds."""


class Hypothesis(NamedTuple):
    """Labels that a prefix beam search found."""

    labels: tuple[int, ...]
    log_probability: float  # of all paths in the beam that give the labels, scores included


class _Prefix(NamedTuple):
    """The log-probabilities of the paths that give a prefix, by their last class."""

    blank: float
    label: float
    score: float  # sum of the scorer's values

    @property
    def total(self) -> float:
        return _log_add(self.blank, self.label)


_NO_PATH = -math.inf


def ctc_prefix_beam(
    log_probabilities: np.ndarray,
    *,
    beam_size: int,
    num_hypotheses: int = 1,
    scorer: Scorer | None = None,
) -> list[Hypothesis]:
    """Returns the likeliest labels of one utterance, best first (Hannun et al. 2014, algorithm 1).

    Paths of equal labels are added up, unlike in a greedy search. With a beam that holds all
    prefixes, the result is exact.

    Args:
        log_probabilities: float [T, V], logarithms of class probabilities.
        beam_size: prefixes that are kept after each frame.
        num_hypotheses: labels to return, at most.
        scorer: adds a score to each new label, such as a language model's.

    >>> probabilities = np.array([[0.6, 0.4], [0.6, 0.4]])
    >>> ctc_prefix_beam(np.log(probabilities), beam_size=4)[0].labels
    (1,)
    """
    if beam_size < 1:
        raise ValueError(f"{beam_size=} is not positive")
    beam = {(): _Prefix(0.0, _NO_PATH, 0.0)}
    for frame in np.asarray(log_probabilities, np.float64):
        beam = _kept(_extended(beam, frame.tolist(), scorer), beam_size)
    found = [Hypothesis(labels, p.total + p.score) for labels, p in beam.items()]
    found.sort(key=lambda one: (-one.log_probability, one.labels))
    return found[:num_hypotheses]


def _extended(
    beam: dict[tuple[int, ...], _Prefix], frame: Sequence[float], scorer: Scorer | None
) -> dict[tuple[int, ...], _Prefix]:
    """Returns all prefixes after one more frame, [V] logarithms; equal prefixes are merged."""
    after: dict[tuple[int, ...], _Prefix] = {}

    def add(labels: tuple[int, ...], blank: float, label: float, score: float) -> None:
        old = after.get(labels, _Prefix(_NO_PATH, _NO_PATH, score))
        after[labels] = _Prefix(_log_add(old.blank, blank), _log_add(old.label, label), score)

    for labels, prefix in beam.items():
        last = labels[-1] if labels else BLANK
        repeated = prefix.label + frame[last] if labels else _NO_PATH
        add(labels, prefix.total + frame[BLANK], repeated, prefix.score)
        for symbol, log_p in enumerate(frame):
            if symbol == BLANK or log_p == _NO_PATH:
                continue
            # A repeat is a new label only after a blank.
            start = prefix.blank if symbol == last else prefix.total
            if start == _NO_PATH:
                continue
            score = prefix.score + (scorer(labels, symbol) if scorer else 0.0)
            add((*labels, symbol), _NO_PATH, start + log_p, score)
    return after


def _kept(beam: dict[tuple[int, ...], _Prefix], size: int) -> dict[tuple[int, ...], _Prefix]:
    """Returns the best `size` prefixes; ties go to the smaller labels."""
    best = sorted(beam.items(), key=lambda item: (-(item[1].total + item[1].score), item[0]))
    return dict(best[:size])


def _log_add(a: float, b: float) -> float:
    """Returns log(e**a + e**b)."""
    high, low = max(a, b), min(a, b)
    return high if low == _NO_PATH else high + math.log1p(math.exp(low - high))
