"""Beam search of an encoder-decoder: the beams of a prompt share its memory, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.text import prompt_batch
from lingo.layers.context import apply
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.learner.step import decode_batch
from lingo.ops import random
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

V, N, START, END = 9, 5, 2, 1
SOURCES = [[3, 4, 5, 6, END], [5, END], [4, 4, 6, END]]


class Scoring(SequenceToSequence):
    """A task whose model can be called by itself."""

    def score(self, tokens: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(self.model(tokens, source_tokens=source))


def task(stack: type[Stack] = Stack) -> Any:
    params = Scoring.params(vocab_size=V, model=EncoderDecoder.params(dim=8))
    params.all(DotProductAttention).set(num_heads=2)
    params.all(CrossAttention).set(num_kv_heads=1)
    for field in ("encoder", "decoder"):
        layer = getattr(params.model, field).layer
        setattr(params.model, field, stack.params(layer=layer, num_layers=2))
    return params.build()


def run(task: Any, weights: Any, sources: Any) -> tuple[Any, Any]:
    search = Beam.params(max_tokens=N, num_beams=3, num_samples=3).build()
    start = np.array([START], np.int32)
    prompts = [Prompt(start, source=np.array(ids, np.int32)) for ids in sources]
    batch = prompt_batch(prompts, rows=range(len(prompts)), end_id=END)
    program = tf.function(
        lambda batch: decode_batch(task, weights, {}, batch, search, random.root_key(0)),
        autograph=False,
    )
    found = program({name: tf.constant(value) for name, value in batch.items()})
    return found["tokens"].numpy(), found["log_probs"].numpy()


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_texts_have_the_scores_of_the_whole(stack: type[Stack], draw: Callable) -> None:
    built = task(stack)
    weights = draw(built)
    tokens, log_probs = run(built, weights, SOURCES)
    for source, texts, found in zip(SOURCES, tokens, log_probs, strict=True):
        whole = np.insert(texts[:, :-1], 0, START, axis=1)
        sources = np.array([source] * 3, np.int32)
        scores, _ = apply(built, weights, whole, sources, method="score")
        expected = tf.gather(scores, texts, batch_dims=2).numpy()
        is_there = np.cumsum(texts == END, axis=1) - (texts == END) == 0
        np.testing.assert_allclose(found[is_there], expected[is_there], atol=1e-4)
        totals = np.where(is_there, found, 0).sum(-1).tolist()
        assert totals == sorted(totals, reverse=True)
        assert len({*map(tuple, texts.tolist())}) == 3


def test_a_source_is_searched_as_if_alone(draw: Callable) -> None:
    built = task()
    weights = draw(built)
    together, _ = run(built, weights, SOURCES)
    for source, texts in zip(SOURCES, together, strict=True):
        np.testing.assert_array_equal(run(built, weights, [source])[0][0], texts)
