"""Sequence to sequence: losses and metrics against NumPy, decoding against the whole.

Axes: B batch, S source positions, T target positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.settings import decoding_of
from lingo.decode.text import prompt_batch
from lingo.layers import (
    NO_INPUTS,
    Attention,
    Bidirectional,
    CallInputs,
    Embedding,
    Layer,
    MoE,
    RelativeBias,
    Repeat,
    Stack,
)
from lingo.layers.context import apply
from lingo.layers.moe.learned import ExpertChoiceRouter
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.learner.step import decode_batch
from lingo.ops import random
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

V = 7
DRAW = np.random.default_rng(0)
BATCH = {
    "source_tokens": DRAW.integers(0, V, [3, 5]).astype("i"),
    "source_segments": np.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], "i"),
    "source_positions": np.array([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]], "i"),
    "tokens": DRAW.integers(0, V, [3, 4]).astype("i"),
    "targets": DRAW.integers(0, V, [3, 4]).astype("i"),
    "segments": np.array([[1, 1, 2, 2], [1, 1, 1, 0], [1, 1, 1, 1]], "i"),
    "positions": np.array([[0, 1, 0, 1], [0, 1, 2, 0], [0, 1, 2, 3]], "i"),
    "weights": np.array([1, 1, 0], "f"),
}
COUNTED = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]], bool)
PAIRS = [(0, 1), (0, 2), (1, 1), (2, 1)]  # row and segment


class Scoring(SequenceToSequence):
    """A task whose model can be called by itself, on one pair."""

    def score(self, tokens: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        return self.model(tokens[None], source_tokens=source[None])[0]


def task(stack: type[Stack] = Stack, **fields: Any) -> Params:
    """Returns two layers on each side, with T5's bias."""
    params = Scoring.params(vocab_size=V, **fields)
    params.model.dim = 8
    params.all(DotProductAttention).set(num_heads=2)
    bias = RelativeBias.params(num_buckets=4, max_distance=3, shared=True)
    params.all(Attention).set(positions=bias)
    params.all(Stack).swap(stack, num_layers=2)
    return params


TASK = task().build()


@pytest.fixture
def weights(draw: Callable) -> dict[str, Any]:
    return draw(TASK)


def call(weights: Any, method: str, task: Any = TASK, **changes: Any) -> Any:
    batch = {name: tf.constant(value) for name, value in (BATCH | changes).items()}
    return apply(task, weights, batch, method=method)[0]


def log_probabilities(weights: Any) -> np.ndarray:
    """Returns what each pair by itself is given, float32 [B, T, V]; 0 at padding."""
    found = np.zeros([3, 4, V], "f")
    for row, segment in PAIRS:
        here = BATCH["segments"][row] == segment
        source = BATCH["source_tokens"][row][BATCH["source_segments"][row] == segment]
        inputs = (tf.constant(BATCH["tokens"][row][here]), tf.constant(source))
        found[row, here] = apply(TASK, weights, *inputs, method="score")[0]
    return found - np.log(np.exp(found).sum(-1, keepdims=True))


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_the_loss_is_that_of_every_pair_by_itself(chunk_size: int | None, weights: Any) -> None:
    found = log_probabilities(weights)
    nats = -np.take_along_axis(found, BATCH["targets"][..., None], -1)[..., 0]
    losses = call(weights, "loss", task(chunk_size=chunk_size).build())
    np.testing.assert_allclose(losses["cross_entropy"], nats[COUNTED].sum(), rtol=1e-5)
    norms = {name: float(value) for name, value in call(weights, "loss_denominators").items()}
    assert norms == {"cross_entropy": COUNTED.sum(), "examples": 2.0}


def test_predictions_read_the_source_and_need_no_targets(weights: Any) -> None:
    found = call(weights, "predict")
    wanted = -call(weights, "loss")["cross_entropy"].numpy()
    counted = (BATCH["segments"] > 0) * BATCH["weights"][:, None]
    np.testing.assert_allclose(
        (found["target_log_probs"] * counted).numpy().sum(), wanted, rtol=1e-5
    )
    other = call(weights, "predict", source_tokens=BATCH["source_tokens"][:, ::-1].copy())
    assert np.abs(found["log_probs"] - other["log_probs"]).max() > 1e-4


def test_an_exact_match_has_all_targets_of_a_pair_right(weights: Any) -> None:
    right = log_probabilities(weights).argmax(-1).astype("i")
    state = call(weights, "metrics", targets=right)["exact_match"]
    assert {name: float(value) for name, value in state.items()} == {"sum": 3.0, "weight": 3.0}
    for row, place, lost in [(0, 0, 1), (0, 3, 1), (1, 2, 1), (1, 3, 0), (2, 0, 0)]:
        wrong = right.copy()
        wrong[row, place] = (wrong[row, place] + 1) % V
        state = call(weights, "metrics", targets=wrong)["exact_match"]
        assert {n: float(v) for n, v in state.items()} == {"sum": 3.0 - lost, "weight": 3.0}


def test_an_input_with_more_tokens_than_a_side_is_refused() -> None:
    two = task()
    two.model.source_embedding = Embedding.params(vocab_size=5)
    for built, vocab_size, reason in [
        (TASK, V, None),
        (TASK, V + 1, r"task\.vocab_size=7, but the input has 8 token ids"),
        (two.build(), 5, None),
        (two.build(), 6, r"source_embedding has vocab_size=5, but the input has 6 token ids"),
    ]:
        if reason is None:
            built.check_input({"vocab_size": vocab_size})
        else:
            with pytest.raises(ParamError, match=reason):
                built.check_input({"vocab_size": vocab_size})


def test_a_decoder_that_sees_the_token_to_be_predicted_is_refused() -> None:
    params = task()
    params.model.decoder.layer.attention.mask = Bidirectional
    with pytest.raises(ParamError, match=r"decoder/layers/0/attention: \w+ shows later positions"):
        params.build()


def test_an_encoder_may_route_by_later_tokens_and_a_decoder_may_not() -> None:
    params = task()
    params.model.encoder.layer.ffn = MoE.params(num_experts=2, router=ExpertChoiceRouter)
    assert params.build().weights()
    params.model.decoder.layer.ffn = MoE.params(num_experts=2, router=ExpertChoiceRouter)
    with pytest.raises(ParamError, match=r"decoder/layers/0/ffn/router: .* by later tokens"):
        params.build()


START, END, N = 2, 1, 6
SOURCES = [[3, 4, 5, 6, 1], [5, 1], [4, 4, 6, 1]]


def run(task: Any, weights: Any, sources: Any = SOURCES, **settings: Any) -> Any:
    """Returns what each source becomes, [B, S, N], and the log-probabilities."""
    decoding = decoding_of(max_tokens=N, **(settings or {"temperature": 0.0})).build()
    start = np.array([START], np.int32)
    prompts = [Prompt(start, source=np.array(source, np.int32)) for source in sources]
    batch = prompt_batch(prompts, rows=range(len(prompts)), end_id=END)
    program = tf.function(
        lambda batch: decode_batch(task, weights, {}, batch, decoding, random.root_key(0)),
        autograph=False,
    )
    found = program({name: tf.constant(value) for name, value in batch.items()})
    return found["tokens"].numpy(), found["log_probs"].numpy()


class Pooled(Layer):
    """The mean of a position and all before it, and of the memory of its document: no `step`."""

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        counts = tf.cast(1 + tf.range(tf.shape(x)[1]), x.dtype)
        seen = tf.ones_like(inputs.memory[..., 0])
        if inputs.memory_segments is not None:
            seen = tf.cast(inputs.memory_segments > 0, x.dtype)
        mean = tf.einsum("bs,bsd->bd", seen, inputs.memory)
        mean /= tf.reduce_sum(seen, axis=1, keepdims=True)
        return tf.cumsum(x, axis=1) / counts[:, None] + mean[:, None]


class Summed(EncoderDecoder):
    """Adds to each activation those before it, but does not say so for its steps."""

    def activations(self, tokens: tf.Tensor, *, inputs: CallInputs) -> tf.Tensor:
        return tf.cumsum(super().activations(tokens, inputs=inputs), axis=1)


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_decoding_chooses_by_what_the_whole_computes(stack: type[Stack], draw: Callable) -> None:
    assert_decodes_like_the_whole(task(stack).build(), draw)


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_a_layer_that_reads_the_memory_needs_no_step(stack: type[Stack], draw: Callable) -> None:
    params = task(stack)
    params.model.decoder.layer.cross_attention = Pooled.params()
    assert_decodes_like_the_whole(params.build(), draw)


def test_a_model_whose_steps_are_of_another_one_decodes_like_the_whole(draw: Callable) -> None:
    params = task()
    params.all(EncoderDecoder).swap(Summed)
    assert_decodes_like_the_whole(params.build(), draw)


def assert_decodes_like_the_whole(built: Any, draw: Callable) -> None:
    weights = draw(built)
    tokens, log_probs = run(built, weights)

    spec = tf.TensorSpec([None], tf.int32)

    @tf.function(autograph=False, input_signature=[spec, spec])
    def last_scores(text: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(apply(built, weights, text, source, method="score")[0][-1])

    for source, row, found in zip(SOURCES, tokens[:, 0], log_probs[:, 0], strict=True):
        text = [START]
        for token, log_prob in zip(row.tolist(), found, strict=True):
            scores = last_scores(np.array(text, np.int32), np.array(source, np.int32)).numpy()
            assert token == np.argmax(scores)
            assert log_prob == pytest.approx(scores[token], abs=1e-4)
            text.append(token)
            if token == END:
                break


SEARCH = {"num_beams": 3, "num_samples": 3}


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_a_search_finds_texts_with_the_scores_of_the_whole(stack, draw):
    params = task(stack)
    params.all(CrossAttention).set(num_kv_heads=1)
    built = params.build()
    weights = draw(built)
    for source, texts, found in zip(SOURCES, *run(built, weights, **SEARCH), strict=True):
        expected = np.zeros_like(found)
        for text, scores in zip(texts, expected, strict=True):
            inputs = (tf.constant([START, *text[:-1]]), tf.constant(source))
            logits = apply(built, weights, *inputs, method="score")[0]
            scores[:] = tf.gather(tf.nn.log_softmax(logits), text, batch_dims=1)
        is_there = np.cumsum(texts == END, axis=1) - (texts == END) == 0
        np.testing.assert_allclose(found[is_there], expected[is_there], atol=1e-4)
        totals = np.where(is_there, found, 0).sum(-1).tolist()
        assert totals == sorted(totals, reverse=True)
        assert len({*map(tuple, texts.tolist())}) == 3


def test_the_source_is_read_once(weights: Any) -> None:
    """The encoder is not in the loop over tokens."""
    sampling = Sampling.params(max_tokens=N).build()
    prompts = [Prompt(np.array([START], np.int32), source=np.array(SOURCES[0], np.int32))]
    batch = prompt_batch(prompts, rows=[0], end_id=END)
    graph = (
        tf.function(
            lambda batch: decode_batch(TASK, weights, {}, batch, sampling, random.root_key(0)),
            autograph=False,
        )
        .get_concrete_function({name: tf.constant(value) for name, value in batch.items()})
        .graph.as_graph_def()
    )
    inside = {node.name for f in graph.library.function for node in f.node_def}
    assert not any("encoder" in name for name in inside)
    outside = {node.name for node in graph.node}
    assert any("encoder" in name for name in outside)
