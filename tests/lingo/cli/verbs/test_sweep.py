"""`lingo sweep`: its mistakes, what it prints, and one real sweep."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import pytest

from lingo.cli.main import main
from lingo.trainer.directory.run_directory import RunDirectory

pytestmark = pytest.mark.xdist_group("sweep")  # the sweep is done once
ROOT = pathlib.Path(__file__).parents[4]
NARROW = ["--exp=toys.narrow", "--logdir=runs/s"]
TINY = ["--exp=tiny(model_dim=16, num_layers=1)", "--logdir=runs/s"]
RATE = "--sweep=optimizer.learning_rate=0.1,0.2"
MICRO = '''
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from params.lm.source import tiny


@experiment
def micro(text: str, dim: int = 16):
    """A few steps on a few words."""
    cfg = tiny(model_dim=dim, num_layers=1).set(max_steps=2)
    cfg.evaluate.prompts = []
    cfg.task.model.stack.layer.attention.num_heads = 2
    cfg.train_input.set(source=TextFiles.params(pattern=text), batch_size=2, length=8)
    cfg.eval_inputs = {"same": cfg.train_input.copy().set(repeat=False, max_batches=2)}
    return cfg
'''


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exp=toys.narrow", RATE], "--logdir=DIR"),
        (NARROW, "--sweep=path=a,b,c"),
        (["--logdir=runs/s", RATE], "no experiment given"),
        ([*NARROW, "--run=here", RATE], "both name an experiment"),
        ([*NARROW, "--sweep=optimizer.learning_rate"], "sweeps nothing"),
        ([*NARROW, RATE, RATE], "optimizer.learning_rate is swept twice"),
        ([*NARROW, "--sweep=optimizer.learning_rate=0.1,fast"], "'fast'"),
        ([*NARROW, "--sweep=exp.num_layer=1,2"], "Did you mean 'num_layers'?"),
        ([*NARROW, "--sweep=max_steps=1,0"], "trial max_steps=0: "),
        ([*NARROW, "--sweep=max_steps=1..9"], "a grid needs values"),
        ([*NARROW, RATE, "--search=random"], "--search=random needs --num_trials=N"),
        ([*NARROW, RATE, "--num_trials=2"], "--num_trials is for"),
        ([*NARROW, RATE, "--seed=2"], "--seed is for"),
        ([*NARROW, RATE, "--search=random", "--num_trials=3"], "Lower --num_trials to 2"),
        ([*NARROW, RATE, "--search=optuna", "--num_trials=2", "--print"], "no commands to print"),
        ([*NARROW, RATE, "--metric=heldout/loss"], "metric 'heldout/loss'"),
        ([*TINY, RATE, "--metric=heldout/acuracy"], "gives no 'acuracy'. Did you mean 'accuracy'"),
    ],
)
def test_a_mistake_is_named_and_creates_nothing(lingo, arguments, message) -> None:
    done = lingo("sweep", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) <= 3
    assert list(pathlib.Path().iterdir()) == []


def test_it_prints_commands_that_a_person_would_type(lingo, toys) -> None:
    shared = [f"--exp={toys / 'toys.py'}:narrow", "--params_dir=.", "--set=seed=3"]
    sweeps = ["--sweep=ToyLayer.rate=0.5", "--sweep=exp.num_layers=1,2"]
    done = lingo("sweep", *shared, "--logdir=my runs", *sweeps, "--print")
    assert (done.code, done.err) == (0, "")
    assert [shlex.split(line)[2:-3] for line in done.out.splitlines()] == [shared, shared]
    for i, line in enumerate(map(shlex.split, done.out.splitlines())):
        assert line[:2] == ["lingo", "train"]
        logdir = f"--logdir=my runs/00{i}-rate-0.5-num_layers-{i + 1}"
        assert line[-3:] == [logdir, "--set=ToyLayer.rate=0.5", f"--set=exp.num_layers={i + 1}"]
    assert list(pathlib.Path().iterdir()) == []


def test_an_argument_that_the_experiment_needs_may_be_what_is_swept(lingo, tmp_path) -> None:
    file = tmp_path / "needs.py"
    imports = "from lingo.config.registry import experiment\nfrom params.toys import narrow\n"
    file.write_text(f"{imports}@experiment\ndef needs(num_layers: int): return narrow(num_layers)")
    sweep = ["--sweep=exp.num_layers=2", "--logdir=s", "--print"]
    done = lingo("sweep", f"--exp={file}:needs", *sweep)
    assert done.err == ""
    assert "--set=exp.num_layers=2" in done.out


# ---- a real one --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line of a sweep of two trials, in a directory that is not there yet."""
    folder = tmp_path_factory.mktemp("micro")
    (folder / "text.txt").write_text("abcabcabd" * 10)
    (folder / "micro.py").write_text(MICRO)
    return [
        "sweep",
        f"--exp={folder}/micro.py:micro(text={folder}/text.txt)",
        f"--logdir={folder / 'sweep'}",
        "--sweep=optimizer.learning_rate=1e-3,3e-2",
    ]


@pytest.fixture(scope="module")
def sweep_dir(micro: list[str]) -> pathlib.Path:
    """The directory of the sweep."""
    assert main([*micro, "--workers=2"]) == 0
    return pathlib.Path(micro[2].removeprefix("--logdir="))


def test_every_trial_is_a_run_like_any_other(sweep_dir: pathlib.Path) -> None:
    runs = [RunDirectory(path) for path in sorted(sweep_dir.glob("00*"))]
    assert [run.path.name for run in runs] == ["000-learning_rate-1e-3", "001-learning_rate-3e-2"]
    for run in runs:
        status = run.status()
        assert status is not None
        assert (status.state, status.step) == ("done", 2)
        assert "done at step 2" in (run.path / "log.txt").read_text()
        rows = run.metrics.read()
        assert rows[-1]["eval/loss"] > 0
    config = json.loads((runs[1].path / "config.json").read_text())
    assert config["experiment"]["overrides"] == ["optimizer.learning_rate=3e-2"]


def test_the_best_trial_is_the_one_with_the_least_loss(sweep_dir: pathlib.Path) -> None:
    results = json.loads((sweep_dir / "results.json").read_text())
    losses = {
        path.name: RunDirectory(path).metrics.read()[-1]["eval/loss"]
        for path in sweep_dir.glob("00*")
    }
    assert results["metric"] == "same/loss"
    assert results["best"] == min(losses, key=lambda name: losses[name])
    assert {trial["name"]: trial["value"] for trial in results["trials"]} == losses


def test_the_same_command_shows_the_table_again_and_trains_nothing(sweep_dir, micro, capsys):
    before = {path: path.stat().st_mtime_ns for path in sweep_dir.glob("00*/*")}
    assert main(micro) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {path: path.stat().st_mtime_ns for path in sweep_dir.glob("00*/*")} == before
    assert "trial  same/loss" in "\n".join(lines)
    assert lines[-2].startswith(f"best: {sweep_dir}/00")
    assert shlex.split(lines[-1])[:2] == ["lingo", "train"]


def test_the_command_of_a_trial_resumes_its_run(sweep_dir, micro, capsys):
    results = json.loads((sweep_dir / "results.json").read_text())
    assert main(shlex.split(results["trials"][0]["command"])[1:]) == 0
    assert "is done: step 2" in capsys.readouterr().out


def test_another_sweep_there_is_refused(sweep_dir, micro, capsys):
    assert main([*micro, "--sweep=exp.dim=8,16"]) == 7
    assert "exp.dim=8,16" in capsys.readouterr().err
    assert main([*micro, "--set=train_input.length=4"]) == 7
    assert "train_input.length: 8 -> 4" in capsys.readouterr().err


def test_a_run_can_be_swept(sweep_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = sweep_dir / "000-learning_rate-1e-3", sweep_dir.parent / "micro.py"
    arguments = [f"--run={run}", f"--trust={file}", f"--logdir={sweep_dir.parent / 'other'}"]
    assert main(["sweep", *arguments, "--sweep=seed=1,2", "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [shlex.split(line)[-1] for line in lines] == ["--set=seed=1", "--set=seed=2"]
    assert f"--run={run}" in lines[0]
    assert not (sweep_dir.parent / "other").exists()


def test_a_signal_saves_every_trial(micro: list[str], tmp_path: pathlib.Path) -> None:
    command = [f"--logdir={tmp_path}/s" if a.startswith("--logdir=") else a for a in micro]
    program = [sys.executable, "-m", "lingo.cli.main", *command]
    with subprocess.Popen(
        [*program, "--workers=2", "--set=max_steps=1000000"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as sweep:
        while sweep.poll() is None and len(list(tmp_path.glob("s/*/metrics.jsonl"))) < 2:
            time.sleep(0.1)
        sweep.send_signal(signal.SIGTERM)
        output, _ = sweep.communicate()
    assert sweep.returncode == 143, output
    assert "SIGTERM: the trials save and stop" in output
    assert output.count("stopped; the same command resumes it") == 2
    for path in tmp_path.glob("s/00*"):
        status = RunDirectory(path).status()
        assert status is not None
        assert status.state == "stopped"
        assert (path / f"checkpoints/step_{status.step:08d}").is_dir()
