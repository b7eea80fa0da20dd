"""`lingo launch`: what it refuses, and the command that its workers run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from lingo.cli import workers
from lingo.cli.main import main
from lingo.cli.workers import Ending


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], int]]:
    """The programs that would have been started, and in how many processes."""
    found: list[tuple[Sequence[str], int]] = []

    def run(program: Sequence[str], cluster: Sequence[str], **_: Any) -> list[Ending]:
        found.append((program, len(cluster)))
        return [Ending(1, 7), Ending(0, 1)] if "--exp=bad" in program else [Ending(0, 0)]

    monkeypatch.setattr(workers, "run", run)
    return found


def test_every_worker_runs_what_stands_after_the_dashes(started):
    inner = ["train", "--exp=tiny(model_dim=8)", "--logdir=a b", "--set=max_steps=1"]
    assert main(["launch", "--workers=3", "--", *inner]) == 0
    assert started == [((sys.executable, "-P", "-m", "lingo.cli.main", *inner), 3)]


def test_the_code_is_that_of_the_worker_that_failed(started, capsys):
    assert main(["launch", "--workers=2", "--", "train", "--exp=bad", "--logdir=x"]) == 7
    assert capsys.readouterr().err.startswith("lingo launch: worker 1 (127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "launch needs a command after --: lingo launch [--flags] -- VERB [--flags]"),
        (["--", "train"], "no number of workers given: --workers=N."),
        (["--workers=0", "--", "train"], "0 is not an integer in the range [1, 1024]"),
        (["--workers=2", "--", "list"], "'list' is not a verb for several processes"),
        (["--workers=2", "--", "trian"], "Did you mean 'train'?"),
        (["--workers=2", "--", "launch", "--", "train"], "'launch' is not a verb for several"),
        (["--workers=2", "--", "train", "--epx=tiny"], "there is no flag --epx"),
        (["train", "--workers=2", "--", "train"], "'train' is one word too many"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(arguments, said, started, capsys):
    assert main(["launch", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_help_shows_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: lingo launch [--flags] -- VERB [--flags]\n")
    assert "--workers=WORKERS" in shown
