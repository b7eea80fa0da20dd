"""The experiments of several tasks: sizes, shared weights, and runs that begin with one task."""

from __future__ import annotations

import numpy as np
import pytest

import lingo
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.config.params import ParamError
from lingo.inspection import weight_table
from lingo.learner.state import initial_state


def test_sizes_are_exact() -> None:
    """The language model has no weight of its own."""
    both, alone = (lingo.get(f"multi.{name}").build().task for name in ("numwords", "translation"))
    for task in (both, alone):
        assert weight_table.total_parameters(weight_table.rows(task)) == 251_264
    names = weight_shapes(both).keys()
    assert names == {f"tasks/translation/{name}" for name in weight_shapes(alone)}
    assert both.tasks["lm"].weights().keys() < both.weights().keys()


def test_the_schedule_gives_the_translation_its_share() -> None:
    data = lingo.get("multi.numwords", "exp.share=0.8").build().train_input
    steps = data.task_steps(2000)["translation"]
    assert abs(steps - 1600) < 3 * np.sqrt(2000 * 0.8 * 0.2)
    half = lingo.get("multi.numwords").build().train_input.task_steps(2000)
    assert half == {"translation": 1009, "lm": 991}  # as the docstring says


@pytest.mark.parametrize("begins", ["translation", "numwords"])
def test_weights_go_from_one_task_to_several_and_back(begins, tmp_path) -> None:
    pytest.importorskip("sentencepiece")
    if begins == "translation":
        ends, rename = "numwords", {"tasks/translation/(.*)": r"\1"}
    else:
        ends, rename = "translation", {"(.*)": r"tasks/translation/\1"}
    small = ("max_steps=1", "eval_inputs={}", "evaluate.answers=None", "exp.batch_size=4")
    lingo.train(lingo.get(f"multi.{begins}", *small), tmp_path / begins)
    params = lingo.get(f"multi.{ends}", *small)
    params.init_from = WarmStart.params(path=str(tmp_path / begins), rename=rename)
    built = params.build()
    transfer = built.warm_start()
    state = initial_state(built.learner, transfer.value)
    source = lingo.load(tmp_path / begins)
    for name, value in state.weights.items():
        prefix, own = "tasks/translation/", name.removeprefix("tasks/translation/")
        there = own if begins == "translation" else prefix + own
        np.testing.assert_array_equal(np.asarray(value), source.weights[there])
    if begins == "numwords":
        _check_language_model(source, tmp_path)


def _check_language_model(model, folder) -> None:
    """The loss and the predictions are those of the batch's task; an export is refused."""
    data = model.experiment.train_input.inputs["lm"]
    batch = data.batch(0) | {"task__lm": np.zeros(4, np.int32)}
    log_probs = model.predict(batch)["target_log_probs"][batch["segments"] > 0]
    assert model.loss(batch) == pytest.approx(-np.mean(log_probs), rel=1e-5)
    with pytest.raises(ParamError, match="an export is of one task"):
        model.export(folder / "exported", format="savedmodel")
