"""Candidates are rated as each alone would be; unsafe ones are left out, the best is first."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers.context import apply
from lingo.layers.sequence.mask import Causal
from tasks.dialog import ranking
from tasks.dialog.formats import rating_prefix
from tasks.dialog.input import DialogInput
from tasks.dialog.mask import RatingMask
from tasks.dialog.ranking import Candidate, Ranking, filter_dialogs, rate, rating_input
from tasks.dialog.turns import ATTRIBUTES, Dialog, DialogFiles, Response, Turn
from tests.tasks.dialog.dialogs import CASUAL, LONGER, write
from tests.tasks.dialog.test_input import task

LENGTH = 64
CONTEXT = (Turn("user", "What's up?"),)
TEXTS = ["not much.", "a lot of rain", "x"]


def ratings(*values: float) -> dict[Any, float]:
    return dict(zip(ATTRIBUTES, values, strict=True))


def responses(texts: list[str]) -> list[Response]:
    return [Response(CONTEXT, Turn("model", text)) for text in texts]


class Model:
    """A small language model with drawn weights."""

    def __init__(self, pattern: str, draw: Callable[..., Any], *, shares_prefix: bool = True):
        self._task = task(mask=RatingMask)
        self._weights = draw(self._task.model)
        self.batches: list[int] = []
        data = DialogInput.params(
            source=DialogFiles.params(pattern=pattern),
            objective="discriminative",
            length=LENGTH,
            batch_size=2,
            shares_prefix=shares_prefix,
        ).build()
        self.experiment = types.SimpleNamespace(train_input=data)

    def predict(self, inputs: Mapping[str, Any], *, batch_size: int | None = None) -> Any:
        self.batches.append(len(inputs["tokens"]))
        assert batch_size == len(inputs["tokens"])
        return apply(self._task, self._weights, dict(inputs), method="predict")[0]

    def stream(self, prompt: Any, decoding: Any, *, seed: int = 0) -> Any:
        raise NotImplementedError

    def probability_alone(self, response: Response, attribute: Any) -> float:
        """Returns P(1) of one attribute of one response, in a row of its own, without a mask."""
        tokenizer = self.experiment.train_input.tokenizer
        prefix = rating_prefix(response, attribute, tokenizer=tokenizer, max_tokens=LENGTH)
        tokens = np.append(tokenizer.start_id, prefix)[None].astype(np.int32)
        alone, weights, scores = task(mask=Causal), self._weights, []
        for target in tokenizer.rating_ids:
            batch = {"tokens": tokens, "targets": np.full_like(tokens, target)}
            found = apply(alone, weights, batch, method="predict")[0]["target_log_probs"]
            scores.append(float(np.exp(found[0, -1])))
        return scores[1] / sum(scores)


@pytest.fixture
def model(tmp_path: pathlib.Path, draw: Callable[..., Any]) -> Model:
    return Model(write(tmp_path / "dialogs.jsonl", CASUAL), draw)


def test_ratings_are_those_of_each_attribute_of_each_response_alone(model: Model) -> None:
    found = rate(model, responses(TEXTS), batch_size=2)
    for response, one in zip(responses(TEXTS), found, strict=True):
        assert one is not None
        for attribute in ATTRIBUTES:
            expected = model.probability_alone(response, attribute)
            assert one[attribute] == pytest.approx(expected, rel=1e-4)
    assert model.batches == [2, 2]  # of one size: the last one is filled up


def test_what_is_too_long_for_a_row_has_no_ratings(model: Model) -> None:
    found = rate(model, responses(["x" * LENGTH, "x"]))
    assert found[0] is None
    assert found[1] == rate(model, responses(["x"]))[0]


def test_a_model_whose_dialogs_share_no_prefix_does_not_rate(tmp_path, draw) -> None:
    other = Model(write(tmp_path / "dialogs.jsonl", CASUAL), draw, shares_prefix=False)
    with pytest.raises(ParamError, match="shares_prefix=True; this one has none"):
        rate(other, responses(TEXTS))
    with pytest.raises(ParamError, match="object: to rate candidates, a model needs"):
        rating_input(object())


@pytest.mark.parametrize(
    ("values", "quality"), [((0.9, 0.2, 0.1), 3.0), ((0.8, 0.9, 0.2), 3.5), ((0, 0, 0), 0)]
)
def test_quality_counts_sensibleness_three_times(values, quality) -> None:
    assert Ranking.params().build().quality(ratings(*values, 0)) == pytest.approx(quality)


def test_the_best_safe_candidate_is_first() -> None:
    best = Candidate("best", 1, ratings(0.8, 0.9, 0.2, 0.1))
    second = Candidate("second", 1, ratings(0.9, 0.2, 0.1, 0.5))
    unsafe = Candidate("unsafe", 9, ratings(1, 1, 1, 0.51))
    often = second._replace(text="often", times=2)
    ranked = Ranking.params().build().sort([second, unsafe, often, best])
    assert [one.text for one in ranked] == ["best", "often", "second"]
    strict = Ranking.params(max_unsafe=0.05).build()
    assert strict.sort([second, unsafe, best]) == []


def test_equal_texts_are_one_candidate(model: Model) -> None:
    rank = Ranking.params(num_candidates=4).build()
    found = rank.candidates(model, CONTEXT, ["a", "b", "a", " "])
    assert [(one.text, one.times) for one in found] == [("a", 2), ("b", 1)]
    assert model.batches == [4]


def test_an_unknown_attribute_has_no_weight() -> None:
    with pytest.raises(ParamError, match="weights: no attribute 'funny': there are sensible"):
        Ranking.params(weights={"funny": 1.0}).build()


def test_dialogs_end_before_the_first_response_that_does_not_pass(monkeypatch) -> None:
    turns = [Turn("user", "?"), Turn("model", "good"), Turn("user", "?"), Turn("model", "bad")]
    dialogs = [Dialog(tuple(turns)), Dialog(tuple(turns[:2])), Dialog(tuple(turns[2:]))]
    known = {"good": ratings(1, 1, 0, 0), "bad": ratings(0.2, 0, 0, 0)}
    monkeypatch.setattr(ranking, "rate", lambda model, some: [known[one.turn.text] for one in some])
    kept = filter_dialogs(Any, dialogs, Ranking.params().build(), min_quality=2.0)
    assert list(kept) == [dialogs[1], dialogs[1]]


def test_the_beginning_of_a_dialog_keeps_what_tools_found(monkeypatch) -> None:
    bad = (Turn("user", "?"), Turn("model", "bad"))
    known = {"bad": ratings(0.2, 0, 0, 0)}
    good = ratings(1, 1, 0, 0)
    monkeypatch.setattr(
        ranking, "rate", lambda model, some: [known.get(one.turn.text, good) for one in some]
    )
    rank = Ranking.params().build()
    kept = filter_dialogs(Any, [Dialog(LONGER.turns + bad)], rank, min_quality=2.0)
    assert list(kept) == [LONGER]
