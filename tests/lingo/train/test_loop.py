"""The loop: what is due when, which evaluation is best, and how steps are computed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.data.sources.files import DataError
from lingo.layers.initial import TruncatedNormal
from lingo.lazy import tf
from lingo.train import loop
from lingo.train.checkpoints import commit, store
from lingo.train.checkpoints.errors import NoUsableCheckpoint
from lingo.train.evaluation import best
from lingo.train.evaluation.evaluate import Between
from lingo.train.experiment import Experiment, Guard
from lingo.train.faults.errors import NumericFailure
from lingo.train.loop import Outcome
from lingo.train.record.journal import Journal
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.storage import StorageError
from lingo.train.run import train
from lingo.train.runtimes.local import Local, LocalProgram
from lingo.train.runtimes.runtime import ProgramError
from lingo.train.start import Request

Make = Callable[..., Params]
Train = Callable[..., Outcome]
Rows = Callable[[pathlib.Path], list[dict[str, float]]]
Losses = Callable[[pathlib.Path], dict[float, float]]
Weights = Callable[[pathlib.Path], dict[str, np.ndarray]]


def test_every_row_of_a_loop_has_its_own_metrics_and_its_pace(
    experiment: Make, run: Train, rows: Rows, text: str, tmp_path: pathlib.Path
) -> None:
    params = experiment(text).set(steps_per_loop=3)
    run(params, tmp_path / "run")
    paced = [row["step"] for row in rows(tmp_path / "run") if "perf/steps_per_sec" in row]
    assert paced == [3, 4, 5, 6]  # a checkpoint is due at 2, and the first call compiles


def test_steps_that_stay_not_finite_end_the_run_and_change_nothing(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path
) -> None:
    broken = experiment(text)
    broken.task.model.embedding.init = TruncatedNormal.params(stddev=1e38)
    broken.guard = Guard.params(max_skipped_steps=3)
    with pytest.raises(NumericFailure, match=r"step 3: .* 3 times in a row"):
        run(broken, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text().startswith("failed")


def test_a_run_none_of_whose_steps_was_finite_is_not_done(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path
) -> None:
    broken = experiment(text, max_steps=2).set(eval_inputs={})
    broken.task.model.embedding.init = TruncatedNormal.params(stddev=1e38)
    for _ in range(2):
        with pytest.raises(NumericFailure, match=r"step 2: .* 2 times in a row"):
            run(broken, tmp_path / "run")
        assert (tmp_path / "run/STATUS").read_text() == "failed at step 2\n"


def test_steps_left_out_are_counted_across_a_resume(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path
) -> None:
    broken = experiment(text, max_steps=2).set(eval_inputs={})
    broken.task.model.embedding.init = TruncatedNormal.params(stddev=1e38)
    broken.guard = Guard.params(max_skipped_steps=3)
    with pytest.raises(NumericFailure):
        run(broken, tmp_path / "run")
    with pytest.raises(NumericFailure, match=r"step 3: .* 3 times in a row"):
        run(broken.set(max_steps=9), tmp_path / "run")


def test_evaluation_can_use_the_moving_average(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path
) -> None:
    trained, averaged = experiment(text), experiment(text)
    averaged.evaluate.weights = "ema"
    one = run(trained, tmp_path / "trained").evaluations["same"]["eval/loss"]
    other = run(averaged, tmp_path / "averaged").evaluations["same"]["eval/loss"]
    assert one != other


# ---- the best evaluation, and when it is enough ------------------------------------------------


def compared(params: Params, **evaluate: object) -> Params:
    """Evaluates at steps 1, 2, 3, ... by a metric, and has no other reason for a checkpoint."""
    params.evaluate.set(every_steps=1, metric="same/loss", **evaluate)
    params.checkpoint.set(every_steps=100, keep=1, keep_best=1)
    return params


def evaluated(monkeypatch: pytest.MonkeyPatch, **losses: float) -> None:
    """Lets the evaluation of step n find the loss `at_n`."""

    def found(
        experiment: Experiment, program: LocalProgram, *, between: Between
    ) -> Iterator[tuple[str, object]]:
        list(between([0]))
        yield "same", {"loss": losses[f"at_{int(program.state().step)}"]}

    monkeypatch.setattr(loop, "evaluations", found)


def test_a_run_ends_early_when_evaluations_get_no_better(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(monkeypatch, at_1=3.0, at_2=2.0, at_3=2.5, at_4=2.0, at_5=1.0, at_6=4.0)
    directory = tmp_path / "run"
    outcome = run(compared(experiment(text), patience=2), directory)
    assert (outcome.step, outcome.state, outcome.signal) == (4, "done (early)", None)
    assert (directory / "STATUS").read_text() == "done (early) at step 4\n"
    assert store.steps(directory / "checkpoints") == [2, 4]
    assert run(compared(experiment(text, max_steps=9), patience=2), directory).step == 4, (
        "it is enough"
    )
    assert run(compared(experiment(text), patience=3), directory).step == 6
    assert (directory / "STATUS").read_text() == "done at step 6\n"
    assert store.steps(directory / "checkpoints") == [5, 6]


def test_the_best_survives_a_crash_and_a_resume(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    evaluated(monkeypatch, at_1=3.0, at_2=2.0)  # the third evaluation is the end of the process
    with pytest.raises(KeyError, match="at_3"):
        run(compared(experiment(text)), directory)
    evaluated(monkeypatch, at_3=2.5, at_4=2.2, at_5=2.1, at_6=2.3)
    run(compared(experiment(text)), directory)
    assert store.steps(directory / "checkpoints") == [2, 6]
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint of step 1"):
        best.choose(compared(experiment(text), goal="max").build(), RunDirectory(directory), "best")
    assert (
        best.choose(compared(experiment(text)).build(), RunDirectory(directory), "best").step == 2
    )


def test_a_metric_that_evaluations_do_not_give_stops_the_run_and_loses_nothing(
    experiment: Make, run: Train, rows: Rows, text: str, tmp_path: pathlib.Path
) -> None:
    params = compared(experiment(text))
    params.evaluate.metric = "same/losss"
    with pytest.raises(ParamError, match=r"no 'losss'. Did you mean 'loss'\?"):
        run(params, tmp_path / "run")
    params.evaluate.metric = "same/loss"
    assert run(params, tmp_path / "run").step == 6
    found = [row["step"] for row in rows(tmp_path / "run") if "eval/loss" in row]
    assert found == [1, 2, 3, 4, 5, 6]


# ---- checkpoints -------------------------------------------------------------------------------


def unwritable(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Lets checkpoints of some steps fail after everything else is written."""
    written = commit.write_manifest

    def full(folder: pathlib.Path, *, step: int, **content: Any) -> None:
        if step in steps:
            raise OSError(28, "No space left on device")
        written(folder, step=step, **content)

    monkeypatch.setattr(commit, "write_manifest", full)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_last_save_is_never_done(
    experiment: Make,
    run: Train,
    text: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    asynchronous: bool,
) -> None:
    params = experiment(text).set(eval_inputs={})
    params.checkpoint.asynchronous = asynchronous
    with monkeypatch.context() as patch:
        unwritable(patch, 6)
        with pytest.raises(StorageError, match=r"step_00000006: No space left on device .*needed"):
            run(params, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "failed at step 4\n"
    assert store.steps(tmp_path / "run/checkpoints") == [2, 4]
    run(params, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "done at step 6\n"


def test_a_failed_save_ends_the_run_with_what_was_done_since_saved(
    experiment: Make,
    run: Train,
    text: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = experiment(text).set(eval_inputs={}, max_steps=1000)
    params.checkpoint.every_steps = 20
    unwritable(monkeypatch, 20)
    with pytest.raises(StorageError, match="step_00000020"):
        run(params, tmp_path / "run")
    step = store.steps(tmp_path / "run/checkpoints")[-1]
    assert 20 < step < 1000
    assert (tmp_path / "run/STATUS").read_text() == f"failed at step {step}\n"


def test_status_names_the_last_checkpoint_that_is_committed(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, advanced = [], LocalProgram.train

    def noted(self: LocalProgram, batches: dict[str, np.ndarray]) -> object:
        status = (tmp_path / "run/STATUS").read_text()
        said.append((int(status.split()[-1]), store.steps(tmp_path / "run/checkpoints")))
        return advanced(self, batches)

    monkeypatch.setattr(LocalProgram, "train", noted)
    run(experiment(text).set(eval_inputs={}), tmp_path / "run")
    assert all(step == 0 or step in committed for step, committed in said)


def test_multiples_that_stay_are_written_whatever_the_others_are(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path
) -> None:
    params = experiment(text, max_steps=8).set(eval_inputs={}, steps_per_loop=10)
    params.checkpoint.set(every_steps=7, keep=1, keep_every_steps=3)
    run(params, tmp_path / "run")
    assert store.steps(tmp_path / "run/checkpoints") == [3, 6, 7, 8]  # 7 to go back to


# ---- how steps are computed --------------------------------------------------------------------


def test_an_error_of_the_program_names_the_step_and_loses_none(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_on = LocalProgram.train

    def failing(self: LocalProgram, batches: dict[str, np.ndarray]) -> object:
        if self.state().step == 3:
            raise tf.errors.InvalidArgumentError(None, None, "indices[0] = 9 is not in [0, 3)")
        return train_on(self, batches)

    monkeypatch.setattr(LocalProgram, "train", failing)
    with pytest.raises(ProgramError, match=r"step 4: InvalidArgumentError: indices\[0\] = 9"):
        run(experiment(text), tmp_path / "run")
    assert store.steps(tmp_path / "run/checkpoints") == [2, 3]


def test_reports_are_those_of_their_steps_however_many_are_done_together(
    experiment: Make, run: Train, losses: Losses, text: str, tmp_path: pathlib.Path
) -> None:
    plain = experiment(text, max_steps=21).set(eval_inputs={})
    plain.checkpoint.every_steps = plain.evaluate.every_steps = 100
    run(plain, tmp_path / "plain")
    together = plain.copy().set(steps_per_loop=7)
    together.summary.every_steps = 10
    run(together, tmp_path / "together")
    expected = losses(tmp_path / "plain")
    assert losses(tmp_path / "together") == {step: expected[step] for step in (1, 10, 20, 21)}


def test_steps_done_together_under_xla_are_those_without(
    experiment: Make, run: Train, losses: Losses, text: str, tmp_path: pathlib.Path
) -> None:
    run(experiment(text), tmp_path / "plain")
    compiled = experiment(text).set(steps_per_loop=3, mesh=Local.params(xla=True))
    run(compiled, tmp_path / "xla")
    plain, xla = losses(tmp_path / "plain"), losses(tmp_path / "xla")
    assert xla == pytest.approx(plain, rel=1e-5)


def test_computing_in_bfloat16_trains_as_well_and_keeps_float32(
    experiment: Make,
    run: Train,
    losses: Losses,
    weights: Weights,
    text: str,
    tmp_path: pathlib.Path,
) -> None:
    single, half = experiment(text), experiment(text)
    half.task.dtype = "bfloat16"
    assert run(single, tmp_path / "single").step == run(half, tmp_path / "half").step
    found = losses(tmp_path / "half")
    for step, expected in losses(tmp_path / "single").items():
        assert found[step] == pytest.approx(expected, rel=0.02)
        assert found[step] != expected
    assert {value.dtype.name for value in weights(tmp_path / "half").values()} == {"float32"}


def test_a_deterministic_run_asks_tensorflow_to_be(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append(1))
    params = experiment(text, max_steps=1).set(eval_inputs={})
    run(params, tmp_path / "run")
    assert not asked
    params.mesh.deterministic = True
    run(params.set(max_steps=2), tmp_path / "run")
    assert asked, "and it may change when a run resumes"


def test_utilization_is_the_models_operations_by_what_was_measured(
    experiment: Make,
    run: Train,
    rows: Rows,
    text: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Local, "matmul_flops_per_second", lambda self, dtype: 1e9)
    params = experiment(text, max_steps=2).set(eval_inputs={})
    run(params, tmp_path / "run")
    facts = json.loads((tmp_path / "run/environment.json").read_text())
    assert (facts["matmul_flops_per_second"], facts["matmul_dtype"]) == (1e9, "float32")
    row = rows(tmp_path / "run")[-1]
    flops = 3 * params.build().task.flops([4, 8])
    expected = flops * row["perf/steps_per_sec"] / 1e9
    assert row["perf/model_flops_utilization"] == pytest.approx(expected)


def test_a_profile_covers_the_steps_asked_for(
    experiment: Make, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[object] = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: log.append(folder))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: log.append("stop"))
    train_on = LocalProgram.train

    def noted(self: LocalProgram, batches: dict[str, np.ndarray]) -> object:
        log.append(len(batches["rows"]))
        return train_on(self, batches)

    monkeypatch.setattr(LocalProgram, "train", noted)
    params = experiment(text, max_steps=12).set(eval_inputs={}, steps_per_loop=10)
    params.checkpoint.every_steps = params.evaluate.every_steps = 100
    train(Request(params, "{}", "", profile_steps=range(3, 5)), RunDirectory(tmp_path / "run"))
    assert log == [3, str(tmp_path / "run/profile"), 2, "stop", 7]


def test_steps_that_were_done_but_not_noted_are_not_saved(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Journal.add

    def failing(self: Journal, *args: Any) -> dict[str, float]:
        if self.at.step == 4:
            raise DataError("its origin cannot be read")
        return add(self, *args)

    monkeypatch.setattr(Journal, "add", failing)
    params = experiment(text).set(steps_per_loop=3)
    params.checkpoint.every_steps = params.evaluate.every_steps = 3
    with pytest.raises(DataError, match="its origin"):
        run(params, tmp_path / "run")
    assert store.steps(tmp_path / "run/checkpoints") == [3]


def test_a_device_that_is_lost_when_the_state_is_read_is_named(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: LocalProgram, *, alone: bool) -> object:
        raise tf.errors.InternalError(None, None, "the device is gone")

    monkeypatch.setattr(LocalProgram, "state", lost)
    with pytest.raises(ProgramError, match=r"step 2: .* is gone"):
        run(experiment(text).set(eval_inputs={}), tmp_path / "run")
