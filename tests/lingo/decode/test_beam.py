"""Beam search, with a model whose every score depends on all tokens before: against the scores of
all texts that there are, and against greedy decoding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.decode import Beam, Sampling
from lingo.ops import random
from tests.lingo.decode.scores import END, Model, Text, assert_are, batch_of, cut, run

V, N = 3, 4
PROMPTS = [[2, 0], [2, 2, 0, 1, 0], [2, 1, 2]]
ALL = V**N  # as many beams as there are texts of N tokens


def texts_of(model: Model, prompt: Sequence[int], end_id: int) -> list[Text]:
    """Returns all texts: those of at most N tokens with an end, and those of N without."""
    return [
        model.text(prompt, new)
        for size in range(1, N + 1)
        for new in itertools.product(range(V), repeat=size)
        if end_id not in new[:-1] and (end_id in new or size == N)
    ]


def beam(**settings: Any) -> Beam:
    return Beam.params(**{"max_tokens": N, **settings}).build()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 3.0])
@pytest.mark.parametrize("end_id", [END, -1], ids=["end", "no end"])
def test_enough_beams_find_the_best_of_all_texts(seed, length_penalty, end_id):
    model = Model(seed, V)
    search = beam(num_beams=ALL, num_samples=3, length_penalty=length_penalty)
    for prompt, found in zip(PROMPTS, run(model, search, PROMPTS, end_id=end_id), strict=True):
        texts = texts_of(model, prompt, end_id)
        best = sorted(texts, key=lambda text: -text.score(length_penalty))
        assert_are(found, best[:3])
        scores = [search.score(text.log_probs) for text in found]
        np.testing.assert_allclose(scores, [t.score(length_penalty) for t in best[:3]], rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_is_greedy_decoding(seed: int) -> None:
    model, prompts = Model(seed, vocab_size=7), [[2, 5], [2, 3, 4, 6, 6], [2, 6, 3]]
    greedy = Sampling.params(max_tokens=9, temperature=0.0).build()
    expected = run(model, greedy, prompts)
    found = run(model, beam(num_beams=1, max_tokens=9), prompts)
    for texts, others in zip(found, expected, strict=True):
        assert_are(texts, others)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_texts_are_different_and_scored_by_the_model(length_penalty: float) -> None:
    model, prompts = Model(0, vocab_size=7), [[2, 5], [2, 3, 4, 6, 6], [2, 6, 3]]
    search = beam(num_beams=5, num_samples=5, max_tokens=8, length_penalty=length_penalty)
    for prompt, texts in zip(prompts, run(model, search, prompts), strict=True):
        assert len({tuple(text.tokens) for text in texts}) == 5
        assert_are(texts, [model.text(prompt, text.tokens) for text in texts])
        scores = [text.score(length_penalty) for text in texts]
        assert scores == sorted(scores, reverse=True)


def test_what_a_prompt_becomes_does_not_depend_on_those_beside_it() -> None:
    model, search = Model(1, V), beam(num_beams=3, num_samples=3, length_penalty=0.6, max_tokens=9)
    together = run(model, search, PROMPTS)
    for prompt, expected in zip(PROMPTS, together, strict=True):
        (alone,) = run(model, search, [prompt])
        assert_are(alone, expected)
    assert len({tuple(texts[0].tokens) for texts in together}) > 1


def test_fewer_texts_are_the_first_of_more() -> None:
    model = Model(2, V)
    five, two = (
        run(model, beam(num_beams=5, num_samples=n, max_tokens=9), PROMPTS) for n in (5, 2)
    )
    for texts, others in zip(two, five, strict=True):
        assert_are(texts, others[:2])


def test_texts_that_are_not_there_have_no_probability() -> None:
    (texts,) = run(Model(0, V), beam(num_beams=4, num_samples=4, max_tokens=1), [[2]])
    assert sorted(text.tokens for text in texts[:3]) == [[0], [1], [2]]
    assert texts[3].log_probs == [-np.inf]


def test_a_model_that_has_diverged_ends_nevertheless() -> None:
    def step(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        return tf.fill([tf.shape(tokens)[0], V], np.nan), caches

    found = beam(num_beams=2).decode(step, {}, batch_of([[2]]), random.root_key(0))
    assert found["tokens"].shape == (1, 1, N)


def test_xla_finds_the_same() -> None:
    model, search = Model(3, V), beam(num_beams=4, num_samples=2, length_penalty=0.6, max_tokens=9)
    for texts, others in zip(
        run(model, search, PROMPTS, xla=True), run(model, search, PROMPTS), strict=True
    ):
        assert_are(texts, others)


def test_a_text_that_must_end_takes_no_further_step() -> None:
    steps = []

    def ends(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        tf.py_function(lambda: steps.append(1), [], [])
        return 9 * tf.one_hot(tf.fill(tf.shape(tokens)[:1], END), 7), caches

    batch, search = batch_of([[2], [2, 3, 4]]), beam(num_beams=2, max_tokens=50, length_penalty=1.0)
    program = tf.function(lambda: search.decode(ends, {}, batch, random.root_key(0)))
    assert (program()["tokens"].numpy()[:, 0, -50:] == END).all()
    assert len(steps) <= 3, "the prefix, and two tokens of the longer prompt"


def test_a_search_goes_on_while_a_longer_text_may_score_more() -> None:
    table = np.log(np.float32([[0.4, 0.6], [0.999, 0.001]]))  # ends at once, or hardly ever

    def step(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        return tf.gather(table, tf.cast(tokens[:, -1] == 0, tf.int32)), caches

    for length_penalty, size in ((0.0, 1), (3.0, 8)):
        search = beam(num_beams=2, max_tokens=8, length_penalty=length_penalty)
        found = search.decode(step, {}, batch_of([[2]]), random.root_key(0))["tokens"][0, 0].numpy()
        assert cut(found.tolist(), [0.0] * 8).tokens == [[1], [0] * 8][size > 1]


def test_what_a_step_leaves_alone_is_not_moved() -> None:
    def step(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        logits = tf.gather(np.eye(5, dtype=np.float32), tokens[:, -1])
        return logits, {**caches, "past": caches["past"] + 1}

    def program(batch: Any) -> Any:
        caches = {"memory": tf.zeros([1, 31]), "past": tf.zeros([1, 37])}
        return beam(num_beams=2).decode(step, caches, batch, random.root_key(0))

    graph = tf.function(program).get_concrete_function(batch_of([[2]])).graph
    body = next(g for name, g in _functions(graph) if "while_body" in name)
    taken = [op.outputs[0].shape[-1] for op in body.get_operations() if op.type == "GatherV2"]
    assert 37 in taken
    assert 31 not in taken


def _functions(graph: Any) -> list[tuple[str, Any]]:
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

    return [
        (f.signature.name, function_def_to_graph(f)) for f in graph.as_graph_def().library.function
    ]


def test_a_text_has_at_most_some_tokens_more_than_its_source() -> None:
    model, prompts = Model(2, vocab_size=7), [[2, 5], [2, 3]]
    search = beam(num_beams=3, num_samples=3, max_tokens=9, max_extra_tokens=2)
    batch = batch_of(prompts, end_id=-1)
    batch["source_segments"] = tf.constant([[1, 0, 0], [1, 1, 1]])  # 1 and 3 tokens
    caches = {"past": tf.zeros([2], tf.int32)}
    found = search.decode(model.step, caches, batch, random.root_key(0))
    lengths = (found["tokens"].numpy() >= 0).sum(-1)
    np.testing.assert_array_equal(lengths, [[3] * 3, [5] * 3])
    for prompt, size, tokens in zip(prompts, (3, 5), found["tokens"].numpy(), strict=True):
        plain = beam(num_beams=3, num_samples=3, max_tokens=size)
        (expected,) = run(model, plain, [prompt], end_id=-1)
        assert [row[:size].tolist() for row in tokens] == [text.tokens for text in expected]


def test_extra_tokens_need_a_source() -> None:
    with pytest.raises(ValueError, match="max_extra_tokens=2 is for models that read a source"):
        run(Model(0, V), beam(max_extra_tokens=2), PROMPTS)


def attended(tokens: Sequence[int]) -> np.ndarray:
    """Returns how much of two source positions the tokens of a text and its prompt attend to."""
    first = sum(0.1 * (1 + token) for token in tokens)
    return np.array([first, 0.3 * len(tokens), 0.0])  # the last one is padding


@pytest.mark.parametrize("coverage_penalty", [0.1, 2.0])
def test_a_text_loses_for_what_its_attention_has_not_covered(coverage_penalty: float) -> None:
    model, alpha, prompt = Model(1, V), 0.6, [2]
    search = beam(
        num_beams=ALL, num_samples=3, length_penalty=alpha, coverage_penalty=coverage_penalty
    )

    def step(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        logits, caches = model.step(tokens, index, caches)
        size = tf.fill([tf.shape(tokens)[0]], 0.3 * tf.cast(tf.shape(tokens)[1], tf.float32))
        first = tf.reduce_sum(0.1 * tf.cast(1 + tokens, tf.float32), axis=1)
        seen = tf.stack([first, size, 0.0 * size], axis=1)
        return logits, {**caches, "attention/coverage": caches["attention/coverage"] + seen}

    def score(text: Text) -> float:
        covered = attended([*prompt, *text.tokens[:-1]])[:2]  # before its last token is chosen
        return text.score(alpha) + coverage_penalty * np.log(np.minimum(covered, 1)).sum()

    caches = {"past": tf.zeros([1], tf.int32), "attention/coverage": tf.zeros([1, 3])}
    found = search.decode(step, caches, batch_of([prompt]), random.root_key(0))
    arrays = (found[name][0].numpy().tolist() for name in ("tokens", "log_probs"))
    texts = [cut(*text, end_id=END) for text in zip(*arrays, strict=True)]
    best = sorted(texts_of(model, prompt, END), key=score, reverse=True)
    assert_are(texts, best[:3])
    plain = sorted(texts_of(model, prompt, END), key=lambda text: -text.score(alpha))
    assert coverage_penalty < 1 or [t.tokens for t in plain[:3]] != [t.tokens for t in best[:3]]


def test_a_coverage_penalty_needs_a_layer_that_knows_what_it_covered() -> None:
    with pytest.raises(ValueError, match=r"coverage_penalty=0\.1, but no layer of the model adds"):
        run(Model(0, V), beam(coverage_penalty=0.1), PROMPTS)
