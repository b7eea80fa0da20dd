"""When a run is saved, and what it says of that."""

from __future__ import annotations

import faulthandler
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.checkpoints import commit, store
from lingo.config.params import Params
from lingo.runtimes.local import LocalProgram
from lingo.storage.files import StorageError
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.hang import SLOW_FACTOR, Watchdog
from lingo.trainer.loop import Outcome
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.saver import Saver

Make = Callable[..., Params]
Train = Callable[..., Outcome]


def unwritable(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Lets checkpoints of some steps fail after everything else is written."""
    written = commit.write_manifest

    def full(folder: pathlib.Path, *, step: int, **content: Any) -> None:
        if step in steps:
            raise OSError(28, "No space left on device")
        written(folder, step=step, **content)

    monkeypatch.setattr(commit, "write_manifest", full)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_last_save_is_never_done(
    experiment: Make,
    run: Train,
    text: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    asynchronous: bool,
) -> None:
    params = experiment(text).set(eval_inputs={})
    params.checkpoint.asynchronous = asynchronous
    with monkeypatch.context() as patch:
        unwritable(patch, 6)
        with pytest.raises(StorageError, match=r"step_00000006: No space left on device .*needed"):
            run(params, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "failed at step 4\n"
    assert store.steps(tmp_path / "run/checkpoints") == [2, 4]
    run(params, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "done at step 6\n"


def test_a_failed_save_ends_the_run_with_what_was_done_since_saved(
    experiment: Make,
    run: Train,
    text: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = experiment(text).set(eval_inputs={}, max_steps=1000)
    params.checkpoint.every_steps = 20
    unwritable(monkeypatch, 20)
    with pytest.raises(StorageError, match="step_00000020"):
        run(params, tmp_path / "run")
    step = store.steps(tmp_path / "run/checkpoints")[-1]
    assert 20 < step < 1000
    assert (tmp_path / "run/STATUS").read_text() == f"failed at step {step}\n"


def test_status_names_the_last_checkpoint_that_is_committed(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, advanced = [], LocalProgram.train

    def noted(self: LocalProgram, batches: dict[str, np.ndarray]) -> object:
        status = (tmp_path / "run/STATUS").read_text()
        said.append((int(status.split()[-1]), store.steps(tmp_path / "run/checkpoints")))
        return advanced(self, batches)

    monkeypatch.setattr(LocalProgram, "train", noted)
    run(experiment(text).set(eval_inputs={}), tmp_path / "run")
    assert all(step == 0 or step in committed for step, committed in said)


def test_multiples_that_stay_are_written_whatever_the_others_are(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path
) -> None:
    params = experiment(text, max_steps=8).set(eval_inputs={}, steps_per_loop=10)
    params.checkpoint.set(every_steps=7, keep=1, keep_every_steps=3)
    run(params, tmp_path / "run")
    assert store.steps(tmp_path / "run/checkpoints") == [3, 6, 7, 8]  # 7 to go back to


def test_less_is_expected_of_a_save_and_of_all_that_comes_after_the_last_step(
    experiment: Make,
    text: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, seen, save = os.memfd_create("stacks"), [], Saver.save

    def noted(self: Saver) -> None:
        seen.append(os.pread(file, 100, 0))
        save(self)

    monkeypatch.setattr(Saver, "save", noted)
    request = Request(experiment(text).set(eval_inputs={}), "{}", "")
    train(request, RunDirectory(tmp_path / "run"), watchdog=Watchdog(1000, file))
    faulthandler.cancel_dump_traceback_later()
    extended = b"%d\n" % (1000 * SLOW_FACTOR)
    assert seen == [extended] * 4  # after 2, 4, 6, and when all is done
    assert os.pread(file, 100, 0) == extended
