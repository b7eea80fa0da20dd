"""Listen, Attend and Spell: counts of weights, slow NumPy, padding, and steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import BidirectionalRecurrent, CallInputs, Lstm, Quantized
from lingo.layers.context import apply
from lingo.learner.state import initial_value
from lingo.models import LasDecoder, LasEncoder
from lingo.models.speech.las import NETWORK

E, M, H, V, S, T = 3, 5, 4, 7, 6, 5
GENERATOR = np.random.default_rng(0)
TOKENS = GENERATOR.integers(0, V, [2, T]).astype(np.int32)
MEMORY = GENERATOR.normal(size=[2, S, M]).astype(np.float32)
SOUND = np.array([[1] * S, [1] * 4 + [0] * 2], "i")


def decoder(**fields: Any) -> Any:
    return LasDecoder.params(vocab_size=V, dim=E, memory_dim=M, hidden_dim=H, **fields).build()


def count(layer: Any) -> int:
    return sum(spec.size for spec in layer.weights().values())


def test_the_weights_are_those_of_lingos_models_of_librispeech() -> None:
    encoder = count(LasEncoder.params(dim=80).build())
    graphemes = count(LasDecoder.params(vocab_size=76, dim=76).build())
    pieces = count(LasDecoder.params(vocab_size=16_328, dim=96).build())
    assert (encoder, graphemes, pieces) == (101_766_560, 30_312_284, 81_898_312)
    assert encoder + graphemes == 132_078_844
    assert encoder + pieces == 183_664_872


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def slow(w: dict[str, np.ndarray], tokens: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Computes the logits [T, V] of one text, token by token."""
    context, logits = np.zeros(M), []
    states = [(np.zeros(H), np.zeros(H)) for _ in range(2)]
    for token in tokens:
        x = w["embedding/table"][token]
        for i in range(2):
            hidden, cell = states[i]
            gates = np.einsum("d,dgh->gh", np.concatenate([x, context]), w[f"networks/{i}/w_input"])
            gates += np.einsum("d,dgh->gh", hidden, w[f"networks/{i}/w_hidden"])
            enter, forget, candidate, output = gates + w[f"networks/{i}/bias"]
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
            cell = np.clip(cell, -10, 10)
            x = sigmoid(output) * np.tanh(cell)
            states[i] = (x, cell)
            if i == 0:
                query = x @ w["attention/w_query"]
                scores = np.tanh(query + memory @ w["attention/w_key"]) @ w["attention/v"]
                weights = np.exp(scores - scores.max())
                context = weights / weights.sum() @ memory
        logits.append(np.concatenate([x, context]) @ w["head/w"] + w["head/b"])
    return np.stack(logits)


def test_the_decoder_is_that_of_numpy(draw: Callable) -> None:
    layer = decoder()
    weights = draw(layer)
    exact = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    logits, _ = apply(layer, weights, TOKENS, memory=MEMORY, memory_segments=SOUND)
    for row, length in enumerate(SOUND.sum(1)):
        expected = slow(exact, TOKENS[row], MEMORY[row, :length])
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[1, 1, 3], [2, 3]])
def test_steps_compute_what_the_whole_does_and_sum_the_weights(
    sizes: list[int], draw: Callable
) -> None:
    layer = decoder()
    weights = draw(layer)
    whole, _ = apply(layer, weights, TOKENS, memory=MEMORY, memory_segments=SOUND)
    caches, start, parts = layer.empty_caches(batch_size=2, length=T), 0, []
    for size in sizes:
        y, sides = apply(
            layer,
            weights,
            TOKENS[:, start : start + size],
            start,
            method="step",
            memory=None if start else MEMORY,
            memory_segments=SOUND,
            call={"caches": caches},
        )
        caches, start = caches | sides.caches, start + size
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-5)
    covered = np.asarray(caches["attention/coverage"])
    np.testing.assert_allclose(covered.sum(1), [T, T], rtol=1e-5)
    assert (covered[1, 4:] == 0).all()


def test_packed_texts_are_written_as_if_each_were_alone(draw: Callable) -> None:
    layer = decoder()
    weights = draw(layer)
    segments, ids = np.array([[1, 1, 2, 2, 2]] * 2, "i"), np.array([[0, 1, 0, 1, 2]] * 2, "i")
    sources = np.array([[1, 1, 1, 2, 2, 2]] * 2, "i")
    packed, _ = apply(
        layer,
        weights,
        TOKENS,
        memory=MEMORY,
        memory_segments=sources,
        segments=segments,
        position_ids=ids,
    )
    first, _ = apply(layer, weights, TOKENS[:, :2], memory=MEMORY[:, :3])
    second, _ = apply(layer, weights, TOKENS[:, 2:], memory=MEMORY[:, 3:])
    np.testing.assert_allclose(packed[:, :2], first, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(packed[:, 2:], second, rtol=1e-4, atol=1e-5)


def test_steps_remember_which_memory_is_padding(draw: Callable) -> None:
    layer = decoder()
    weights = draw(layer)
    whole, _ = apply(layer, weights, TOKENS, memory=MEMORY, memory_segments=SOUND)
    caches, parts = layer.empty_caches(batch_size=2, length=T), []
    for i in range(T):
        inputs = (
            CallInputs() if i else CallInputs(memory=tf.constant(MEMORY), memory_segments=SOUND)
        )
        call = {"caches": caches}
        y, sides = apply(
            layer, weights, TOKENS[:, i : i + 1], i, method="next_logits", call=call, inputs=inputs
        )
        caches = caches | sides.caches
        parts.append(y)
    np.testing.assert_allclose(np.stack(parts, axis=1), whole, rtol=1e-4, atol=1e-5)


def test_a_quantized_decoder_measures_its_ranges_in_every_step(draw: Callable) -> None:
    params = LasDecoder.params(vocab_size=V, dim=E, memory_dim=M, hidden_dim=H)
    layer = Quantized.params(layer=params).build()
    weights = draw(layer)
    state = {name: tf.constant(initial_value(spec, 0)) for name, spec in layer.states().items()}
    inputs = {"memory": MEMORY, "memory_segments": SOUND}

    @tf.function(autograph=False)
    def program() -> Any:
        call = {"state": state, "training": True}
        with tf.GradientTape() as tape:
            tape.watch([*weights.values()])
            y, sides = apply(layer, weights, TOKENS, call=call, **inputs)
        return tape.gradient(y, weights), sides.batch_statistics

    gradients, statistics = program()
    assert statistics.keys() == state.keys()
    assert all(float(one["weight"]) > 0 for one in statistics.values())
    once = statistics["attention/w_key_input_low"]["weight"]
    assert float(statistics["networks/0/w_input_input_low"]["weight"]) == T * once
    assert all(np.isfinite(one).all() and np.any(one) for one in gradients.values())


def test_without_a_memory_it_is_refused(draw: Callable) -> None:
    with pytest.raises(ValueError, match="LasDecoder needs the input `memory`"):
        apply(decoder(), draw(decoder()), TOKENS)


def test_both_directions_read_a_document_as_if_it_were_alone(draw: Callable) -> None:
    layer = BidirectionalRecurrent.params(dim=M, hidden_dim=H, network=NETWORK).build()
    weights = draw(layer)
    segments = np.array([[1, 1, 2, 2, 2, 0]] * 2, "i")
    both, _ = apply(layer, weights, MEMORY, segments=segments)
    for part in (slice(0, 2), slice(2, 5)):
        alone, _ = apply(layer, weights, MEMORY[:, part])
        np.testing.assert_allclose(both[:, part], alone, rtol=1e-5, atol=1e-6)
    for i, name in enumerate(("forward", "backward")):
        network = NETWORK.copy().set(is_reversed=name == "backward").build(dim=M, hidden_dim=H)
        own = {k.removeprefix(f"{name}/"): v for k, v in weights.items() if k.startswith(name)}
        y, _ = apply(network, own, MEMORY[:, :2])
        np.testing.assert_allclose(both[:, :2, H * i : H * i + H], y, rtol=1e-5, atol=1e-6)
    assert layer.output_shape((2, S, M)) == (2, S, 2 * H)


def test_padding_changes_no_frame_of_the_encoder(draw: Callable) -> None:
    layer = LasEncoder.params(
        dim=8, hidden_dim=H, num_layers=3, network=Lstm.params(cell_cap=10.0)
    ).build()
    weights = draw(layer)
    frames = GENERATOR.normal(size=[2, 21, 8]).astype(np.float32)
    segments = (np.arange(21) < np.array([[21], [10]])).astype("i")
    state = {name: initial_value(spec, 0) for name, spec in layer.states().items()}
    call = {"training": True, "state": state}
    y, _ = apply(layer, weights, frames, segments=segments, call=call)
    assert layer.output_shape(frames.shape) == y.shape
    longer = np.where(segments[..., None] > 0, frames, 3.0).astype("f")
    longer = np.pad(longer, [(0, 0), (0, 6), (0, 0)], constant_values=2.0)
    z, _ = apply(layer, weights, longer, segments=np.pad(segments, [(0, 0), (0, 6)]), call=call)
    for row, length in enumerate((6, 3)):
        np.testing.assert_allclose(z[row, :length], y[row, :length], rtol=1e-4, atol=1e-5)
