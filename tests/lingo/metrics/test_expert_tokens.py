"""Counts of tokens by expert: bits by their definition, and the tokens that tell most of each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.metrics import Image, Table, TokenIds, read_state, state_summaries


def state(counts):
    return {"expert_tokens": np.array(counts, float)}


def test_bits_are_the_mutual_information_of_token_and_expert() -> None:
    draw = np.random.default_rng(0).integers(0, 5, [3, 6])
    joint = draw / draw.sum()
    slow = sum(
        joint[e, v] * math.log2(joint[e, v] / (joint[e].sum() * joint[:, v].sum()))
        for e in range(3)
        for v in range(6)
        if joint[e, v]
    )
    assert read_state("experts/a", state(draw)) == {"experts/a/token_bits": pytest.approx(slow)}


def test_alike_experts_tell_nothing_and_experts_of_a_token_each_tell_all() -> None:
    assert read_state("e", state([[2, 4], [1, 2]])) == {"e/token_bits": pytest.approx(0.0)}
    assert read_state("e", state(3 * np.eye(4))) == {"e/token_bits": pytest.approx(2.0)}
    assert read_state("e", state(np.zeros([2, 3]))) == {}
    assert state_summaries("e", state(np.zeros([2, 3]))) == {}


def test_a_table_shows_the_tokens_of_each_expert_those_that_tell_most_first() -> None:
    found = state_summaries("e", state([[8, 1, 0, 4], [0, 1, 6, 4]]))
    table, picture = found["e/table"], found["e/picture"]
    assert isinstance(table, Table)
    assert table.columns["tokens"] == TokenIds([[0], [2, 3, 1]])
    np.testing.assert_allclose(table.columns["share of choices"], [13 / 24, 11 / 24])
    texts = table.with_texts(lambda ids: "abcd"[ids[0]])
    assert "&#39;a&#39;" in texts.to_markdown() or "'a'" in texts.to_markdown()
    assert isinstance(picture, Image)
    assert not picture.problem()
    columns = np.asarray(picture.pixels)[::96, ::6]
    np.testing.assert_allclose(columns[:, 0], [0, 1], atol=1e-12)  # token 0 has expert 0 alone
    np.testing.assert_allclose(columns[:, 1:3], 1 - np.sqrt(np.full([2, 2], 0.5)), atol=1e-12)
    np.testing.assert_allclose(columns[:, 3], [1, 0], atol=1e-12)
    assert columns.shape == (2, 4)
