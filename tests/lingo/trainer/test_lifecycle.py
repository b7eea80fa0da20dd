"""The life of a run: what STATUS says after each way out of it."""

from __future__ import annotations

import pathlib

import pytest

from lingo.storage.rows import State
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
from lingo.trainer.lifecycle import mark_ended, mark_running, mark_stopped_on_signal
from lingo.trainer.loop import Outcome
from lingo.trainer.progress import Progress


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt, "stopped"), (ValueError, "failed")]
)
def test_an_error_ends_a_run_and_a_signal_stops_it(
    error: type[BaseException], state: State, tmp_path: pathlib.Path
) -> None:
    run = RunDirectory(tmp_path)
    with mark_running(run, 3):
        assert run.status() == ("running", 3)
    with pytest.raises(error), mark_running(run, 3):
        raise error
    assert run.status() == (state, 3)


@pytest.mark.parametrize(
    ("before", "after"),
    [("running", "stopped"), ("failed", "stopped"), ("done", "done"), ("done (early)",) * 2],
)
def test_a_signal_before_it_goes_on_stops_a_run_that_is_not_done(
    before: State, after: State, tmp_path: pathlib.Path
) -> None:
    run = RunDirectory(tmp_path)
    run.write({CONFIG: "{}"})
    run.set_status(before, 5)
    with pytest.raises(KeyboardInterrupt), mark_stopped_on_signal(run):
        raise KeyboardInterrupt
    assert run.status() == (after, 5)


def test_a_signal_before_a_run_was_begun_writes_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyboardInterrupt), mark_stopped_on_signal(RunDirectory(tmp_path)):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        (0, "done at step 7\n"),
        (2, "done at step 7; the last 2 changed nothing: they were not finite\n"),
    ],
)
def test_the_end_is_written_and_said(
    skipped: int, said: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    with Progress(max_steps=7) as progress:
        mark_ended(run, Outcome(7, {}, {}, skipped=skipped, state="done"), progress)
    assert run.status() == ("done", 7)
    assert capsys.readouterr().out == said
