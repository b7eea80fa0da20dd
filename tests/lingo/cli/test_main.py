"""The command line as a whole: mistakes, help, exit codes, closed pipes, no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from lingo.cli import main as program
from lingo.cli.main import VERBS, main
from lingo.config.base.errors import LingoError

ROOT = pathlib.Path(__file__).parents[3]
TINY = "--exp=lm.source.tiny"
READING = [
    ["list"],
    ["show", TINY],
    ["show", TINY, "--weights", "--format=json"],
    ["show", TINY, "--plot_schedule"],
    ["show", TINY, "--set=Stack=Pipeline(num_stages=4, num_micro_batches=4)", "--pipeline"],
    ["describe", "FeedForward"],
    ["why", "optimizer.learning_rate", TINY],
    ["diff", TINY, "--set=max_steps=3"],
]


@pytest.fixture(autouse=True)
def empty(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Works in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*arguments: str, cwd: pathlib.Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=600,
    )


def lingo(*arguments: str, cwd: pathlib.Path | None = None) -> subprocess.CompletedProcess[str]:
    return python("-m", "lingo.cli.main", *arguments, cwd=cwd)


def bash(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell's command line, in which LINGO is the program."""
    command = command.replace("LINGO", f"{sys.executable} -m lingo.cli.main")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)


MISTAKES = [
    (["trian"], "Did you mean 'train'?"),
    (["--exp=a", "show"], "the verb comes first"),
    (["zzz"], "Verbs: list, show"),
    (["show", TINY, "--sett=a=1"], "Did you mean --set?"),
    (["list", TINY], "there is no flag --exp"),
    (["show", TINY, "--exp=lm.source.small"], "already defined"),
    (["show", TINY, "max_steps=3"], "one word too many"),
    (["show"], "--exp=NAME or --run=DIR"),
    (["describe"], "lingo describe NAME"),
    (["why", TINY], "lingo why PATH"),
    (["train", TINY], "--logdir=DIR"),
    (["train", TINY, "--logdir="], "--logdir has no value"),
    (["eval"], "--run=DIR"),
    (["decode", "--prompt=a"], "no run given"),
    (["diff", TINY], "two of --exp and --run"),
    (["show", TINY, "--run=here"], "both name an experiment"),
    (["eval", "--run=nowhere"], "nowhere is not a run directory"),
    (["show", TINY, "--set=FeedForwrad.dropout_rate=0.1"], "Did you mean 'FeedForward'?"),
    (["show", TINY, "--set=FeedForward.dropout_rate=2"], "dropout_rate"),
    (["train", TINY, "--logdir=run", "--set=max_steps=-1"], "max_steps"),
    (["train", TINY, "--logdir=run", "--set=TransformerLayer.dtype=float8"], "bfloat16"),
    (["train", TINY, "--logdir=run", "--set=Attention.num_heads=3"], "num_heads"),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_named_in_three_lines_and_creates_nothing(arguments, said, empty, capfd):
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("lingo")
    assert 1 <= len(err.splitlines()) <= 3
    assert "Traceback" not in err
    assert list(empty.iterdir()) == []


def test_the_program_ends_with_the_code_and_without_a_traceback(empty: pathlib.Path) -> None:
    done = lingo("train", TINY, "--logdir=run", "--set=max_stps=3", cwd=empty)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean 'max_steps' or 'max_epochs'?" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for verb in VERBS:
        assert f"\n  {verb} " in out


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_shows_examples_and_flags(verb, capsys):
    assert main([verb, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"usage: lingo {verb}")
    assert f"\n    lingo {verb}" in out
    assert "--traceback" in out


class Locked(LingoError):
    exit_code = 6


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Locked("run is in use."), 6, "lingo list: run is in use.\n"),
        (KeyError("x"), 1, "lingo list: unexpected KeyError: 'x' (--traceback shows where)\n"),
        (RuntimeError(), 1, "lingo list: unexpected RuntimeError (--traceback shows where)\n"),
        (RuntimeError("a\nb"), 1, "lingo list: unexpected RuntimeError: a (--traceback"),
        (KeyboardInterrupt(), 130, "lingo: interrupted\n"),
        (MemoryError(), 1, "lingo list: out of memory"),
        (RecursionError("maximum recursion depth"), 1, "lingo list: unexpected RecursionError"),
        (LingoError("a \x1b[31mname"), 1, "lingo list: a \\x1b[31mname\n"),
    ],
)
def test_an_error_decides_the_exit_code(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr(program, "_run_verb", Mock(side_effect=error))
    assert main(["list"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("error", [ImportError("initialization failed"), SystemExit(1)])
def test_what_a_library_makes_of_a_signal_is_no_error_of_its_own(error, monkeypatch, capsys):
    def fail(arguments: list[str]) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        raise error

    monkeypatch.setattr(program, "_run_verb", fail)
    assert main(["list"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "lingo: stopped by SIGTERM; nothing had to be saved\n"


@pytest.mark.parametrize(
    ("into", "code", "said"),
    [("| head -1 >here", 0, ""), (">&-", 0, ""), (">/dev/full", 10, "No space left on device")],
)
def test_output_that_goes_nowhere_ends_without_a_traceback(into: str, code: int, said: str) -> None:
    done = bash(f"LINGO show {TINY} {into}; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


def test_verbs_that_read_import_no_tensorflow() -> None:
    code = f"""
import contextlib, io, sys
from lingo.cli.main import VERBS, main
for arguments in {READING}:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(arguments) == 0, arguments
    assert out.getvalue(), arguments
    assert "tensorflow" not in sys.modules, arguments
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("nowhere", ["&-", "/dev/full"])
def test_errors_that_cannot_be_written_do_not_change_the_code(nowhere: str) -> None:
    """The shell's `2>&-` closes stderr: the next file that is opened would take its place."""
    done = bash(f"LINGO nothing 2>{nowhere}")
    assert (done.returncode, done.stdout) == (2, "")


def test_signals_are_heeded_before_anything_heavy_is_imported() -> None:
    code = "import sys, lingo.cli.main; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = python("-c", code)
    assert not {"absl", "fiddle", "numpy", "rich", "tensorflow", "pathlib"} & {*done.stdout.split()}


@pytest.mark.parametrize("place", ["file", "file/run", "/dev/null"])
def test_a_run_cannot_stand_where_a_file_is(place, empty, capsys):
    (empty / "file").write_text("kept")
    assert main(["train", TINY, f"--logdir={place}", "--set=max_steps=1"]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert [p.name for p in empty.iterdir()] == ["file"]


def test_a_file_that_imports_tensorflow_is_read_quietly(empty: pathlib.Path) -> None:
    (empty / "mine.py").write_text(
        "import tensorflow\n"
        "from lingo.config.registry import experiment\n"
        "from params.lm.source import tiny\n\n\n"
        "@experiment\ndef mine():\n    return tiny()\n"
    )
    done = lingo("show", "--exp=mine.py:mine", cwd=empty)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flag", ["--traceback", "-traceback", "--traceback=true"])
def test_the_traceback_is_shown_on_request(flag, capsys):
    assert main(["show", "--exp=nowhere", flag]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", TINY], ["why", "seed", TINY], ["describe", "FeedForward"]]
)
def test_a_working_directory_that_is_gone_keeps_nobody_from_reading(arguments, empty):
    done = in_a_directory_that_is_gone(empty, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_relative_path_needs_a_working_directory(empty: pathlib.Path) -> None:
    done = in_a_directory_that_is_gone(empty, "train", TINY, "--logdir=run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lingo train: the working directory is gone")


def in_a_directory_that_is_gone(
    empty: pathlib.Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    (gone := empty / "gone").mkdir()
    code = "import os; os.rmdir(os.getcwd()); from lingo.cli.main import program; program()"
    return python("-c", code, *arguments, cwd=gone)


STUCK = """
import time
from concurrent.futures import ThreadPoolExecutor
from lingo.cli import main

def stuck():
    ThreadPoolExecutor().submit(time.sleep, 600)
    print("said", end="")
    return 5

main.main = stuck
main.program()
"""


def test_the_end_waits_for_no_thread() -> None:
    ended = python("-c", STUCK)
    assert (ended.returncode, ended.stdout, ended.stderr) == (5, "said", "")
