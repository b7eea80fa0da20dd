"""Results of benchmarks: which runs count, and what makes a result not valid."""

from decimal import Decimal

import pytest

from lingo.config.params import ParamError
from lingo.trainer.mlperf.mllog import Log, LogLine
from lingo.trainer.mlperf.score import RunResult, olympic_mean, result_table, score_logs


def log(seconds, *, name="resnet", accuracy=0.76, status="success", ruleset="0.6.0", **more):
    start = Decimal("1556733600.25")
    lines = [
        LogLine(start - 60, "init_start"),
        LogLine(start, "init_stop"),
        LogLine(start, "run_start"),
        LogLine(start, "submission_benchmark", name),
        *(LogLine(start, key, value) for key, value in more.items()),
        LogLine(start + 1, "eval_accuracy", accuracy, {"epoch_num": 4}),
    ]
    if seconds is not None:
        lines.append(LogLine(start + Decimal(seconds), "run_stop", None, {"status": status}))
    return Log("log.txt", ruleset, lines, ())


def score(*seconds, **options):
    return score_logs({str(i): log(one, **options) for i, one in enumerate(seconds)})


def test_the_fastest_and_the_slowest_do_not_count():
    assert olympic_mean([Decimal(n) for n in (7, 1, 2, 100, 3)]) == 4
    assert olympic_mean([Decimal(1), Decimal(2)]) is None


def test_one_run_that_fails_is_the_slowest_and_two_are_too_many():
    """It is dropped as the slowest: 2 and 3 are left of 1, 2, 3 and the one that failed."""
    logs = {str(n): log(str(n)) for n in (1, 2, 3)}
    one = score_logs(logs | {"4": log("4", status="aborted")})
    assert one.seconds == Decimal("2.5")
    two = score_logs(logs | {"4": log("4", status="aborted"), "5": log("5", accuracy=0.7)})
    assert two.seconds is None
    assert "2 runs did not reach the target, more than the 1 allowed" in two.invalid


def test_too_few_runs_are_not_valid_and_need_as_many_as_the_benchmark():
    assert score("1", "2", "3", "4").invalid == ["4 of the 5 runs that resnet@0.6.0 needs"]
    assert not score("1", "2", "3", "4", "5").invalid
    five = score("1", "2", "3", "4", "5", name="gnmt")
    assert five.invalid == ["5 of the 10 runs that gnmt@0.6.0 needs"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"status": "aborted"}, "run_stop says 'aborted', not 'success'"),
        ({"accuracy": 0.7589}, "the best eval_accuracy is 0.7589, below 0.759"),
        ({"accuracy": float("nan")}, "no eval_accuracy is a finite number"),
        ({"accuracy": True}, "no eval_accuracy is a finite number"),
        ({"accuracy": 75.9}, "the best eval_accuracy is 75.9, and a fraction is at most 1"),
        ({"accuracy": 10**400}, "no eval_accuracy is a finite number"),
        ({"accuracy": "0.7589"}, "the best eval_accuracy is 0.7589, below 0.759"),
        ({"seconds": "-9"}, "run_stop is not after run_start"),
        ({"seconds": "0"}, "run_stop is not after run_start"),
        ({"status": ["aborted"] * 999}, "run_stop says ['aborted', "),
        ({"seconds": None}, "1 run_start and 0 run_stop"),
    ],
)
def test_a_run_that_did_not_reach_the_target_says_why(options, problem):
    result = score_logs({"0": log(**{"seconds": "9"} | options)})
    (run,) = result.runs
    assert run.problem.startswith(problem)
    assert not run.has_converged


@pytest.mark.parametrize("batch_size", [4096, 8192, "x"])
def test_bert_has_one_target_for_all_batches(batch_size):
    options = {"name": "bert", "ruleset": "0.7.0", "global_batch_size": batch_size}
    assert not score("1", **options, accuracy=0.71).runs[0].has_converged
    assert score("1", **options, accuracy=0.712).runs[0].has_converged


@pytest.mark.parametrize("name", ["transformer", "gnmt"])
@pytest.mark.parametrize("accuracy", ["25.3298", 25.3298, 0.253298])
def test_bleu_of_0_6_may_be_in_percent_and_a_text(name, accuracy):
    (run,) = score("1", name=name, accuracy=accuracy).runs
    assert (run.accuracy, run.problem) == (pytest.approx(0.253298, rel=1e-12), "")
    assert not score("1", name=name, accuracy=23.9).runs[0].has_converged


def test_an_evaluation_without_a_number_does_not_hide_a_later_one():
    one = log("9")
    nan = one.lines[4]._replace(value=float("nan"))
    (run,) = score_logs({"0": one._replace(lines=[*one.lines[:4], nan, *one.lines[4:]])}).runs
    assert (run.accuracy, run.problem) == (0.76, "")


def test_a_run_without_a_log_counts_as_failed():
    failed = RunResult("4", "4/mllog.txt", None, None, problem="it cannot be read")
    result = score_logs({str(n): log(str(n)) for n in (1, 2, 3)}, without_log=[failed])
    assert (len(result.runs), result.seconds) == (4, Decimal("2.5"))
    assert result.to_json({})["runs"][3]["problem"] == "it cannot be read"


def test_an_accuracy_after_the_end_of_a_run_does_not_count():
    (run,) = score("0.5").runs
    assert run.problem == "an eval_accuracy is after run_stop"


def test_a_log_that_is_given_several_times_is_one_run():
    one = log("3")
    result = score_logs({name: one for name in "abcde"})
    assert result.invalid == [f"{name} has the same log as a" for name in "bcde"]


def test_runs_of_different_settings_are_not_one_result():
    logs = {str(i): log("9", seed=i, global_batch_size=64 * (1 + i // 4)) for i in range(5)}
    assert score_logs(logs).invalid == ["runs differ in global_batch_size: 128, 64"]


def test_what_is_no_setting_may_differ_and_a_setting_may_be_logged_twice():
    """As in published results."""
    logs = {
        str(i): log("9", train_samples=i, run_set_random_seed=i, opt_name="x") for i in range(5)
    }
    twice = logs["3"].lines
    twice.insert(6, next(line for line in twice if line.key == "opt_name"))
    assert not score_logs(logs).invalid
    twice.insert(6, twice[6]._replace(value="y"))
    assert score_logs(logs).invalid == ["runs differ in opt_name: 'x', 'y' and 'x'"]


def test_an_initialization_of_more_than_twenty_minutes_does_not_count():
    late = log("9")
    late.lines[0] = late.lines[0]._replace(seconds=late.lines[1].seconds - 1201)
    (run,) = score_logs({"0": late}).runs
    assert run.problem == "the initialization took 1201 seconds, more than 1200"


def test_logs_of_several_benchmarks_or_of_none_are_refused():
    with pytest.raises(ParamError, match=r"resnet@0\.6\.0 and ssd@0\.6\.0"):
        score_logs({"0": log("1"), "1": log("1", name="ssd")})
    with pytest.raises(ParamError, match=r"is a log of minigo@0\.6\.0"):
        score("1", name="minigo")
    with pytest.raises(ParamError, match=r"is a log of a{80}\. There"):
        score("1", name="a" * 100_000)
    with pytest.raises(ParamError, match="lacks the line submission_benchmark"):
        score_logs({"0": log("1")._replace(lines=log("1").lines[:3])})
    with pytest.raises(ParamError, match="no log"):
        score_logs({})


def test_the_table_has_times_the_mean_and_what_is_wrong():
    result = score("76.970", "77.167", "81.351")
    assert result_table(result) == [
        "run  seconds  accuracy  target reached",
        "0    76.97    0.76      yes",
        "1    77.167   0.76      yes",
        "2    81.351   0.76      yes",
        "",
        "resnet@0.6.0, target 0.759",
        "olympic mean 77.167 s: without the fastest and the slowest",
        "fastest 76.97 s, slowest 81.351 s, standard deviation 2.47446 s",
        "not valid: 3 of the 5 runs that resnet@0.6.0 needs",
    ]


def test_a_small_form_is_never_called_valid_alone():
    logs = {str(seconds): log(str(seconds)) for seconds in range(5, 10)}
    for one in logs.values():
        one.lines[3] = one.lines[3]._replace(metadata={"form": "small: 9 samples"})
    result = score_logs(logs)
    assert result_table(result)[-2:] == [
        "form: small: 9 samples",
        "valid as a small form, which says nothing of the benchmark itself",
    ]
