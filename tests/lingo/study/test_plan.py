"""What a sweep is asked to do: checked as a whole, before anything is created."""

import os
import sys

import pytest

from lingo.config import source_record
from lingo.config.params import ParamError
from lingo.config.source_files import SourceFile
from lingo.study import plan
from lingo.study.metric import Metric
from lingo.study.plan import SWEEP, ChangedSweep, write_json
from lingo.study.space import read_axes


def test_every_value_is_built_before_anything_is_created(request_for, tmp_path):
    with pytest.raises(ParamError, match=r"^trial a=1 b=13: b is unlucky$"):
        plan.build_points(request_for("a=1,2", "b=1,13"))
    assert list(tmp_path.iterdir()) == []


def test_a_random_search_is_checked_trial_by_trial(request_for):
    with pytest.raises(ParamError, match="unlucky"):
        plan.build_points(request_for("a=12..14", method="random", num_trials=3))
    assert len(plan.build_points(request_for("a=1..12", method="random", num_trials=3))) == 3


def test_the_commands_are_those_of_the_trials_that_are_not_done(request_for, finish_run, tmp_path):
    request = request_for("a=1,2,3", sets=["c=5"])
    assert len(plan.remaining_trials(request)) == 3
    assert list(tmp_path.iterdir()) == []
    for number, code in ((0, 0), (1, 8)):
        trial = request.trial(number, {"a": str(number + 1)})
        finish_run(trial, 1.0, code)
    path = request.logdir
    assert [trial.command for trial in plan.remaining_trials(request)] == [
        f"lingo train --exp=toy --set=c=5 --logdir={path / '001-a-2'} --set=a=2",
        f"lingo train --exp=toy --set=c=5 --logdir={path / '002-a-3'} --set=a=3",
    ]


def test_a_trial_that_is_done_is_not_when_more_is_asked_of_it(request_for, finish_run):
    request = request_for("a=1", sets=["max_steps=7"])
    trial = request.trial(0, {"a": "1"})
    finish_run(trial, 1.0)
    points = {0: trial.point}
    assert plan.find_done(request, points) == {0}
    assert plan.find_done(request_for("a=1", sets=["max_steps=9"]), points) == set()
    (trial.path / "STATUS").write_text("done (early) at step 5\n")
    assert plan.find_done(request, points) == {0}


def test_a_trial_with_another_configuration_is_refused_with_the_difference(request_for, finish_run):
    request = request_for("a=1", sets=["c=5"])
    trial = request.trial(0, {"a": "1"})
    finish_run(trial, 1.0)
    with pytest.raises(ChangedSweep, match=r"000-a-1 was begun as another sweep:\n  c: 5 -> 6\n"):
        plan.remaining_trials(request_for("a=1", sets=["c=6"]))
    assert plan.remaining_trials(request_for("a=1", sets=["c=5", "max_steps=9"]))
    (trial.path / "checkpoints/step_00000007").rmdir()
    assert plan.remaining_trials(request_for("a=1", sets=["c=6"]))  # there is nothing to resume


def test_a_trial_with_other_code_is_refused_by_file(request_for, finish_run):
    def with_digest(digest):
        return request_for("a=1,2", source={"mine.py": SourceFile("/here/mine.py", digest)})

    trial = with_digest("1").trial(0, {"a": "1"})
    finish_run(trial, 1.0)
    used = {"source": source_record.to_json(with_digest("1").source)}
    write_json(trial.path / "environment.json", used)
    assert len(plan.remaining_trials(with_digest("1"))) == 1
    with pytest.raises(ChangedSweep, match=r"/here/mine.py \(was: .*000-a-1/source/mine.py\)"):
        plan.remaining_trials(with_digest("2"))


def test_a_search_that_learns_has_no_commands_to_print(request_for):
    with pytest.raises(ParamError, match="there are no commands to print"):
        plan.remaining_trials(request_for("a=1,2", method="optuna", num_trials=2))


@pytest.mark.parametrize(
    ("method", "changes", "difference"),
    [
        ("grid", {"metric": Metric("perf/x", "max")}, ""),
        ("random", {"num_trials": 5}, ""),
        ("random", {"seed": 1}, "seed: 0 -> 1"),
        ("grid", {"method": "random"}, "search: grid -> random"),
        ("grid", {"axes": read_axes(["a=1,2", "b=3"])}, "sweep: a=1,2 -> a=1,2 b=3"),
        ("grid", {"axes": read_axes(["a= 1, 2"])}, ""),
        ("optuna", {"metric": Metric("perf/x", "min")}, "metric: loss/total -> perf/x"),
        ("optuna", {"metric": Metric("loss/total", "max")}, "goal: min -> max"),
    ],
)
def test_settings_that_decide_the_trials_may_not_change(request_for, method, changes, difference):
    request = request_for("a=1,2", method=method)
    request.logdir.mkdir()
    write_json(request.logdir / SWEEP, request.settings())
    after = request._replace(**changes)
    if not difference:
        plan.check_settings(after)
        return
    with pytest.raises(ChangedSweep, match=difference) as raised:
        plan.check_settings(after)
    assert raised.value.exit_code == 7


def test_the_directory_of_a_run_takes_no_sweep(request_for, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ParamError, match="is the directory of a run"):
        plan.check_settings(request_for("a=1", logdir=tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"3", b"\xff"])
def test_a_settings_file_that_no_sweep_wrote_is_named(request_for, tmp_path, content):
    if content is None:
        os.mkfifo(tmp_path / "sweep.json")
    else:
        (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(ParamError, match=r"sweep\.json is not a file that a sweep wrote"):
        plan.check_settings(request_for("a=1", logdir=tmp_path))


def test_more_trials_than_anybody_means_are_refused(request_for):
    with pytest.raises(ParamError, match="10,001 trials are too many"):
        plan.build_points(request_for("a=0.0..1", method="random", num_trials=10_001))
    axes = [f"{name}=0,1,2,3,4,5,6,7,8,9" for name in "abcdef"]
    with pytest.raises(ParamError, match="1,000,000 trials are too many"):
        plan.build_points(request_for(*axes))


def test_without_optuna_the_package_to_install_is_named(request_for, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ParamError, match=r"pip install 'lingo-tf\[sweep\]'"):
        plan.build_points(request_for("a=1,2", method="optuna", num_trials=2))
    assert list(tmp_path.iterdir()) == []
