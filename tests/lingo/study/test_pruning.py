"""Pruning: Optuna's rules against slow ones, and sweeps that prune, are interrupted and resumed."""

import json
import signal

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.study.metric import Reading
from lingo.study.plan import ChangedSweep, remaining_trials
from lingo.study.pruning import Pruner, read_pruning
from lingo.study.run import run_sweep

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

STEPS = range(1, 9)  # at which trials report


def loss(number: int, step: int) -> float:
    """Curves that cross: some trials are worse at first, others at the end."""
    draw = np.random.RandomState(number)
    return float(draw.uniform(1, 3) / step + draw.uniform(0, 1) + 0.1 * draw.randn())


def curves(num_trials: int) -> list[list[float]]:
    return [[loss(number, step) for step in STEPS] for number in range(num_trials)]


def judged(rule: str, values: list[list[float]], goal="min") -> list[int]:
    """The number of reports of each trial, one trial after the other, up to a verdict."""
    pruner, lengths = Pruner(read_pruning(rule), goal), []
    for number, own in enumerate(values):
        readings = [Reading(step, value) for step, value in zip(STEPS, own, strict=True)]
        verdict = None
        for n in range(1, len(readings) + 1):
            verdict = verdict or pruner.judge(number, readings[:n])
        lengths.append(verdict.step if verdict else len(STEPS))
        pruner.end(number, "pruned" if verdict else "done", None if verdict else own[-1])
    return lengths


def by_median(values: list[list[float]], *, trials: int, steps: int) -> list[int]:
    done, lengths = [], []
    for own in values:
        length = len(STEPS)
        for i, step in enumerate(STEPS):
            is_worse = len(done) and min(own[: i + 1]) > np.median([other[i] for other in done])
            if len(done) >= trials and step >= steps and is_worse:
                length = step
                break
        else:
            done.append(own)
        lengths.append(length)
    return lengths


def by_halving(values: list[list[float]], *, steps: int, factor: int) -> list[int]:
    rungs, lengths = {}, []
    for own in values:
        length, rung = len(STEPS), 0
        for i, step in enumerate(STEPS):
            if step >= steps * factor**rung:
                reached = rungs.setdefault(rung, [])
                reached.append(own[i])
                rung += 1
                if own[i] > sorted(reached)[max(len(reached) // factor, 1) - 1]:
                    length = step
                    break
        lengths.append(length)
    return lengths


@pytest.mark.parametrize(("trials", "steps"), [(5, 0), (2, 3), (1, 1)])
def test_a_trial_behind_the_median_of_the_trials_that_are_done_is_pruned(trials, steps):
    values = curves(20)
    rule = f"median(trials={trials}, steps={steps})" if steps else f"median(trials={trials})"
    expected = by_median(values, trials=trials, steps=steps)
    assert judged(rule, values) == expected
    assert min(expected) < len(STEPS) == max(expected)
    negated = [[-value for value in own] for own in values]
    assert judged(rule, negated, "max") == expected


@pytest.mark.parametrize(("steps", "factor"), [(1, 2), (2, 2), (1, 4), (1, 3)])
def test_the_best_part_of_the_trials_at_a_rung_continues(steps, factor):
    values = curves(20)
    expected = by_halving(values, steps=steps, factor=factor)
    assert judged(f"halving(steps={steps}, factor={factor})", values) == expected
    assert min(expected) < len(STEPS) == max(expected)


def test_a_loss_that_is_no_number_is_behind():
    pruner = Pruner(read_pruning("median(trials=1)"), "min")
    pruner.judge(0, [Reading(1, 2.0)])
    pruner.end(0, "done", 2.0)
    assert pruner.judge(1, [Reading(1, None)]) == Reading(1, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("medain", "--prune=medain is no rule. Did you mean 'median'?"),
        ("median(steps=0)", "'steps=0' is no argument of median: write trials=N or steps=N, N at"),
        ("median(factor=2)", "'factor=2' is no argument of median"),
        ("halving(steps=1,", "is no rule"),
        ("median(trials=2, trials=3)", "'trials=3' is no argument of median"),
        ("halving(factor=1)", "factor=1 prunes nothing: write at least factor=2"),
    ],
)
def test_a_mistake_in_a_rule_is_told(text, message):
    with pytest.raises(ParamError) as caught:
        read_pruning(text)
    assert message in str(caught.value)


# ---- sweeps ------------------------------------------------------------------------------------


class Curves:
    """Starts runs that report a step of their curve at each poll, and end after the last."""

    def __init__(self, finish) -> None:
        self.finish, self.started = finish, []
        self.interrupt_at = (-1, 0)  # (trial, step) after which the sweep gets a signal

    def __call__(self, trial, slot):
        self.started.append(trial.number)
        trial.path.mkdir(exist_ok=True)
        return Curve(self, trial)


class Curve:
    def __init__(self, launch, trial) -> None:
        self.launch, self.trial, self.code = launch, trial, None
        self.file = trial.path / "metrics.jsonl"
        self.step = len(self.file.read_text().splitlines()) if self.file.exists() else 0

    def poll(self):
        if self.code is None and self.step < len(STEPS):
            self.step += 1
            row = {"step": self.step, "loss/total": loss(self.trial.number, self.step)}
            rows = self.file.read_text() if self.file.exists() else ""
            text = rows + json.dumps(row) + "\n"
            self.file.write_text(text)
            if self.launch.interrupt_at == (self.trial.number, self.step):
                signal.raise_signal(signal.SIGINT)
            return None
        text = self.file.read_text()
        self.launch.finish(self.trial, None, self.code or 0)
        self.file.write_text(text)
        return self.code or 0

    def send_signal(self, number):
        self.code = 128 + number


@pytest.fixture
def sweep(request_for, finish_run):
    """Sweeps 12 trials in a directory; returns {number: (state, step, value)}, and the launcher."""

    def sweep(logdir, *, interrupt_at=(-1, 0), workers=1, **changes):
        values = ",".join(map(str, range(20, 32)))
        request = request_for(f"a={values}", logdir=logdir, **changes)
        launch = Curves(finish_run)
        launch.interrupt_at = interrupt_at
        outcome = run_sweep(request, launch=launch, num_workers=workers, show=lambda line: None)
        ends = {r.trial.number: (r.state, r.step, r.value) for r in outcome.results}
        return ends, launch

    return sweep


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("lingo.study.run._POLL_SECONDS", 0.0)


def test_trials_that_end_are_the_same_as_without_pruning(sweep, tmp_path):
    whole, _ = sweep(tmp_path / "whole")
    pruned, _ = sweep(tmp_path / "pruned", prune="median(trials=2)")
    ended = {number for number, (state, *_) in pruned.items() if state == "done"}
    assert {number: pruned[number] for number in ended} == {n: whole[n] for n in ended}
    expected = by_median(curves(12), trials=2, steps=0)
    assert {n: step for n, (state, step, _) in pruned.items() if state == "pruned"} == {
        n: step for n, step in enumerate(expected) if n not in ended
    }
    assert 2 < len(ended) < 10


@pytest.mark.parametrize("rule", ["median(trials=2)", "halving(steps=1, factor=2)"])
@pytest.mark.parametrize("interrupt_at", [(0, 3), (3, 1), (6, 1), (11, 1)])
def test_an_interrupted_sweep_is_resumed_exactly(sweep, tmp_path, rule, interrupt_at):
    whole, _ = sweep(tmp_path / "whole", prune=rule)
    _, first = sweep(tmp_path / "parts", prune=rule, interrupt_at=interrupt_at)
    assert first.started[-1] == interrupt_at[0]
    parts, second = sweep(tmp_path / "parts", prune=rule)
    assert parts == whole
    assert not set(second.started) & set(range(interrupt_at[0]))  # pruned trials stay pruned


@pytest.mark.parametrize("workers", [2, 5])
def test_with_several_workers_a_resumed_sweep_keeps_its_verdicts(sweep, tmp_path, workers):
    first, _ = sweep(tmp_path / "sweep", prune="median(trials=2)", workers=workers)
    again, launch = sweep(tmp_path / "sweep", prune="median(trials=2)", workers=workers)
    assert again == first
    assert launch.started == []
    assert {state for state, *_ in first.values()} == {"done", "pruned"}


def test_without_a_rule_pruned_trials_go_on_to_their_end(sweep, tmp_path):
    whole, _ = sweep(tmp_path / "whole")
    pruned, _ = sweep(tmp_path / "sweep", prune="median(trials=2)")
    after, launch = sweep(tmp_path / "sweep")
    assert after == whole
    assert launch.started == sorted(n for n, (state, *_) in pruned.items() if state == "pruned")


def test_with_optuna_a_resumed_sweep_proposes_the_same_points(request_for, finish_run, tmp_path):
    def sweep(name, interrupt_at=(-1, 0), **changes):
        request = request_for(
            "a=0.5..2.5",
            method="optuna",
            num_trials=15,
            logdir=tmp_path / name,
            prune="median(trials=2)",
        )._replace(**changes)
        launch = Curves(finish_run)
        launch.interrupt_at = interrupt_at
        outcome = run_sweep(request, launch=launch, num_workers=1, show=lambda line: None)
        return {r.trial.number: (r.trial.point, r.state, r.step) for r in outcome.results}

    whole = sweep("whole")
    sweep("parts", interrupt_at=(12, 1))
    assert sweep("parts") == whole
    assert {state for _, state, _ in whole.values()} == {"done", "pruned"}
    with pytest.raises(ChangedSweep, match=r"prune: median\(trials=2\) -> \(absent\)"):
        sweep("parts", prune="")


def test_commands_for_a_cluster_cannot_be_pruned(request_for):
    with pytest.raises(ParamError, match="--prune ends trials of a sweep that runs"):
        remaining_trials(request_for("a=1,2", prune="median"))


def test_a_trial_that_fails_after_a_bad_report_has_failed_and_is_tried_again(
    request_for, finish_run, tmp_path
):
    class Failing(Curves):
        def __call__(self, trial, slot):
            curve = super().__call__(trial, slot)
            if trial.number == fails:
                curve.step, curve.code = len(STEPS), 9
                curve.send_signal = lambda number: None  # it has ended
                rows = [{"step": i, "loss/total": 1e9} for i in (1, 2)]
                curve.file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            return curve

    request = request_for("a=1,2,3,4", logdir=tmp_path / "sweep", prune="median(trials=1)")

    def states(launch):
        outcome = run_sweep(request, launch=launch, num_workers=1, show=lambda line: None)
        return {r.trial.number: r.state for r in outcome.results}

    fails = 3
    assert states(Failing(finish_run))[3] == "failed"
    fails = -1
    launch = Failing(finish_run)
    assert states(launch)[3] != "failed"
    assert launch.started == [3]
