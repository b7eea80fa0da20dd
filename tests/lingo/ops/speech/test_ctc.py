"""CTC against all paths: losses, gradients, feasible labels, and decoding."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.speech.ctc import ctc_greedy, ctc_is_feasible, ctc_losses, ctc_prefix_beam

GOLDEN = np.array([[1, 2, 0], [0, 1, 2], [2, 0, 1], [1, 1, 0]], np.float32)


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(c for i, c in enumerate(path) if c and (i == 0 or path[i - 1] != c))


def labellings(logits: np.ndarray) -> dict[tuple[int, ...], float]:
    """Returns the probability of each sequence of labels, as a sum over all paths."""
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    sums: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        sums[collapse(path)] += math.prod(p[t, c] for t, c in enumerate(path))
    return sums


def padded(labels: list[tuple[int, ...]], size: int, filling: int = 0) -> np.ndarray:
    return np.array([[*one, *[filling] * (size - len(one))] for one in labels], np.int32)


@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        ((1, 2), 1.349092617),
        ((1,), 2.261527938),
        ((1, 1), 2.477586751),
        ((2, 1), 2.158034963),
        ((), 5.084812697),
    ],
)
def test_losses_equal_those_of_all_paths(labels: tuple[int, ...], loss: float) -> None:
    args = tf.constant(padded([labels], 2)), tf.constant([4]), tf.constant([len(labels)])
    found = ctc_losses(tf.constant(GOLDEN[None]), *args).losses
    assert float(found[0]) == pytest.approx(loss, abs=2e-6)
    assert -math.log(labellings(GOLDEN.astype(float))[labels]) == pytest.approx(loss, abs=1e-8)


def test_any_lengths_in_a_batch_give_the_loss_of_each_utterance_alone() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[6, 5, 3]).astype(np.float32)
    frames = [5, 4, 3, 2, 1, 5]
    labels = [(1, 2, 1), (2, 2), (1,), (), (2,), (1, 1, 1)]
    args = tf.constant(padded(labels, 3, filling=2)), tf.constant(frames)
    found = ctc_losses(tf.constant(logits), *args, tf.constant(list(map(len, labels))))
    assert found.is_feasible.numpy().all()
    for one, num, label, loss in zip(logits, frames, labels, found.losses, strict=True):
        expected = -math.log(labellings(one[:num].astype(float))[label])
        assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_that_of_finite_differences_and_0_in_padding() -> None:
    logits, h = np.tile(GOLDEN[None], [2, 1, 1]), 1e-4
    args = tf.constant([[1, 2], [1, 0]]), tf.constant([4, 2]), tf.constant([2, 1])
    with tf.GradientTape() as tape:
        x = tf.constant(logits)
        tape.watch(x)
        losses = ctc_losses(x, *args).losses
    gradient = tape.gradient(losses, x).numpy()
    np.testing.assert_allclose(gradient[0, 0], [0.183824, -0.273855, 0.090031], atol=1e-6)
    assert (gradient[1, 2:] == 0).all()
    for i, wanted, num in ((0, (1, 2), 4), (1, (1,), 2)):
        for t, v in np.ndindex(num, 3):
            both = []
            for sign in (1, -1):
                moved = logits[i, :num].astype(float)
                moved[t, v] += sign * h
                both.append(-math.log(labellings(moved)[wanted]))
            assert gradient[i, t, v] == pytest.approx((both[0] - both[1]) / (2 * h), abs=1e-5)


def test_long_utterances_have_the_losses_and_gradients_of_tensorflow() -> None:
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(size=[4, 120, 30]) * 3, tf.float32)
    labels = tf.constant(rng.integers(1, 30, [4, 40]), tf.int32)
    frames, sizes = tf.constant([120, 100, 80, 5]), tf.constant([40, 30, 1, 0])

    def tensorflow(logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.ctc_loss(labels, logits, sizes, frames, logits_time_major=False, blank_index=0)

    results = []
    for function in (tensorflow, lambda x: ctc_losses(x, labels, frames, sizes).losses):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = function(logits)
        results.append((losses, tape.gradient(losses, logits)))
    (losses, gradient), (own, own_gradient) = results
    np.testing.assert_allclose(own, losses, rtol=1e-5)
    np.testing.assert_allclose(own_gradient, gradient, atol=2e-4)


def test_labels_without_a_path_are_told_and_have_neither_loss_nor_gradient() -> None:
    for num, label in itertools.product(range(5), itertools.product([1, 2], repeat=3)):
        args = tf.constant([label]), tf.constant([num]), tf.constant([3])
        paths = itertools.product(range(3), repeat=num)
        assert bool(ctc_is_feasible(*args)[0]) == any(collapse(path) == label for path in paths)
    with tf.GradientTape() as tape:
        x = tf.constant(GOLDEN[None])
        tape.watch(x)
        found = ctc_losses(x, tf.constant([[1, 1]]), tf.constant([2]), tf.constant([2]))
    assert (found.is_feasible.numpy().tolist(), found.losses.numpy().tolist()) == ([False], [0.0])
    assert (tape.gradient(found.losses, x).numpy() == 0).all()


def test_losses_are_the_same_when_compiled() -> None:
    args = tf.constant([[1, 2], [1, 1]]), tf.constant([4, 2]), tf.constant([2, 2])
    logits = tf.constant(np.tile(GOLDEN[None], [2, 1, 1]))
    compiled = tf.function(ctc_losses, jit_compile=True)(logits, *args)
    np.testing.assert_allclose(compiled.losses, ctc_losses(logits, *args).losses, rtol=1e-6)


def test_greedy_decoding_merges_repeats_then_removes_blanks() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=[20, 9, 3]).astype(np.float32)
    frames = rng.integers(0, 10, 20)
    found = ctc_greedy(tf.constant(logits), tf.constant(frames))
    for one, num, labels, size in zip(logits, frames, *map(np.asarray, found), strict=True):
        expected = collapse(tuple(one[:num].argmax(axis=1).tolist()))
        assert (tuple(labels[:size].tolist()), labels[size:].any()) == (expected, False)


def test_a_beam_of_all_prefixes_finds_exactly_the_likeliest_labels() -> None:
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(size=[4, 3]) * 2
        exact = labellings(logits)
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        found = ctc_prefix_beam(log_p, beam_size=1000, num_hypotheses=1000)
        assert {one.labels for one in found} == set(exact)
        for one in found:
            assert math.exp(one.log_probability) == pytest.approx(exact[one.labels], rel=1e-9)
        assert found[0].labels == max(exact, key=lambda labels: exact[labels])


def test_the_beam_of_the_golden_logits() -> None:
    log_p = GOLDEN - np.logaddexp.reduce(GOLDEN, axis=1, keepdims=True)
    best, second = ctc_prefix_beam(log_p, beam_size=100, num_hypotheses=2)
    assert (best.labels, second.labels) == ((1, 2), (1, 2, 1))
    assert math.exp(best.log_probability) == pytest.approx(0.259475598, abs=1e-6)
    assert math.exp(second.log_probability) == pytest.approx(0.232927970, abs=1e-6)


def test_a_beam_adds_paths_where_greedy_decoding_takes_one() -> None:
    log_p = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert int(ctc_greedy(tf.constant(log_p[None]), tf.constant([2])).num_labels[0]) == 0
    (best,) = ctc_prefix_beam(log_p, beam_size=2)
    assert (best.labels, math.exp(best.log_probability)) == ((1,), pytest.approx(0.64))


def test_a_scorer_changes_which_labels_win() -> None:
    log_p = np.log([[0.2, 0.41, 0.39], [0.9, 0.05, 0.05]])
    assert ctc_prefix_beam(log_p, beam_size=10)[0].labels == (1,)
    (best,) = ctc_prefix_beam(log_p, beam_size=10, scorer=lambda labels: np.array([0, 0, 0.5]))
    assert best.labels == (2,)


def slow_beam(log_p: np.ndarray, beam_size: int) -> list[tuple[int, ...]]:
    """Returns the prefixes of a beam, best first, by the recursion of Hannun et al."""
    beam = {(): (1.0, 0.0)}
    for frame in np.exp(log_p):
        after: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for labels, (blank, label) in beam.items():
            after[labels][0] += (blank + label) * frame[0]
            if labels:
                after[labels][1] += label * frame[labels[-1]]
            for symbol in range(1, len(frame)):
                start = blank if labels and labels[-1] == symbol else blank + label
                after[(*labels, symbol)][1] += start * frame[symbol]
        best = sorted(after, key=lambda labels: -sum(after[labels]))[:beam_size]
        beam = {labels: (after[labels][0], after[labels][1]) for labels in best}
    return sorted(beam, key=lambda labels: -sum(beam[labels]))


def test_a_small_beam_keeps_the_prefixes_of_a_slow_one() -> None:
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(size=[12, 5]) * 2
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        found = ctc_prefix_beam(log_p, beam_size=4, num_hypotheses=4)
        assert [one.labels for one in found] == slow_beam(log_p, 4)


def test_a_beam_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="beam_size=0 is not positive"):
        ctc_prefix_beam(GOLDEN, beam_size=0)
