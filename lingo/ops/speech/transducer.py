"""The loss of recurrent neural network transducers (Graves 2012), exact and bounded in memory.

A path goes through a lattice of frames and labels: a blank moves to the next frame, a label to the
next label. Forward and backward sums go over anti-diagonals, whose nodes depend on the diagonal
before alone. The gradient is computed from both sums, without a graph of the steps.

`transducer_scores` makes the scores of the lattice frame by frame, so that the logits of all nodes
are never in memory together. Class 0 is the blank.

Axes: B utterances, T frames, U labels, N = U + 1 nodes per frame, V classes with the blank,
D = T + U diagonals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.scan import scan, scan_recomputed
from lingo.ops.shape import size_of, swap_leading_axes
from lingo.ops.speech.lattice import NEVER, log_add, shift_nodes

BLANK = 0
"""The class of the blank."""

Joint = Callable[[Any, Any, Any], Any]  # without names of TensorFlow, which would import it
"""(frame [B, E], predicted [B, N, P], weights) -> logits [B, N, V]."""


class TransducerScores(NamedTuple):
    """Log-probabilities of the steps from each node."""

    blank: tf.Tensor  # float32 [B, T, N], to the next frame
    label: tf.Tensor  # float32 [B, T, N], to the next label; the last node's does not count


def transducer_losses(
    scores: TransducerScores, num_frames: tf.Tensor, num_labels: tf.Tensor
) -> tf.Tensor:
    """Returns -log p(labels) of each utterance, float32 [B]; 0 for an utterance without frames.

    Args:
        scores: from `scores_of_logits` or `transducer_scores`.
        num_frames: int32 [B].
        num_labels: int32 [B].

    >>> logits = tf.zeros([1, 2, 2, 2])
    >>> scores = scores_of_logits(logits, tf.constant([[1]]))
    >>> transducer_losses(scores, tf.constant([2]), tf.constant([1])).numpy().round(4)
    array([1.3863], dtype=float32)
    """
    num_frames, num_labels = (tf.cast(n, tf.int32) for n in (num_frames, num_labels))

    @tf.custom_gradient
    def losses(blank: tf.Tensor, label: tf.Tensor) -> Any:
        lattice = _lattice(blank, label, num_frames, num_labels)
        forward, log_p = _forward(lattice)
        has_frames = num_frames > 0

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            scale = tf.where(has_frames, -upstream, 0.0)
            return _step_probabilities(lattice, forward, log_p, scale, size_of(blank, 1))

        return tf.where(has_frames, -log_p, 0.0), gradient

    return losses(scores.blank, scores.label)


def scores_of_logits(logits: tf.Tensor, labels: tf.Tensor) -> TransducerScores:
    """Returns the scores of nodes from all logits, float [B, T, N, V]; labels are int32 [B, U].

    Logits and gradient take several times the memory of the logits; `transducer_scores` avoids it.

    >>> scores = scores_of_logits(tf.zeros([1, 2, 2, 4]), tf.constant([[3]]))
    >>> scores.blank.shape.as_list(), scores.label.numpy().round(2)[0, 0].tolist()
    ([1, 2, 2], [-1.3899999856948853, -1.3899999856948853])
    """
    following = _next_labels(labels)[:, None]
    classes = tf.range(size_of(logits, 3))
    is_label = classes == following[:, :, :, None]

    @tf.custom_gradient
    def scores(logits: tf.Tensor) -> Any:
        values = tf.cast(logits, tf.float32)
        total = tf.reduce_logsumexp(values, axis=-1)
        label = tf.reduce_sum(tf.where(is_label, values, 0.0), axis=-1)

        def gradient(to_blank: tf.Tensor, to_label: tf.Tensor) -> tf.Tensor:
            both = to_blank + to_label
            share = tf.exp(tf.cast(logits, tf.float32) - total[:, :, :, None])
            own = tf.where(classes == BLANK, to_blank[:, :, :, None], 0.0)
            own += tf.where(is_label, to_label[:, :, :, None], 0.0)
            return tf.cast(own - share * both[:, :, :, None], logits.dtype)

        return (tf.gather(values, BLANK, axis=-1) - total, label - total), gradient

    return TransducerScores(*scores(logits))


def transducer_scores(
    joint: Joint, encoded: tf.Tensor, predicted: tf.Tensor, labels: tf.Tensor, weights: Any
) -> TransducerScores:
    """Returns the scores of nodes, with the logits of one frame in memory at a time.

    The gradient calls `joint` again for each frame, so it needs no more memory.

    Args:
        joint: (frame [B, E], predicted [B, N, P], weights) -> logits [B, N, V]; it computes the
            same in each call.
        encoded: float [B, T, E].
        predicted: float [B, N, P], after 0, 1, ..., U labels.
        labels: int32 [B, U].
        weights: a structure of tensors; gradients flow to these, `encoded` and `predicted` alone.

    >>> def joint(frame, predicted, w): return (frame[:, None] + predicted) @ w
    >>> args = tf.zeros([1, 2, 3]), tf.zeros([1, 2, 3]), tf.constant([[1]]), tf.zeros([3, 2])
    >>> transducer_scores(joint, *args).blank.numpy().round(4)[0, 0].tolist()
    [-0.6930999755859375, -0.6930999755859375]
    """
    following = _next_labels(labels)

    def body(i: tf.Tensor, carry: Any, frame: tf.Tensor, constants: Any) -> tuple[Any, Any]:
        del i
        predicted, following, weights = constants
        logits = tf.cast(joint(frame, predicted, weights), tf.float32)
        return carry, _node_scores(logits, following)

    frames = swap_leading_axes(encoded)
    constants = (predicted, following, weights)
    _, (blank, label) = scan_recomputed(body, (), frames, constants, size_of(frames, 0))
    return TransducerScores(swap_leading_axes(blank), swap_leading_axes(label))


def _next_labels(labels: tf.Tensor) -> tf.Tensor:
    """Returns the label after each node, int32 [B, N]; the blank after the last node."""
    return tf.pad(tf.cast(labels, tf.int32), [[0, 0], [0, 1]], constant_values=BLANK)


def _node_scores(logits: tf.Tensor, following: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scores of blanks and labels, [B, N], of one frame's logits [B, N, V]."""
    total = tf.reduce_logsumexp(logits, axis=-1)
    label = tf.gather(logits, following, axis=2, batch_dims=2)
    return logits[:, :, BLANK] - total, label - total


# ---- the lattice, by diagonals -----------------------------------------------------------------


class _Lattice(NamedTuple):
    """The scores of nodes by diagonal: diagonal d has the nodes (t, u) with t + u = d."""

    blank: tf.Tensor  # float32 [D, B, N], NEVER outside of an utterance's nodes
    label: tf.Tensor  # float32 [D, B, N]
    is_last: tf.Tensor  # bool [D, B, N], the node from which a blank ends the path


def _lattice(
    blank: tf.Tensor, label: tf.Tensor, num_frames: tf.Tensor, num_labels: tf.Tensor
) -> _Lattice:
    num, nodes = size_of(blank, 1), size_of(blank, 2)
    t, u = tf.range(num)[:, None], tf.range(nodes)
    frames, labels = num_frames[:, None, None], num_labels[:, None, None]
    is_node = (t < frames) & (u <= labels)
    blank = tf.where(is_node, tf.maximum(blank, NEVER), NEVER)
    label = tf.where(is_node & (u < labels), tf.maximum(label, NEVER), NEVER)
    diagonal = tf.range(num + nodes - 1)[:, None, None]
    is_last = (diagonal == num_frames[:, None] + num_labels[:, None] - 1) & (
        u == num_labels[:, None]
    )
    return _Lattice(_skew(blank, NEVER), _skew(label, NEVER), is_last)


def _skew(x: tf.Tensor, filling: float) -> tf.Tensor:
    """Returns [B, T, N] by diagonals, [D, B, N]."""
    num, nodes = size_of(x, 1), size_of(x, 2)
    t = tf.range(num + nodes - 1)[:, None] - tf.range(nodes)
    at = tf.clip_by_value(t, 0, num - 1)
    diagonals = tf.gather(tf.transpose(x, [2, 1, 0]), tf.transpose(at), axis=1, batch_dims=1)
    diagonals = tf.transpose(diagonals, [1, 2, 0])
    return tf.where(((t >= 0) & (t < num))[:, None], diagonals, filling)


def _unskew(x: tf.Tensor, num: Any) -> tf.Tensor:
    """Returns [D, B, N] by frames, [B, T, N]; the inverse of `_skew`."""
    nodes = size_of(x, 2)
    at = tf.range(num) + tf.range(nodes)[:, None]
    frames = tf.gather(tf.transpose(x, [2, 0, 1]), at, axis=1, batch_dims=1)
    return tf.transpose(frames, [2, 1, 0])


def _forward(lattice: _Lattice) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log-sums of the paths to each node, [D, B, N], and of whole paths, [B]."""
    blank, label, is_last = lattice
    first = tf.where(tf.range(size_of(blank, 2)) == 0, 0.0, NEVER) + tf.zeros_like(blank[0])

    def body(i: tf.Tensor, sums: tf.Tensor, xs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        del i
        blank, label = xs
        stay, move = sums + blank, shift_nodes(sums + label, 1)
        return log_add(stay, move), sums

    _, sums = scan(body, first, (blank, label), size_of(blank, 0))
    ends = tf.where(is_last, sums + blank, NEVER)
    return sums, tf.reduce_max(ends, axis=[0, 2])


def _backward(lattice: _Lattice) -> tf.Tensor:
    """Returns log-sums of the paths from each node to the end, [D, B, N]."""
    blank = lattice.blank

    def body(i: tf.Tensor, after: tf.Tensor, xs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        del i
        blank, label, is_last = xs
        sums = log_add(after + blank, shift_nodes(after, -1) + label)
        sums = tf.where(is_last, blank, sums)
        return sums, sums

    start = tf.fill([size_of(blank, 1), size_of(blank, 2)], NEVER)
    _, sums = scan(body, start, lattice, size_of(blank, 0), is_reversed=True)
    return sums


def _step_probabilities(
    lattice: _Lattice, forward: tf.Tensor, log_p: tf.Tensor, scale: tf.Tensor, num: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the probability that a path takes each step, times `scale`, [B]; both [B, T, N]."""
    blank, label, is_last = lattice
    none = tf.fill([1, size_of(blank, 1), size_of(blank, 2)], NEVER)
    after = tf.concat([_backward(lattice)[1:], none], axis=0)
    to_next = tf.where(is_last, 0.0, after)
    moved = shift_nodes(after, -1)
    before = forward - log_p[:, None]
    steps = (before + blank + to_next, before + label + moved)
    both = (scale[:, None] * tf.exp(tf.minimum(step, 0.0)) for step in steps)
    blanks, labels = (_unskew(step, num) for step in both)
    return blanks, labels
