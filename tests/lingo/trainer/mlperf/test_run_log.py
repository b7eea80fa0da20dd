"""Logs of runs: what is written when, what a resume removes, and which runs are refused."""

import pytest

from lingo.config.params import ParamError
from lingo.storage.files import StorageError
from lingo.trainer import periodic_evaluation
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.evaluate import EvaluationResult
from lingo.trainer.mlperf.mllog import read_log
from lingo.trainer.mlperf.run_log import RESUME, MlperfLog


def keys(path):
    """Returns what happened from `run_start` on, with numbers of epochs, as a log says."""
    names = ("epoch_num", "first_epoch_num", "status")
    found = [
        " ".join([line.key, *(str(line.metadata[n]) for n in names if n in line.metadata)])
        for line in read_log(path).lines
        if line.key.endswith(("_start", "_stop", "_accuracy", RESUME))
    ]
    assert found[:3] == ["init_start", "init_stop", "run_start"]
    return found[3:]


def test_epochs_and_blocks_are_nested_as_the_rules_want(settings, write):
    params = settings("sgd")  # 11.43 steps in an epoch
    params.evaluate.every_steps = 22
    path = write(params, "resnet@0.7.0", accuracies=[0.5, 0.98])
    assert keys(path) == [
        *("block_start 1", "epoch_start 1", "epoch_stop 1", "epoch_start 2", "epoch_stop 2"),
        *("eval_start 2", "eval_accuracy 2", "eval_stop 2", "block_stop 1"),
        *("block_start 3", "epoch_start 3", "epoch_stop 3", "epoch_start 4"),
        *("eval_start 4", "eval_accuracy 4", "eval_stop 4", "block_stop 3"),
        "run_stop success",
    ]
    assert read_log(path).lines[0].key == "cache_clear"


def test_epochs_end_at_their_last_whole_step(settings, write):
    path = write(settings("sgd"), "resnet@0.7.0", accuracies=[0.98] * 3)
    stops = [line for line in read_log(path).lines if line.key == "epoch_stop"]
    assert [line.metadata["step_num"] for line in stops[:4]] == [11, 22, 34, 45]


def test_a_small_form_says_so_and_is_not_of_the_closed_division(settings, write):
    lines = read_log(write(settings("sgd"), "resnet@0.7.0", accuracies=[0.98])).lines
    metadata = {line.key: line.metadata for line in lines}
    for key in ("submission_benchmark", "run_stop"):
        assert metadata[key]["form"] == (
            "small: 1,463 training samples of ImageInput, 334 of evaluation, 50,882 weights;"
            " not the model and data of the benchmark"
        )
    values = {line.key: line.value for line in lines}
    assert values["submission_division"] == "open"
    assert (values["train_samples"], values["eval_samples"], values["seed"]) == (1463, 334, 0)


def test_a_run_below_its_target_is_aborted(settings, write):
    path = write(settings("sgd"), "resnet@0.7.0", accuracies=[0.5, 0.6])
    assert keys(path)[-1] == "run_stop aborted"


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_a_resume_removes_what_is_done_again(is_evaluated, settings, write, resume, tmp_path):
    params = settings("sgd")
    params.evaluate.every_steps = 22
    path = write(params, "resnet@0.7.0", accuracies=[0.5, 0.6], until=30)
    before = keys(path)
    if is_evaluated:
        RunDirectory(tmp_path / "run").metrics.append({"step": 22, "eval/accuracy": 0.5})
    resume(params, 22)
    kept = keys(path)
    assert kept[-1] == RESUME
    end = before.index("epoch_start 3" if is_evaluated else "eval_start 2") + is_evaluated
    assert kept[:-1] == before[:end]


def test_a_line_that_a_crash_cut_short_is_removed(settings, write, resume):
    params = settings("sgd")
    path = write(params, "resnet@0.7.0", accuracies=[0.5], until=20)
    whole = keys(path)
    path.write_text(path.read_text() + ':::MLLOG {"namespace": ""')
    resume(params, 20)
    assert keys(path)[:-1] == whole
    assert not read_log(path).problems


def test_a_rewind_removes_the_steps_that_it_does_again(settings, write, resume):
    params = settings("sgd")
    path = write(params, "resnet@0.7.0", accuracies=[0.5], until=30)
    log, run = resume(params, 30)
    log.on_rewind(run, 11)
    assert keys(path)[-2:] == ["epoch_stop 1", "epoch_start 2"]
    assert max(line.metadata["step_num"] for line in read_log(path).lines) == 11


def test_a_log_of_another_benchmark_is_not_continued(settings, write, resume):
    params = settings("sgd")
    write(params, "resnet@0.7.0", accuracies=[0.5], until=20)
    params.observers[0].benchmark = "resnet@0.6.0"
    with pytest.raises(ParamError, match=r"is a log of resnet@0\.7\.0, not of resnet@0\.6\.0"):
        resume(params, 20)


def test_a_run_that_was_begun_without_a_log_gets_none_later(settings, resume):
    with pytest.raises(ParamError, match="was begun without a log of MLPerf"):
        resume(settings("resnet"), 20)


def test_a_link_is_not_followed(settings, resume, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mllog.txt").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="link"):
        resume(settings("resnet"), 0)


# ---- runs that train ----------------------------------------------------------------------------


@pytest.fixture
def measured(small, monkeypatch):
    """An experiment of nine steps, whose evaluations find the accuracies that are given."""

    def measured(**accuracies):
        def found(experiment, program, *, between, show_progress):
            list(between([0]))
            metrics = {"accuracy": accuracies[f"at_{int(program.state().step)}"]}
            yield EvaluationResult("same", metrics, {}, [])

        monkeypatch.setattr(periodic_evaluation, "evaluate_all", found)
        params = small(max_steps=9)  # an epoch has 35 examples, and a step 4
        params.evaluate.set(every_steps=3, metric="same/accuracy", goal="max", reach=0.9)
        return params.set(observers=[MlperfLog.params(benchmark="resnet@0.7.0")])

    return measured


@pytest.mark.usefixtures("once_compiled")
def test_a_run_writes_its_log_and_a_finished_one_leaves_it(measured, run, directory):
    run(measured(at_3=0.5, at_6=0.95), directory)
    path = directory / "mllog.txt"
    assert keys(path) == [
        *("block_start 1", "epoch_start 1", "eval_start 1", "eval_accuracy 1", "eval_stop 1"),
        *("block_stop 1", "block_start 1", "eval_start 1", "eval_accuracy 1", "eval_stop 1"),
        *("block_stop 1", "run_stop success"),
    ]
    before = path.read_bytes()
    assert run(measured(), directory).state == "done (early)"
    assert path.read_bytes() == before


@pytest.mark.parametrize("has_reached", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_skipped_run_corrects_how_its_log_ends(has_reached, is_lost, settings, write, observed):
    params = settings("sgd")
    path = write(params, "resnet@0.7.0", accuracies=[0.5])
    before = read_log(path).lines
    step = before[-1].metadata["step_num"]
    if is_lost:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    params.evaluate.reach = 0.4 if has_reached else 0.6
    experiment = params.build()
    experiment.observers[0].on_skip(observed(experiment), step, "done")
    after = read_log(path).lines
    stop = after[-1]
    assert after[: len(before) - 1] == before[:-1]
    assert stop.metadata["status"] == ("success" if has_reached else "aborted")
    assert stop.metadata["form"] == before[-1].metadata["form"]
    assert (stop.seconds == before[-1].seconds) == (not is_lost)
    assert [line.key for line in after].count(RESUME) == is_lost


@pytest.mark.usefixtures("once_compiled")
def test_a_finished_run_reaches_a_lower_target(measured, run, directory):
    params = measured(at_3=0.5, at_6=0.7, at_9=0.6)
    run(params, directory)
    assert keys(directory / "mllog.txt")[-1] == "run_stop aborted"
    params.evaluate.reach = 0.65
    run(params, directory)
    assert keys(directory / "mllog.txt")[-1] == "run_stop success"


@pytest.mark.usefixtures("once_compiled")
def test_an_interrupted_run_continues_its_log(measured, run, directory):
    with pytest.raises(KeyError, match="at_6"):
        run(measured(at_3=0.5), directory)
    assert run(measured(at_6=0.6, at_9=0.7), directory).state == "done"
    found = keys(directory / "mllog.txt")
    assert found[6:10] == ["block_start 1", RESUME, "eval_start 1", "eval_accuracy 1"]
    assert [key.split()[0] for key in found].count("eval_accuracy") == 3
    assert found[-1] == "run_stop aborted"
