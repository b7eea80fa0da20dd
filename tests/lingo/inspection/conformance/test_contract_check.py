"""`lingo check --contract` finds each mistake in a user's file, by name, and only these."""

from __future__ import annotations

import functools
import pathlib

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.inspection.conformance.claim import Claim

FILE = pathlib.Path(__file__).parent / "own_mistakes.py"
SOURCE = FILE.read_text()

SUMS = "losses and denominators of uneven parts add up to the whole"
PADDING = "examples of weight 0 change nothing"
METRICS = "metrics of uneven parts add up to the whole"
STEPS = "position by position = whole call"
ROWS = "no row depends on another row of the batch"
GRADIENT = "every weight has a gradient"
HIDDEN = "no variable of its own, and no random numbers but from random_key"
TWICE = "the batch of a step made twice is the same"
RESUMED = "20 steps, saved and resumed after 10, = 20 steps"
pytestmark = pytest.mark.xdist_group("contract")  # each experiment is checked once


@functools.cache
def claims(name: str) -> dict[tuple[str, str], Claim]:
    """Returns the claims about an experiment of the file, by subject and text."""
    (result,) = lingo.check(names=[f"{FILE}:{name}"], contract=True)
    found = {(claim.subject, claim.text): claim for claim in result.claims}
    assert len(found) == len(result.claims)
    assert (result.error is None) == all(c.outcome != "FAILED" for c in result.claims)
    return found


def line_of(text: str) -> str:
    return f"{FILE}:{1 + SOURCE[: SOURCE.index(text)].count(chr(10))}"


def failed(name: str) -> set[tuple[str, str]]:
    return {key for key, claim in claims(name).items() if claim.outcome == "FAILED"}


def test_an_experiment_without_mistakes_passes():
    outcomes = {key: claim.outcome for key, claim in claims("right").items()}
    assert set(outcomes.values()) == {"pass"}
    for name in ("layers/0 (Matrix)", "layers/1 (RunningSum)"):
        assert outcomes[name, STEPS] == outcomes[name, ROWS] == "pass"
    for text in (GRADIENT, SUMS, METRICS, PADDING, RESUMED):
        assert outcomes["task (Fit)", text] == "pass"


@pytest.mark.parametrize(
    ("subject", "text", "detail"),
    [
        ("layers/0 (WrongStep)", STEPS, "by `step` on chunks of 1, 1, 1 positions: result differs"),
        ("layers/1 (MixingRows)", ROWS, "rows 0 to 0 without the other rows: result 0"),
        ("task (MeanFit)", GRADIENT, "does not depend on the weight layers/2/b: use it in the"),
        ("task (MeanFit)", SUMS, "parts of 1 and 3 rows together: the loss 'loss' differs by"),
        ("train_input (RandomNumbers)", TWICE, "the first batch, made twice, differs in x"),
    ],
    ids=["step", "rows", "gradient", "mean", "input"],
)
def test_a_mistake_is_found_and_named(subject, text, detail):
    claim = claims("wrong")[subject, text]
    assert claim.outcome == "FAILED"
    code = {
        GRADIENT: "class UnusedWeight(",
        TWICE: 'examples(self, numbers):\n        return {"x": np.random.default_rng()',
    }.get(text, f"class {subject.partition('(')[2].rstrip(')')}(")
    assert claim.detail.startswith(f"{line_of(code)}: ")
    assert detail in claim.detail
    assert len(str(claim).splitlines()) == 2


def test_a_loss_that_forgets_the_weights_of_examples_is_found():
    claim = claims("forgetful")["task (ForgetfulFit)", PADDING]
    assert claim.outcome == "FAILED"
    assert "8 examples of weight 0 after 4 others change the loss 'loss' from" in claim.detail
    assert failed("forgetful") == {("task (ForgetfulFit)", PADDING)}


def test_nothing_else_is_called_a_mistake():
    layers = {key for key in failed("wrong") if key[0].startswith("layers")}
    assert layers == {("layers/0 (WrongStep)", STEPS), ("layers/1 (MixingRows)", ROWS)}


@pytest.mark.parametrize(
    ("subject", "text", "detail"),
    [
        ("layers/0 (HiddenVariable)", "* tf.Variable", "uses a tf.Variable"),
        ("layers/1 (HiddenNoise)", "+ tf.random.normal", "draws from a generator of TensorFlow"),
    ],
    ids=["variable", "random numbers"],
)
def test_state_that_a_layer_hides_is_found_by_layer_and_line(subject, text, detail):
    claim = claims("hidden")[subject, HIDDEN]
    assert claim.outcome == "FAILED"
    assert line_of(text) in claim.detail
    assert detail in claim.detail
    others = [c for (of, _), c in claims("hidden").items() if of == subject and c is not claim]
    assert {other.outcome for other in others} == {"not checked"}


def test_an_input_that_depends_on_earlier_batches_is_found():
    assert any(subject.startswith("train_input") for subject, _ in failed("counting"))
    assert ("task (Fit)", RESUMED) in failed("counting")


def test_an_error_of_a_layer_is_told_with_its_line():
    claim = claims("crashing")["task (Fit)", "a training step computes a batch"]
    assert claim.outcome == "FAILED"
    assert claim.detail.startswith(f"{line_of('x @ self.w[:1]')}: ")
    assert len(str(claim).splitlines()) == 2


def test_all_experiments_at_once_are_refused():
    with pytest.raises(ParamError, match="name them in `names`"):
        lingo.check(contract=True)
