"""Connectionist temporal classification: losses, feasible labels, decoding (Graves et al. 2006).

Class 0 is the blank. A path has one class per frame; repeated classes merge, then blanks go.

Axes: B utterances, T frames, V classes with the blank, U labels, N = 2 U + 1 nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.scan import scan
from lingo.ops.shape import size_of
from lingo.ops.speech.lattice import NEVER, log_add, shift_nodes

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

    An utterance whose labels no path gives has loss 0 and no gradient, and `is_feasible` tells it.
    `tf.nn.ctc_loss` adds operations with a state, which a step that can be resumed must not have.

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
    is_label = tf.sequence_mask(num_labels, size_of(labels, 1))
    labels = tf.where(is_label, tf.cast(labels, tf.int32), BLANK)
    nodes = _with_blanks(labels)
    log_p = tf.transpose(tf.nn.log_softmax(tf.cast(logits, tf.float32)), [0, 2, 1])
    emissions = tf.transpose(tf.gather(log_p, nodes, axis=1, batch_dims=1), [2, 0, 1])
    is_feasible = ctc_is_feasible(labels, num_frames, num_labels)

    @tf.custom_gradient
    def losses(emissions: tf.Tensor) -> Any:
        paths = _Paths(emissions, _skips(nodes), num_frames, 2 * num_labels)
        forward, total = _forward(paths)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            scale = tf.where(is_feasible, -upstream, 0.0)
            occupied = forward + _backward(paths) - total[:, None]
            return scale[:, None] * tf.exp(tf.minimum(occupied, 0.0))

        return tf.where(is_feasible, -total, 0.0), gradient

    return CtcLosses(losses(emissions), is_feasible)


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


# ---- all paths of some labels ------------------------------------------------------------------


class _Paths(NamedTuple):
    """The lattice of paths that give the labels: a node per label and per blank around them."""

    emissions: tf.Tensor  # float32 [T, B, N], log-probability of each node's class in each frame
    skips: tf.Tensor  # float32 [B, N], 0 if a path may enter a node from two before it, or NEVER
    num_frames: tf.Tensor  # int32 [B]
    last: tf.Tensor  # int32 [B], the last node; a path ends there or one node before

    def ends(self) -> tf.Tensor:
        """Returns 0 at nodes where a path may end, and NEVER elsewhere, float32 [B, N]."""
        node, last = tf.range(size_of(self.skips, 1)), self.last[:, None]
        return tf.where((node <= last) & (node >= last - 1), 0.0, NEVER)


def _with_blanks(labels: tf.Tensor) -> tf.Tensor:
    """Returns the class of each node, int32 [B, N]: labels [B, U] with blanks around them."""
    pairs = tf.stack([tf.zeros_like(labels), labels], axis=2)
    flat = tf.reshape(pairs, [size_of(labels, 0), 2 * size_of(labels, 1)])
    return tf.pad(flat, [[0, 0], [0, 1]], constant_values=BLANK)


def _skips(nodes: tf.Tensor) -> tf.Tensor:
    """Returns 0 where a blank may be left out before a node, else NEVER, float32 [B, N]."""
    before = tf.pad(nodes, [[0, 0], [2, 0]], constant_values=BLANK)[:, :-2]
    return tf.where(tf.not_equal(nodes, BLANK) & tf.not_equal(nodes, before), 0.0, NEVER)


def _forward(paths: _Paths) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log-sums of the paths to each node, [T, B, N], and of whole paths, [B]."""
    emissions, skips, num_frames, _ = paths
    first = tf.where(tf.equal(tf.range(size_of(skips, 1)), 0), 0.0, NEVER) + tf.zeros_like(skips)

    def body(t: tf.Tensor, sums: tf.Tensor, emitted: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        near = log_add(sums, shift_nodes(sums, 1))
        reached = log_add(near, shift_nodes(sums, 2) + skips)
        after = tf.maximum(reached + emitted, NEVER)
        after = tf.where((t < num_frames)[:, None], after, sums)
        return after, after

    last, sums = scan(body, first, emissions, size_of(emissions, 0))
    return sums, tf.reduce_logsumexp(last + paths.ends(), axis=1)


def _backward(paths: _Paths) -> tf.Tensor:
    """Returns log-sums of the paths from each node to the end, [T, B, N]; NEVER in padding."""
    emissions, skips, num_frames, _ = paths
    ends = paths.ends()

    def body(t: tf.Tensor, after: tf.Tensor, emitted: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        near = log_add(after, shift_nodes(after, -1))
        sums = log_add(near, shift_nodes(after + skips, -2))
        left = (num_frames - 1 - t)[:, None]
        sums = tf.where(tf.equal(left, 0), ends, tf.where(left > 0, sums, NEVER))
        return tf.maximum(sums + emitted, NEVER), sums

    start = tf.fill([size_of(skips, 0), size_of(skips, 1)], NEVER)
    _, sums = scan(body, start, emissions, size_of(emissions, 0), is_reversed=True)
    return sums


# ---- greedy decoding -----------------------------------------------------------------------------


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
    is_kept = tf.not_equal(path, BLANK) & tf.not_equal(path, before) & is_frame
    # A stable sort moves what is kept to the front.
    order = tf.argsort(tf.cast(~is_kept, tf.int32), axis=1, stable=True)
    labels = tf.gather(tf.where(is_kept, path, BLANK), order, batch_dims=1)
    return Decoded(labels, tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1))


# ---- prefix beam search ------------------------------------------------------------------------

Scorer = Callable[[tuple[int, ...]], np.ndarray]
"""Returns the log-scores of all next classes after some labels, float [V]; a beam adds them."""


class Hypothesis(NamedTuple):
    """Labels that a prefix beam search found."""

    labels: tuple[int, ...]
    log_probability: float  # of all paths in the beam that give the labels, scores included


class _Beam(NamedTuple):
    """Prefixes of labels; log-probabilities of their paths by the last class; P prefixes."""

    labels: list[tuple[int, ...]]  # [P]
    blank: np.ndarray  # float64 [P], paths that end in a blank
    label: np.ndarray  # float64 [P], paths that end in the last label
    score: np.ndarray  # float64 [P], sums of the scorer's values


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
    beam = _Beam([()], np.zeros(1), np.full(1, -np.inf), np.zeros(1))
    for frame in np.asarray(log_probabilities, np.float64):
        beam = _advance(beam, frame, beam_size, scorer)
    ranks = np.logaddexp(beam.blank, beam.label) + beam.score
    found = map(Hypothesis, beam.labels, ranks.tolist())
    return sorted(found, key=lambda one: (-one.log_probability, one.labels))[:num_hypotheses]


def _advance(beam: _Beam, frame: np.ndarray, beam_size: int, scorer: Scorer | None) -> _Beam:
    """Returns the best prefixes after one more frame, float64 [V] logarithms."""
    num, num_classes = len(beam.labels), len(frame)
    total = np.logaddexp(beam.blank, beam.label)
    last = np.array([labels[-1] if labels else BLANK for labels in beam.labels])
    blank = total + frame[BLANK]
    label = np.where(last == BLANK, -np.inf, beam.label + frame[last])
    longer = total[:, None] + frame
    # A repeat is a new label only after a blank.
    longer[np.arange(num), last] = beam.blank + frame[last]
    longer[:, BLANK] = -np.inf
    scores = np.repeat(beam.score[:, None], num_classes, axis=1)
    if scorer is not None:
        scores = scores + np.array([scorer(labels) for labels in beam.labels])
    at = {labels: i for i, labels in enumerate(beam.labels)}
    for i, labels in enumerate(beam.labels):
        parent = at.get(labels[:-1]) if labels else None
        if parent is not None:  # the same labels by two ways: one prefix
            label[i] = np.logaddexp(label[i], longer[parent, labels[-1]])
            longer[parent, labels[-1]] = -np.inf
    ranks = np.concatenate([np.logaddexp(blank, label) + beam.score, (longer + scores).ravel()])
    chosen = _best(ranks, beam_size)
    old, new = chosen[chosen < num], chosen[chosen >= num] - num
    rows, classes = np.divmod(new, num_classes)
    pairs = zip(rows.tolist(), classes.tolist(), strict=True)
    return _Beam(
        [beam.labels[i] for i in old] + [(*beam.labels[row], symbol) for row, symbol in pairs],
        np.concatenate([blank[old], np.full(len(new), -np.inf)]),
        np.concatenate([label[old], longer[rows, classes]]),
        np.concatenate([beam.score[old], scores[rows, classes]]),
    )


def _best(ranks: np.ndarray, num: int) -> np.ndarray:
    """Returns the indices of the `num` largest numbers that are finite; ties go to the first."""
    finite = np.flatnonzero(ranks > -np.inf)
    if len(finite) <= num:
        return finite
    least = np.partition(ranks[finite], -num)[-num]
    candidates = finite[ranks[finite] >= least]
    order = np.argsort(-ranks[candidates], kind="stable")
    return candidates[order[:num]]
