"""The loop: what is due when, how steps are computed, which evaluation is best or enough."""

import json

import pytest

from lingo.checkpoints import store
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.config.base.errors import NumericFailure
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Guard
from lingo.data.files import DataError
from lingo.layers.initial import TruncatedNormal
from lingo.runtimes.local import Local, LocalProgram
from lingo.runtimes.program import ProgramError
from lingo.trainer import periodic_evaluation, throughput
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.evaluate import EvaluationResult
from lingo.trainer.loop import Outcome, spans
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.step_recorder import StepRecorder

pytestmark = pytest.mark.usefixtures("once_compiled")


def test_an_outcome_is_shown_by_a_line_per_input() -> None:
    scalars = {"loss/total": 2.3456789, "perf/steps_per_sec": 5.04441048545}
    first = {"eval/loss": 0.1 + 0.2, "eval/moe/load": 0.5}
    evaluations = {"first": first, "second": {"eval/accuracy": 1e-5}}
    outcome = Outcome(7, scalars, evaluations, state="done")
    assert repr(outcome).splitlines() == [
        "done at step 7",
        "  training:  loss/total 2.3457",
        "  first:  loss 0.3000",
        "  second:  accuracy 1.000e-05",
    ]
    assert repr(Outcome(3, {}, {}, signal=15)) == "stopped by signal 15 at step 3"


def test_loops_end_where_something_is_due():
    assert list(spans(3, 21, size=10, due=[6, 20])) == [
        range(3, 6), range(6, 12), range(12, 18), range(18, 20), range(20, 21),
    ]  # fmt: skip
    assert list(spans(0, 9, size=10, due=[20], bounds=(3, 5))) == [
        range(0, 3), range(3, 5), range(5, 9),
    ]  # fmt: skip


def test_every_row_of_a_loop_has_its_own_metrics_and_rates(small, run, rows, directory):
    params = small().set(steps_per_loop=3)
    run(params, directory)
    paced = [row["step"] for row in rows(directory) if "perf/steps_per_sec" in row]
    assert paced == [3, 4, 5, 6]  # a checkpoint is due at 2, and the first call compiles


@pytest.fixture
def broken(small):
    """An experiment none of whose two steps is finite."""
    broken = small(max_steps=2).set(eval_inputs={})
    broken.task.model.embedding.init = TruncatedNormal.params(stddev=1e38)
    return broken


def test_a_run_none_of_whose_steps_was_finite_is_not_done(broken, run, directory):
    for _ in range(2):
        with pytest.raises(NumericFailure, match=r"step 2: .* 2 times in a row"):
            run(broken, directory)
        assert (directory / "STATUS").read_text() == "failed at step 2\n"


def test_steps_left_out_are_counted_across_a_resume(broken, run, directory):
    broken.guard = Guard.params(max_skipped_steps=3)
    with pytest.raises(NumericFailure):
        run(broken, directory)
    with pytest.raises(NumericFailure, match=r"step 3: .* 3 times in a row"):
        run(broken.set(max_steps=9), directory)
    assert (directory / "STATUS").read_text() == "failed at step 3\n"


# ---- how steps are computed --------------------------------------------------------------------


def test_an_error_of_the_program_names_the_step_and_loses_none(small, run, directory, monkeypatch):
    train_on = LocalProgram.train

    def failing(self, batches):
        if self.state().step == 3:
            raise tf.errors.InvalidArgumentError(None, None, "indices[0] = 9 is not in [0, 3)")
        return train_on(self, batches)

    monkeypatch.setattr(LocalProgram, "train", failing)
    with pytest.raises(ProgramError, match=r"step 4: InvalidArgumentError: indices\[0\] = 9"):
        run(small(), directory)
    assert store.steps(directory / "checkpoints") == [2, 3]


def test_an_error_names_all_steps_of_a_call(small, run, directory, monkeypatch):
    def failing(self, batches):
        raise ProgramError("one of them failed")

    monkeypatch.setattr(LocalProgram, "train", failing)
    with pytest.raises(ProgramError, match=r"^steps 1 to 2: one of them failed$"):
        run(small().set(steps_per_loop=2), directory)


def test_reports_are_those_of_their_steps(small, run, losses, tmp_path):
    plain = small(max_steps=21).set(eval_inputs={})
    plain.checkpoint.every_steps = plain.evaluate.every_steps = 100
    run(plain, tmp_path / "plain")
    together = plain.copy().set(steps_per_loop=7)
    together.summary.every_steps = 10
    run(together, tmp_path / "together")
    expected = losses(tmp_path / "plain")
    assert losses(tmp_path / "together") == {step: expected[step] for step in (1, 10, 20, 21)}


def test_a_long_run_of_short_steps_is_advised_once(small, run, directory, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "FAST_STEP_MS", 1e9)
    monkeypatch.setattr(throughput, "LONG_STEPS", 1)
    params = small(max_steps=4).set(eval_inputs={})
    params.summary.every_steps = 1
    run(params, directory)
    assert capsys.readouterr().out.count("--set=steps_per_loop=10") == 1


def test_bfloat16_trains_as_well_and_keeps_float32(small, run, losses, weights, tmp_path):
    single, half = small(), small()
    half.task.dtype = "bfloat16"
    assert run(single, tmp_path / "single").step == run(half, tmp_path / "half").step
    found = losses(tmp_path / "half")
    for step, expected in losses(tmp_path / "single").items():
        assert found[step] == pytest.approx(expected, rel=0.02)
        assert found[step] != expected
    assert {value.dtype.name for value in weights(tmp_path / "half").values()} == {"float32"}


def test_a_deterministic_run_asks_tensorflow_to_be(small, run, directory, monkeypatch):
    asked = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append(1))
    params = small(max_steps=1).set(eval_inputs={})
    run(params, directory)
    assert not asked
    params.runtime.deterministic = True
    run(params.set(max_steps=2), directory)
    assert asked, "and it may change when a run resumes"


def test_utilization_is_model_flops_by_measured_flops(small, run, rows, directory, monkeypatch):
    monkeypatch.setattr(Local, "matmul_flops_per_second", lambda self, dtype: 1e9)
    params = small(max_steps=2).set(eval_inputs={})
    run(params, directory)
    facts = json.loads((directory / "environment.json").read_text())
    assert (facts["matmul_flops_per_second"], facts["matmul_dtype"]) == (1e9, "float32")
    row = rows(directory)[-1]
    flops = 3 * params.build().task.flops([4, 8])
    expected = flops * row["perf/steps_per_sec"] / 1e9
    assert row["perf/model_flops_utilization"] == pytest.approx(expected)


@pytest.mark.parametrize("peak", [0, 2**30])
def test_peak_memory_is_reported_where_a_device_counts_it(
    small, run, rows, directory, monkeypatch, peak
):
    monkeypatch.setattr(LocalProgram, "peak_memory_bytes", lambda self: peak)
    run(small(max_steps=3).set(eval_inputs={}), directory)
    reported = [row.get("perf/peak_memory_bytes") for row in rows(directory)]
    assert reported == [None, *[peak or None] * 2]


def test_a_profile_covers_the_steps_asked_for(small, directory, monkeypatch):
    log = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: log.append(folder))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: log.append("stop"))
    train_on = LocalProgram.train

    def noted(self, batches):
        log.append(len(batches["rows"]))
        return train_on(self, batches)

    monkeypatch.setattr(LocalProgram, "train", noted)
    params = small(max_steps=12).set(eval_inputs={}, steps_per_loop=10)
    params.checkpoint.every_steps = params.evaluate.every_steps = 100
    train(Request(params, "{}", "", profile_steps=range(3, 5)), RunDirectory(directory))
    assert log == [3, str(directory / "profile"), 2, "stop", 7]


def test_steps_that_were_done_but_not_noted_are_not_saved(small, run, directory, monkeypatch):
    add = StepRecorder.add

    def failing(self, *args):
        if self.counters.step == 4:
            raise DataError("its origin cannot be read")
        return add(self, *args)

    monkeypatch.setattr(StepRecorder, "add", failing)
    params = small().set(steps_per_loop=3)
    params.checkpoint.every_steps = params.evaluate.every_steps = 3
    with pytest.raises(DataError, match="its origin"):
        run(params, directory)
    assert store.steps(directory / "checkpoints") == [3]


def test_a_device_that_is_lost_when_the_state_is_read_is_named(small, run, directory, monkeypatch):
    def lost(self, *, alone):
        raise tf.errors.InternalError(None, None, "the device is gone")

    monkeypatch.setattr(LocalProgram, "state", lost)
    with pytest.raises(ProgramError, match=r"step 2: .* is gone"):
        run(small().set(eval_inputs={}), directory)


def test_evaluation_can_use_the_moving_average(small, run, tmp_path):
    trained, averaged = small(), small()
    averaged.evaluate.weights = "ema"
    one = run(trained, tmp_path / "trained").evaluations["same"]["eval/loss"]
    other = run(averaged, tmp_path / "averaged").evaluations["same"]["eval/loss"]
    assert one != other


def compared(params, **evaluate):
    """Evaluates at steps 1, 2, 3, ... by a metric, and has no other reason for a checkpoint."""
    params.evaluate.set(every_steps=1, metric="same/loss", **evaluate)
    params.checkpoint.set(every_steps=100, keep=1, keep_best=1)
    return params


def evaluated(monkeypatch, **losses):
    """Lets the evaluation of step n find the loss `at_n`."""

    def found(experiment, program, *, between, show_progress):
        list(between([0]))
        metrics = {"loss": losses[f"at_{int(program.state().step)}"]}
        yield EvaluationResult("same", metrics, {}, [])

    monkeypatch.setattr(periodic_evaluation, "evaluate_all", found)


def test_a_run_ends_early_when_evaluations_get_no_better(small, run, directory, monkeypatch):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0, at_3=2.5, at_4=2.0, at_5=1.0, at_6=4.0)
    outcome = run(compared(small(), patience=2), directory)
    assert (outcome.step, outcome.state, outcome.signal) == (4, "done (early)", None)
    assert (directory / "STATUS").read_text() == "done (early) at step 4\n"
    assert store.steps(directory / "checkpoints") == [2, 4]
    assert run(compared(small(max_steps=9), patience=2), directory).step == 4, "it is enough"
    assert run(compared(small(), patience=3), directory).step == 6
    assert (directory / "STATUS").read_text() == "done at step 6\n"
    assert store.steps(directory / "checkpoints") == [5, 6]


def test_a_run_ends_when_the_metric_reaches_a_value(small, run, directory, monkeypatch, capsys):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0, at_3=2.5, at_4=1.0)
    outcome = run(compared(small(), reach=2.0), directory)
    assert (outcome.step, outcome.state) == (2, "done (early)")
    again = run(compared(small(max_steps=9), reach=2.0), directory)
    assert (again.step, again.state) == (2, "done (early)"), "it ends at once"
    assert "same/loss has reached 2.0: evaluate.reach." in capsys.readouterr().out
    assert run(compared(small(), reach=1.0), directory).step == 4, "more is asked for"


def test_a_value_that_was_reached_before_a_kill_ends_the_run_when_it_resumes(
    small, run, directory, monkeypatch
):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0)
    with pytest.raises(KeyError, match="at_3"):
        run(compared(small()), directory)
    evaluated(monkeypatch, at_3=4.0)
    outcome = run(compared(small(), reach=2.0), directory)
    assert (outcome.step, outcome.state) == (3, "done (early)")


def test_the_best_survives_a_crash_and_a_resume(small, run, directory, monkeypatch):
    evaluated(monkeypatch, at_1=3.0, at_2=2.0)  # the third evaluation is the end of the process
    with pytest.raises(KeyError, match="at_3"):
        run(compared(small()), directory)
    evaluated(monkeypatch, at_3=2.5, at_4=2.2, at_5=2.1, at_6=2.3)
    run(compared(small()), directory)
    assert store.steps(directory / "checkpoints") == [2, 6]
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint of step 1"):
        best.choose(compared(small(), goal="max").build(), RunDirectory(directory), "best")
    assert best.choose(compared(small()).build(), RunDirectory(directory), "best").step == 2


def test_a_metric_that_is_not_there_is_refused_before_the_first_step(small, run, directory):
    params = compared(small())
    params.evaluate.metric = "same/losss"
    with pytest.raises(ParamError, match=r"no 'losss'. Did you mean 'loss'\?"):
        run(params, directory)
    assert not RunDirectory(directory).exists
