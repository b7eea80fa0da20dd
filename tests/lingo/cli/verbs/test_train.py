"""Training, as a user does: one small model, in one directory."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import lingo
from lingo.cli import command as commands
from lingo.cli.main import import_verb, main
from lingo.cli.verbs import train
from lingo.data.derived_input import RepeatedInput
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.loop import Outcome
from tests.lingo.cli.verbs.conftest import SMALL

pytestmark = [
    pytest.mark.xdist_group("train"),  # the runs of the fixtures are done once
    pytest.mark.usefixtures("once_compiled"),
]
ROOT = pathlib.Path(__file__).parents[4]


def steps(run: pathlib.Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step_")) for p in (run / "checkpoints").iterdir())


def test_a_run_leaves_what_is_needed_to_repeat_it(run: pathlib.Path, exp: str) -> None:
    assert 2 in steps(run)
    config = json.loads((run / "config.json").read_text())
    assert config["experiment"]["overrides"] == ["max_steps=2", "optimizer.learning_rate=0.5"]
    sets = ["--set=max_steps=2", "--set=optimizer.learning_rate=0.5"]
    flags = [f"--exp={exp}", f"--logdir={run}", *sets]
    assert (run / "flags.txt").read_text().splitlines() == flags


def test_the_same_command_with_nothing_left_does_nothing(run, capsys):
    before = steps(run)
    assert main(["train", f"--flagfile={run / 'flags.txt'}"]) == 0
    assert "is done" in capsys.readouterr().out
    assert steps(run) == before


def test_a_run_goes_on_by_its_directory_with_more_steps(run: pathlib.Path) -> None:
    assert main(["train", f"--run={run}", "--set=max_steps=3"]) == 0
    assert 3 in steps(run)
    assert (run / "flags.txt").read_text() == f"--run={run}\n", "config.json has the rest"


RELATIVE = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from lingo.layers.feed_forward import FeedForward
from params.lm.source import tiny


class Mine(FeedForward):
    pass


@experiment
def relative(text: str = "texts/*.txt"):
    params = tiny(model_dim=8, num_layers=1)
    params.train_input.set(source=TextFiles.params(pattern=text), batch_size=2, length=8)
    params.all(FeedForward).swap(Mine)
    return params.set(max_steps=1, eval_inputs={})
"""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of relative paths and a class of its own, moved to a name with spaces."""
    home = tmp_path_factory.mktemp("home")
    (home / "texts").mkdir()
    (home / "texts" / "one.txt").write_text("a text of some length")
    (home / "relative.py").write_text(RELATIVE)
    with contextlib.chdir(home):
        assert main(["train", "--exp=relative.py:relative", "--logdir=runs/first"]) == 0
    flags = (home / "runs/first/flags.txt").read_text().splitlines()
    assert flags == [
        f"--exp={home}/relative.py:relative",
        f"--logdir={home}/runs/first",
        f"--set=train_input.source.pattern='{home}/texts/*.txt'",
    ]
    with contextlib.chdir("/"):
        assert main(["train", f"--flagfile={home}/runs/first/flags.txt"]) == 0
    return (home / "runs/first").rename(home / "runs/it's 2nd")


def test_the_flags_of_a_moved_run_say_how_it_goes_on(moved, capsys):
    assert main(["train", f"--flagfile={moved}/flags.txt"]) == 2
    command = shlex.join(["lingo", "train", f"--run={moved}"]).replace("'--run=", "--run='")
    assert f"was moved or copied. To resume it where it is: {command}" in capsys.readouterr().err
    assert not (moved.parent / "first").exists()


def test_a_moved_run_goes_on_from_any_directory(moved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = moved.parents[1] / "relative.py"
    trust = f"--trust={file.rename(tmp_path / file.name)}"
    assert main(["train", f"--run={moved}"]) == 2
    assert main(["train", f"--run={moved}", trust, "--set=max_steps=2"]) == 0
    assert 2 in steps(moved)
    assert main(["train", f"--run={moved}", f"--logdir={tmp_path}/again", trust]) == 0
    assert (
        (tmp_path / "again/flags.txt").read_text().startswith(f"--run={tmp_path}/again\n--trust=")
    )


def test_the_flags_name_no_class_by_a_relative_path(tmp_path, monkeypatch, exp):
    (tmp_path / "own_ffn.py").write_text(RELATIVE)
    monkeypatch.chdir(tmp_path)
    for name, form in (("own_ffn.py", "--run="), (tmp_path / "own_ffn.py", "--exp=")):
        flags = [f"--exp={exp}", "--logdir=run", f"--set=FeedForward={name}:Mine"]
        options = commands.read("train", import_verb("train"), flags)
        assert train.read_request(options).flags.startswith(form)


def test_directories_of_experiments_are_named_in_the_flags(tmp_path, monkeypatch):
    (tmp_path / "relaunched.py").write_text(SMALL)
    monkeypatch.setenv("LINGO_PARAMS", str(tmp_path))
    command = ["train", "--exp=relaunched.small", f"--logdir={tmp_path}/run"]
    sets = ["--set=max_steps=1", "--set=eval_inputs={}"]
    assert main([*command, *sets]) == 0
    monkeypatch.delenv("LINGO_PARAMS")
    assert f"--params_dir={tmp_path}\n" in (tmp_path / "run/flags.txt").read_text()
    assert main(["train", f"--flagfile={tmp_path}/run/flags.txt"]) == 0


def test_another_configuration_is_refused_with_the_difference(run, capsys):
    assert main(["train", f"--run={run}", "--set=optimizer.learning_rate=7"]) == 7
    assert "optimizer.learning_rate: 0.5 -> 7.0" in capsys.readouterr().err


def test_a_loaded_model_computes_what_evaluation_reports(run: pathlib.Path) -> None:
    model = lingo.load(run, step=2)
    assert model.step == 2
    results = model.evaluate()
    inputs = model.experiment.eval_inputs["first"]
    losses = [model.loss(inputs.batch(step)) for step in range(inputs.num_batches())]
    assert sum(losses) / len(losses) == pytest.approx(results["first"]["loss"], rel=1e-5)


def test_python_trains_what_it_got_and_changed(tmp_path: pathlib.Path, exp: str) -> None:
    params = lingo.get(exp, "steps_per_loop=1")
    params.max_steps = 1
    outcome = lingo.train(params, tmp_path / "run")
    assert outcome.step == 1
    assert lingo.load(tmp_path / "run").step == 1
    assert main(["train", f"--flagfile={tmp_path / 'run' / 'flags.txt'}"]) == 0


def test_a_dry_run_needs_no_directory_and_makes_none(exp, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"--exp={exp}", "--dry_run"]) == 0
    assert "parameters " in capsys.readouterr().out
    assert main(["train", f"--exp={exp}", "--dry_run", "--logdir=runs/a", "--overfit"]) == 0
    assert "'batches': 1" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_overfitting_trains_on_the_first_batches_and_says_so(exp, tmp_path, capsys):
    run = tmp_path / "run"
    sets = ["--set=max_steps=2", "--set=eval_inputs={}"]
    profile = "--profile_steps=1:2"
    command = ["train", f"--exp={exp}", f"--logdir={run}", *sets, "--overfit=3", profile]
    assert main(command) == 0
    params = lingo.load(run, trust=[exp.partition(":")[0]]).experiment.p
    assert (params.train_input.cls, params.train_input.batches) == (RepeatedInput, 3)
    assert (run / "flags.txt").read_text().splitlines()[2:] == [*sets, "--overfit=3"]
    assert main(["train", f"--flagfile={run / 'flags.txt'}"]) == 0
    assert main(["train", f"--run={run}", "--overfit=3"]) == 0
    assert capsys.readouterr().out.count("is done") == 2
    assert main(["train", f"--run={run}", "--overfit=2"]) == 7


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        *((f"--profile_steps={text}", "write FROM:TO") for text in ("5", "5:5", "-1:3", "1:2:3")),
        *((f"--overfit={text}", "not a positive number") for text in ("0", "x")),
        *((f"--hang_timeout={text}", "hang_timeout") for text in ("0", "nan", "1.5")),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(flag, message, exp, tmp_path, capsys):
    assert main(["train", f"--exp={exp}", f"--logdir={tmp_path / 'run'}", flag]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_run_begins_ends_the_program_with_its_code(
    number: signal.Signals,
    exp: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(train, "train", lambda *_, **__: signal.raise_signal(number))
    assert main(["train", f"--exp={exp}", f"--logdir={tmp_path / 'run'}"]) == 128 + number
    assert capsys.readouterr().err == f"lingo: stopped by {number.name}; nothing had to be saved\n"
    assert signal.getsignal(number) == before


def test_a_watchdog_is_given_to_the_run_in_a_process_that_is_supervised(exp, tmp_path, monkeypatch):
    seen: list[object] = []

    def supervise(work: Callable[[object], int], run: RunDirectory, **options: float) -> int:
        seen.extend([run.path, options])
        return work("watchdog")

    def trained(*_: object, watchdog: object, **__: object) -> Outcome:
        seen.append(watchdog)
        return Outcome(1, {}, {})

    monkeypatch.setattr(train, "supervise", supervise)
    monkeypatch.setattr(train, "train", trained)
    run = tmp_path / "run"
    assert main(["train", f"--exp={exp}", f"--logdir={run}", "--hang_timeout=60"]) == 0
    assert seen == [run, {"timeout_seconds": 60}, "watchdog"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_training_saves_and_ends_the_program_with_its_code(number, exp, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "lingo.cli.main", "train", f"--exp={exp}", "--logdir=run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (128 + number, "")
    assert len(steps(tmp_path / "run")) == 1
