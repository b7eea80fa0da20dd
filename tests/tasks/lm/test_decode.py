"""Cached decoding gives the tokens of computing the whole text anew for each, whatever the layers.

Axes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.base.types import Wrapped
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.settings import decoding_of
from lingo.decode.text import prompt_batch
from lingo.layers import (
    NO_INPUTS,
    Attention,
    CallInputs,
    Layer,
    Lora,
    MoE,
    Remat,
    Repeat,
    SoftmaxHead,
    Stack,
    TopNRouter,
    WeightNorm,
)
from lingo.layers.context import apply
from lingo.layers.sequence.mask import LocalWindow, Prefix
from lingo.layers.sequence.positions import (
    Alibi,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidPositions,
)
from lingo.layers.sequence.recurrent import Gru, Lstm, RecurrentLayer
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.learner.step import decode_batch
from lingo.ops import random
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

V, N = 11, 6  # tokens of the vocabulary; new tokens
END = 1
PROMPTS = [[2, 5, 6, 3], [2, 7], [2, 4, 4]]
BIAS = RelativeBias.params(num_buckets=4, max_distance=5)


class Scoring(LanguageModeling):
    """A task whose model can be called by itself."""

    def score(self, tokens: tf.Tensor, prefix: tf.Tensor | None = None) -> tf.Tensor:
        return self.model(tokens, inputs=CallInputs(prefix=prefix))


def attending(**fields: Any) -> Params:
    return TransformerLayer.params(attention=Attention.params(num_heads=2, **fields))


class Mean(Layer):
    """The mean of a position and all before it, times a matrix; has no `step`."""

    dim: int  # width of the input and of the output

    def setup(self) -> None:
        self.w = self.weight("w", [self.p.dim] * 2, axes=("embed", None))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        counts = tf.cast(1 + tf.range(tf.shape(x)[1]), x.dtype)
        return tf.einsum("btd,de->bte", tf.cumsum(x, axis=1) / counts[:, None], self.w)


class Doubled(Attention):
    """Computes twice what attention does, but does not say so for its `step`."""

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return 2 * super().__call__(x, inputs=inputs)


class Residual(Layer):
    """x + layer(x), of any layer; has no `step`, and mixes no positions by itself."""

    layer: Wrapped  # what is added

    positionwise = True

    def setup(self) -> None:
        self.layer = self.p.layer.build()

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return x + self.layer(x, inputs=inputs)


EXPERTS = MoE.params(num_experts=4, capacity_factor=4.0, router=TopNRouter)
LAYERS = {
    "rotary": attending(positions=Rotary),
    "relative bias": attending(positions=BIAS),
    "alibi": attending(positions=Alibi),
    "window": attending(mask=LocalWindow.params(window=3), positions=Rotary),
    "prefix": attending(mask=Prefix),
    "remat": Remat.params(layer=attending(positions=Rotary)),
    "lora": Lora.params(layer=attending(positions=Rotary), rank=2),
    "weight norm": WeightNorm.params(layer=attending()),
    "lstm": RecurrentLayer.params(network=Lstm),
    "gru": RecurrentLayer.params(network=Gru.params(hidden_dim=5)),
    "no step": TransformerLayer.params(attention=Mean),
    "no step for a changed call": TransformerLayer.params(
        attention=Doubled.params(num_heads=2, positions=Rotary)
    ),
    "no step around one": Residual.params(layer=attending(positions=Rotary)),
    "no step around experts": Residual.params(
        layer=TransformerLayer.params(attention=Mean, ffn=EXPERTS)
    ),
    "no step inside a wrapper": Lora.params(layer=TransformerLayer.params(attention=Mean), rank=2),
    "mixed": [attending(mask=LocalWindow.params(window=3)), RecurrentLayer.params()],
}
MODELS = {
    "learned positions": {"positions": LearnedPositions.params(max_length=len(PROMPTS[0]) + N - 1)},
    "sinusoid positions": {"positions": SinusoidPositions},
    "a head of its own": {"head": SoftmaxHead},
}


def task(layer: Params | list[Params], stack: type[Stack] = Stack, **fields: Any) -> Any:
    num_layers = 2 if isinstance(layer, list) or stack is Repeat else 1
    layers = stack.params(layer=layer, num_layers=num_layers)
    model = LanguageModel.params(dim=8, stack=layers, **fields)
    return Scoring.params(vocab_size=V, model=model).build()


def run(task: Any, weights: Any, *, xla: bool = False, **settings: Any) -> Any:
    """Returns what each prompt becomes, [B, S, N], and the log-probabilities."""
    drawn = {} if "num_beams" in settings else {"temperature": 0.0}
    decoding = decoding_of(**{"max_tokens": N, **drawn, **settings}).build()
    ids = [Prompt(np.array(p, np.int32)) for p in PROMPTS]
    batch = prompt_batch(ids, rows=range(len(ids)), end_id=END)
    program = tf.function(
        lambda batch: decode_batch(task, weights, {}, batch, decoding, random.root_key(0)),
        autograph=False,
        jit_compile=xla,
    )
    found = program({k: tf.constant(v) for k, v in batch.items()})
    assert all(value.numpy().all() for name, value in found.items() if "is_causal" in name)
    starts = [len(p) - len(batch["prefix"][0]) for p in PROMPTS]
    return tuple(
        np.stack([v[:, s : s + N] for v, s in zip(found[k].numpy(), starts, strict=True)])
        for k in ("tokens", "log_probs")
    )


def assert_decodes_like_the_whole(task: Any, draw: Callable) -> None:
    weights = draw(task)
    tokens, log_probs = run(task, weights)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([1, None], tf.int32)])
    def last_scores(text: tf.Tensor) -> tf.Tensor:
        logits, _ = apply(task, weights, text, method="score")
        return tf.nn.log_softmax(logits[0, -1])

    for prompt, row, found in zip(PROMPTS, tokens[:, 0], log_probs[:, 0], strict=True):
        text = list(prompt)
        for token, log_prob in zip(row.tolist(), found, strict=True):
            scores = last_scores(np.array([text], np.int32)).numpy()
            assert token == np.argmax(scores)
            assert log_prob == pytest.approx(scores[token], abs=1e-4)
            text.append(token)
            if token == END:
                break


@pytest.mark.parametrize("form", LAYERS)
def test_every_form_of_layer_decodes_like_the_whole(form: str, draw: Callable) -> None:
    assert_decodes_like_the_whole(task(LAYERS[form]), draw)


class Smoothed(LanguageModel):
    """Adds to each activation those before it, but does not say so for its steps."""

    def activations(self, tokens: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return tf.cumsum(super().activations(tokens, inputs=inputs), axis=1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_whose_steps_are_of_another_one_decodes_like_the_whole(wrapped, draw):
    model = Smoothed.params(dim=8, stack=Stack.params(layer=attending(positions=Rotary)))
    model = Lora.params(layer=model, rank=1) if wrapped else model
    assert_decodes_like_the_whole(Scoring.params(vocab_size=V, model=model).build(), draw)


def assert_searches_by_the_scores_of_the_whole(task: Any, draw: Callable) -> None:
    weights = draw(task)
    found = zip(PROMPTS, *run(task, weights, num_beams=3, num_samples=3), strict=True)
    greedy = run(task, weights)[1][:, 0].sum(-1)
    for (prompt, texts, log_probs), least in zip(found, greedy, strict=True):
        whole = np.int32([[*prompt, *text] for text in texts.tolist()])
        logits, _ = apply(task, weights, whole, method="score")
        scores = tf.nn.log_softmax(logits)[:, len(prompt) - 1 : -1]
        expected = tf.gather(scores, texts, batch_dims=2).numpy()
        known = np.cumsum(texts == END, axis=1) - (texts == END) == 0
        np.testing.assert_allclose(log_probs, np.where(known, expected, log_probs), atol=1e-4)
        totals = np.where(known, log_probs, 0).sum(-1)
        assert totals.tolist() == sorted(totals.tolist(), reverse=True)
        assert len({*map(tuple, texts.tolist())}) == 3
        assert totals[0] > least - 2.0, "much worse than greedy"


@pytest.mark.parametrize("form", ["relative bias", "window", "lora", "lstm", "mixed", "no step"])
def test_every_form_of_cache_searches_by_the_scores_of_the_whole(form: str, draw: Callable) -> None:
    stack = Repeat if form == "mixed" else Stack
    assert_searches_by_the_scores_of_the_whole(task(LAYERS[form], stack), draw)


@pytest.mark.parametrize("form", MODELS)
def test_every_form_of_model_decodes_like_the_whole(form: str, draw: Callable) -> None:
    assert_decodes_like_the_whole(task(attending(), **MODELS[form]), draw)


@pytest.mark.parametrize("form", ["relative bias", "window", "lstm", "mixed", "no step"])
def test_a_scan_over_layers_decodes_like_the_whole(form: str, draw: Callable) -> None:
    assert_decodes_like_the_whole(task(LAYERS[form], stack=Repeat), draw)


SAMPLED = {"temperature": 0.7, "top_k": 5, "num_samples": 2}
SEARCHED = {"num_beams": 3, "length_penalty": 0.6, "num_samples": 2}


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("rotary", SAMPLED),
        ("rotary", SEARCHED),
        ("window", SAMPLED),
        ("gru", SEARCHED),
        ("no step", SEARCHED),
    ],
)
def test_xla_gives_the_same_texts(form: str, settings: dict[str, Any], draw: Callable) -> None:
    built = task(LAYERS[form])
    weights = draw(built)
    plain, compiled = (run(built, weights, xla=xla, **settings) for xla in (False, True))
    np.testing.assert_array_equal(plain[0], compiled[0])
    np.testing.assert_allclose(plain[1], compiled[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["rotary", "lora"])
def test_bfloat16_decodes_by_the_numbers_that_the_whole_computes(form: str, draw: Callable) -> None:
    narrow = task(LAYERS[form], dtype="bfloat16")
    weights = draw(narrow)
    _, log_probs = run(narrow, weights)
    for prompt, found in zip(PROMPTS, log_probs[:, 0, 0], strict=True):
        logits, _ = apply(narrow, weights, np.array([prompt], np.int32), method="score")
        assert found == pytest.approx(
            float(tf.reduce_max(tf.nn.log_softmax(logits[0, -1]))), abs=0.1
        )


def test_a_prompt_has_logits_at_its_last_position_alone(draw: Callable) -> None:
    built = task(attending())
    weights, sampling = draw(built), Sampling.params(max_tokens=2).build()
    batch = prompt_batch([Prompt(np.array(PROMPTS[0], np.int32))] * 2, rows=[0, 1], end_id=END)

    def program(batch: Any) -> Any:
        return decode_batch(built, weights, {}, batch, sampling, random.root_key(0))

    traced = tf.function(program, autograph=False).get_concrete_function(
        {k: tf.constant(v) for k, v in batch.items()}
    )
    shapes = [op.outputs[0].shape for op in traced.graph.get_operations() if op.outputs]
    scores = {tuple(s) for s in shapes if s.rank == 3 and s[-1] == V}
    assert scores == {(2, 1, V)}


def test_a_text_longer_than_learned_positions_is_refused() -> None:
    built = task(attending(), positions=LearnedPositions.params(max_length=5))
    built.check_positions(5)
    with pytest.raises(ParamError, match=r"take 6 positions, but model/positions has max_length=5"):
        built.check_positions(6)
    task(attending()).check_positions(10**9)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}], ids=["greedy", "beam"])
def test_a_prefix_is_seen_at_once(settings: dict[str, Any], draw: Callable) -> None:
    built = task(attending(mask=Prefix))
    weights, prompt = draw(built), [2, 5, 6, 3]
    decoding = decoding_of(max_tokens=2, **(settings or {"temperature": 0.0})).build()
    batch = prompt_batch([Prompt(np.int32(prompt), is_prefix=True)], rows=[0], end_id=END)
    batch = {name: tf.constant(value) for name, value in batch.items()}
    found = decode_batch(built, weights, {}, batch, decoding, random.root_key(0))
    text = [*prompt, *found["tokens"][0, 0].numpy()]
    for size, log_prob in zip((4, 5), found["log_probs"][0, 0].numpy(), strict=True):
        seen = np.arange(size)[None] < len(prompt)
        logits, _ = apply(built, weights, np.int32([text[:size]]), method="score", prefix=seen)
        expected = float(tf.nn.log_softmax(logits[0, -1])[text[size]])
        assert log_prob == pytest.approx(expected, abs=1e-4)
