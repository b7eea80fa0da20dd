"""Decoding of recurrent neural network transducers (Graves 2012, sec. 2.5): greedy, and a beam.

    for each frame:
        live = the K best texts
        done = nothing
        repeat at most `max_symbols` + 1 times:
            done = the K best of done and of live texts with a blank, equal texts merged
            live = the K best extensions of live texts by a label
        the K best texts = done

A text may have several paths, which differ in the frames of its labels. The beam adds their
probabilities (Lingvo's `merge_paths`). With enough beams the result is exact: the probability of
all paths with at most `max_symbols` labels per frame.

Axes: B utterances, T frames, E width of a frame, K hypotheses, P width of a text's vector,
V classes with the blank, U labels of a text, N texts, R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.shape import size_of
from lingo.ops.speech.ctc import BLANK, Decoded
from lingo.ops.speech.lattice import NEVER, log_add

_LEAST = NEVER / 2  # scores below this belong to no text


class TransducerModel(NamedTuple):
    """A transducer as functions of tensors."""

    # (frame [B, E], texts [B, N, P]) -> logits [B, N, V]
    join: Callable[[Any, Any], Any]
    # (label int32 [R], state) -> (text [R, P], state), both after one more label
    read: Callable[[Any, Any], tuple[Any, Any]]
    # () -> a structure of [B, ...] tensors, the state before the first label, which is the blank
    start: Callable[[], Any]


class Hypotheses(NamedTuple):
    """Texts of each utterance, the likeliest first."""

    labels: tf.Tensor  # int32 [B, K, U], padded with the blank
    num_labels: tf.Tensor  # int32 [B, K]; 0 for an absent text
    scores: tf.Tensor  # float32 [B, K], log-probability; `NEVER` for an absent text


def transducer_greedy(
    model: TransducerModel,
    encoded: tf.Tensor,
    num_frames: tf.Tensor,
    *,
    max_symbols: int,
    max_labels: int,
) -> Decoded:
    """Returns the labels of the path that takes the likeliest step at each node.

    Args:
        model: computes the logits of nodes.
        encoded: float [B, T, E].
        num_frames: int32 [B].
        max_symbols: the path moves to the next frame after this many labels in a frame.
        max_labels: U; later labels are left out.

    Returns:
        `labels`, int32 [B, U], padded with the blank, and `num_labels`, int32 [B].

    >>> def read(label, state): return 0 * tf.one_hot(label, 3), state
    >>> model = TransducerModel(lambda frame, texts: frame[:, None] + texts, read, lambda: ())
    >>> frames = tf.constant([[[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]])
    >>> found = transducer_greedy(model, frames, tf.constant([2]), max_symbols=1, max_labels=2)
    >>> found.labels.numpy()
    array([[1, 0]], dtype=int32)
    """
    size, length = size_of(encoded, 0), size_of(encoded, 1)
    text, state = model.read(tf.fill([size], BLANK), model.start())
    zeros = tf.zeros([size], tf.int32)
    labels = tf.zeros([size, max_labels], tf.int32) + BLANK

    def advance(walk: _Walk, text: tf.Tensor, state: Any) -> Any:
        frame = tf.gather(encoded, tf.minimum(walk.frame, length - 1), axis=1, batch_dims=1)
        logits = model.join(frame, text[:, None])[:, 0]
        label = tf.argmax(logits, axis=-1, output_type=tf.int32)
        writes = (label != BLANK) & (walk.frame < num_frames)
        writes &= (walk.num_symbols < max_symbols) & (walk.num_labels < max_labels)
        after, new = model.read(label, state)
        walk = _Walk(
            tf.where(writes, walk.frame, walk.frame + 1),
            tf.where(writes, walk.num_symbols + 1, 0),
            _append(walk.labels, walk.num_labels, label, writes),
            walk.num_labels + tf.cast(writes, tf.int32),
        )
        return walk, *_choose(writes, (after, new), (text, state))

    walk, *_ = tf.while_loop(
        lambda walk, *_: tf.reduce_any(walk.frame < num_frames),
        advance,
        (_Walk(zeros, zeros, labels, zeros), text, state),
    )
    return Decoded(walk.labels, walk.num_labels)


def transducer_beam(
    model: TransducerModel,
    encoded: tf.Tensor,
    num_frames: tf.Tensor,
    *,
    num_beams: int,
    max_symbols: int,
    max_labels: int,
) -> Hypotheses:
    """Returns the `num_beams` likeliest texts that a beam search finds.

    Args:
        model: computes the logits of nodes.
        encoded: float [B, T, E].
        num_frames: int32 [B].
        num_beams: K, texts that are kept.
        max_symbols: most labels of a path in a frame.
        max_labels: U, most labels of a text.

    >>> def read(label, state): return 0 * tf.one_hot(label, 3), state
    >>> model = TransducerModel(lambda frame, texts: frame[:, None] + texts, read, lambda: ())
    >>> frames = tf.constant([[[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]])
    >>> limits = {"num_beams": 2, "max_symbols": 1, "max_labels": 2}
    >>> transducer_beam(model, frames, tf.constant([2]), **limits).labels.numpy().tolist()
    [[[0, 0], [1, 0]]]
    """
    search = _Search(model, num_beams, max_symbols)
    first = search.start(size_of(encoded, 0), max_labels)

    def advance(t: tf.Tensor, beams: _Beams) -> Any:
        is_frame = t < num_frames
        return t + 1, _choose(is_frame, search.frame(encoded[:, t], is_frame, beams), beams)

    last = tf.reduce_max(num_frames)
    _, beams = tf.while_loop(lambda t, _: t < last, advance, (tf.constant(0), first))
    sizes = tf.where(beams.scores > _LEAST, beams.num_labels, 0)
    is_label = tf.sequence_mask(sizes, max_labels)
    return Hypotheses(tf.where(is_label, beams.labels, BLANK), sizes, beams.scores)


class _Walk(NamedTuple):
    """Where the greedy path of each utterance is."""

    frame: tf.Tensor  # int32 [B]
    num_symbols: tf.Tensor  # int32 [B], labels in this frame
    labels: tf.Tensor  # int32 [B, U]
    num_labels: tf.Tensor  # int32 [B]


class _Beams(NamedTuple):
    """K texts of each utterance, with the model's state after them."""

    scores: tf.Tensor  # float32 [B, K], log-probability; about NEVER for an absent text
    labels: tf.Tensor  # int32 [B, K, U]
    num_labels: tf.Tensor  # int32 [B, K]
    text: tf.Tensor  # [B, K, P]
    state: Any  # [B, K, ...]


class _Search(NamedTuple):
    """The steps of a beam search."""

    model: TransducerModel
    num_beams: int
    max_symbols: int

    def start(self, size: Any, max_labels: int) -> _Beams:
        """Returns one empty text for each of `size` utterances."""
        num = self.num_beams
        text, state = self.model.read(tf.fill([size], BLANK), self.model.start())

        def spread(x: tf.Tensor) -> tf.Tensor:
            return tf.repeat(x[:, None], num, axis=1)

        scores = tf.one_hot([0], num, on_value=0.0, off_value=NEVER) + tf.zeros([size, num])
        labels = tf.zeros([size, num, max_labels], tf.int32) + BLANK
        counts = tf.zeros([size, num], tf.int32)
        return _Beams(scores, labels, counts, *tf.nest.map_structure(spread, (text, state)))

    def frame(self, frame: tf.Tensor, is_frame: tf.Tensor, beams: _Beams) -> _Beams:
        """Returns the texts after a frame [B, E]; `is_frame`, bool [B], is False after the end."""
        none = tf.fill(tf.shape(beams.scores), NEVER)
        live = beams._replace(scores=tf.where(is_frame[:, None], beams.scores, NEVER))

        def extend(level: tf.Tensor, live: _Beams, done: _Beams) -> Any:
            logits = tf.cast(self.model.join(frame, live.text), tf.float32)
            log_probs = tf.nn.log_softmax(logits)
            ended = live._replace(scores=_add(live.scores, log_probs[:, :, BLANK]))
            done = _merge(done, ended)
            live = self._extend(live, log_probs, level < self.max_symbols)
            # A live text below all of `done` can no longer enter it; at most it would add a little
            # to an equal text. Each utterance is pruned alone: no result depends on the batch.
            is_open = live.scores[:, :1] > done.scores[:, -1:]
            return level + 1, live._replace(scores=tf.where(is_open, live.scores, NEVER)), done

        _, _, done = tf.while_loop(
            lambda level, live, done: tf.reduce_any(live.scores > _LEAST),
            extend,
            (tf.constant(0), live, beams._replace(scores=none)),
        )
        return done

    def _extend(self, live: _Beams, log_probs: tf.Tensor, may_grow: tf.Tensor) -> _Beams:
        """Returns the K best texts with one more label."""
        max_labels, num_classes = size_of(live.labels, 2), size_of(log_probs, 2)
        scores = _add(live.scores[:, :, None], log_probs)
        may_grow &= (live.num_labels < max_labels)[:, :, None]
        may_grow &= tf.range(num_classes) != BLANK
        scores = tf.where(may_grow, scores, NEVER)
        size = size_of(scores, 0)
        flat = tf.reshape(scores, [size, self.num_beams * num_classes])
        best, places = tf.math.top_k(flat, self.num_beams)
        parents, label = places // num_classes, places % num_classes
        old = _take(live, parents)
        rows = tf.nest.map_structure(_join_beams, old.state)
        text, state = self.model.read(tf.reshape(label, [-1]), rows)
        text, state = tf.nest.map_structure(
            lambda x: _split_beams(x, size, self.num_beams), (text, state)
        )
        is_new = best > _LEAST
        labels = _append(old.labels, old.num_labels, label, is_new)
        return _Beams(best, labels, old.num_labels + tf.cast(is_new, tf.int32), text, state)


def _add(scores: tf.Tensor, log_probs: tf.Tensor) -> tf.Tensor:
    """Returns sums of log-probabilities, at least NEVER."""
    return tf.maximum(scores + log_probs, NEVER)


def _merge(done: _Beams, ended: _Beams) -> _Beams:
    """Returns the K best texts of both, in which no text occurs twice."""
    is_equal = tf.reduce_all(done.labels[:, :, None] == ended.labels[:, None], axis=-1)
    is_equal &= done.num_labels[:, :, None] == ended.num_labels[:, None]
    is_equal &= (done.scores > _LEAST)[:, :, None] & (ended.scores > _LEAST)[:, None]
    added = tf.reduce_max(tf.where(is_equal, ended.scores[:, None], NEVER), axis=2)
    merged = done._replace(scores=log_add(done.scores, added))
    is_merged = tf.reduce_any(is_equal, axis=1)
    rest = ended._replace(scores=tf.where(is_merged, NEVER, ended.scores))
    both = tf.nest.map_structure(lambda a, b: tf.concat([a, b], axis=1), merged, rest)
    _, places = tf.math.top_k(both.scores, size_of(done.scores, 1))
    return _take(both, places)


def _take(beams: _Beams, places: tf.Tensor) -> _Beams:
    """Returns the texts at `places`, int32 [B, K]."""
    return tf.nest.map_structure(lambda x: tf.gather(x, places, axis=1, batch_dims=1), beams)


def _append(labels: tf.Tensor, sizes: tf.Tensor, label: tf.Tensor, writes: tf.Tensor) -> tf.Tensor:
    """Returns labels [..., U] with `label` after the first `sizes`, where `writes`; all [...]."""
    size, label, writes = (tf.expand_dims(x, -1) for x in (sizes, label, writes))
    is_place = (tf.range(size_of(labels, -1)) == size) & writes
    return tf.where(is_place, label, labels)


def _choose(condition: tf.Tensor, new: Any, old: Any) -> Any:
    """Returns the new tensors [B, ...] of a structure where `condition`, bool [B], is True."""

    def choose(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        shape = [size_of(condition, 0)] + [1] * (len(a.shape) - 1)
        return tf.where(tf.reshape(condition, shape), a, b)

    return tf.nest.map_structure(choose, new, old)


def _join_beams(x: tf.Tensor) -> tf.Tensor:
    """Returns [B, K, ...] as rows, [B * K, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])


def _split_beams(x: tf.Tensor, size: Any, num: int) -> tf.Tensor:
    """Returns rows [B * K, ...] as [B, K, ...]."""
    return tf.reshape(x, [size, num, *x.shape[1:]])
