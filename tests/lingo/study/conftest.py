"""What tests of sweeps share: trials that end as they are told, and leave what runs do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from lingo.config import text
from lingo.config.params import ParamError
from lingo.config.text import Line
from lingo.study.metric import Metric
from lingo.study.plan import LOG, SweepRequest
from lingo.study.space import read_axes
from lingo.study.trial import Trial
from lingo.trainer.directory.run_directory import CONFIG


def resolve(overrides):
    """Stands for an experiment: every override is a line, and a value of 13 is a mistake."""
    pairs = [override.split("=") for override in overrides]
    if bad := next((path for path, value in pairs if value == "13"), None):
        raise ParamError(f"{bad} is unlucky")
    return [Line(path, value, operational=path == "max_steps") for path, value in pairs]


class Training:
    """Starts runs that take no time: a loss for each trial, or an exit code."""

    def __init__(self, losses: Sequence[float | None], *, codes: dict[int, int] | None = None):
        self.losses, self.codes = losses, codes or {}
        self.started: list[int] = []
        self.slots: list[int] = []
        self.signals: dict[int, list[int]] = {}
        self.running = self.most = 0  # how many run now, and ran at most
        self.on_start: Callable[[Trial], None] = lambda trial: None

    def __call__(self, trial: Trial, slot: int) -> Process:
        self.started.append(trial.number)
        self.slots.append(slot)
        self.running += 1
        self.most = max(self.most, self.running)
        trial.path.mkdir(exist_ok=True)
        self.on_start(trial)
        return Process(self, trial)


class Process:
    """One of those runs: it ends when it is polled for the second time."""

    def __init__(self, training: Training, trial: Trial) -> None:
        self.training, self.trial, self.polls = training, trial, 0

    def poll(self) -> int | None:
        self.polls += 1
        if self.polls < 2:
            return None
        self.training.running -= 1
        code = self.training.codes.get(self.trial.number, 0)
        if sent := self.training.signals.get(self.trial.number):
            code = 128 + sent[0]
        finish(self.trial, self.training.losses[self.trial.number], code)
        return code

    def send_signal(self, number: int) -> None:
        self.training.signals.setdefault(self.trial.number, []).append(number)


def finish(trial, loss, code=0):
    """Writes what a run leaves."""
    state = {0: "done", 130: "stopped", 143: "stopped"}.get(code, "failed")
    sets = [a.removeprefix("--set=") for a in trial.arguments if a.startswith("--set=")]
    trial.path.mkdir(parents=True, exist_ok=True)
    (trial.path / "config.txt").write_text(text.render(resolve(sets)))
    (trial.path / CONFIG).write_text("{}")
    (trial.path / "checkpoints/step_00000007").mkdir(parents=True, exist_ok=True)
    (trial.path / "STATUS").write_text(f"{state} at step 7\n")
    (trial.path / "metrics.jsonl").write_text(json.dumps({"step": 7, "loss/total": loss}) + "\n")
    with open(trial.path / LOG, "a") as log:
        log.write(f"trained\nended with {code}\n\n")


@pytest.fixture
def request_for(tmp_path):
    """Makes requests for `tmp_path/sweep`."""

    def request_for(*axes, sets=(), **changes):
        request = SweepRequest(
            logdir=tmp_path / "sweep",
            train_arguments=("--exp=toy", *(f"--set={override}" for override in sets)),
            resolve=lambda overrides: resolve([*sets, *overrides]),
            axes=read_axes(axes),
            method="grid",
            num_trials=0,
            seed=0,
            metric=Metric("loss/total", "min"),
        )
        return request._replace(**changes)

    return request_for


@pytest.fixture
def training():
    """The class of launchers whose runs take no time."""
    return Training


@pytest.fixture
def finish_run():
    """Writes what a run leaves."""
    return finish
