"""The directory of a sweep: what was asked for, what came of it, and a run for each trial.

    sweep.json        what was asked for
    results.json      what came of it so far, the best trial first
    study.log         what Optuna knows, where it searches
    000-.../          the run of a trial; log.txt in it is what its process printed

One process writes at a time, under a lock; reading needs none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lingo.config import regular_file
from lingo.config.errors import LingoError
from lingo.config.params import ParamError
from lingo.storage.files import clear_leftovers, write_text, writing
from lingo.storage.lock import Lock
from lingo.study.metric import Metric
from lingo.study.trial import Result
from lingo.trainer.directory.run_directory import RunDirectory

FORMAT = 1
SWEEP = "sweep.json"
RESULTS = "results.json"
STUDY = "study.log"
MAX_BYTES = 2**24  # of sweep.json


class ChangedSweep(LingoError):
    """The directory holds another sweep."""

    exit_code: ClassVar[int] = 7


class SweepDirectory:
    """Where a sweep keeps everything. Making this object touches nothing.

    Attributes:
        path: of the directory.
        study: Optuna's file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study = path / STUDY

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory if it is not there, and keeps other sweeps out of it.

        Raises:
            DirectoryLocked: if another process sweeps here.
            StorageError: if the directory cannot be made.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.path / ".lock")
        lock.acquire()
        try:
            clear_leftovers(self.path)
            yield
        finally:
            lock.release()

    def check(self, asked: Mapping[str, Any], *, fixed: Sequence[str]) -> None:
        """Checks that the directory is that of this sweep, or new.

        Args:
            asked: the content of sweep.json, of JSON types.
            fixed: its keys that must be the same as before.

        Raises:
            ParamError: if it is the directory of a run, or sweep.json is no such file.
            ChangedSweep: with each difference.
        """
        if RunDirectory(self.path).exists:
            raise ParamError(f"{self.path} is the directory of a run: give the sweep its own")
        before = self._asked_before()
        if before is None:
            return
        differences = [
            f"{key}: {_shown(before.get(key))} -> {_shown(asked[key])}"
            for key in ("format", *fixed)
            if before.get(key) != asked[key]
        ]
        if differences:
            raise changed(self.path, differences)

    def _asked_before(self) -> dict[str, Any] | None:
        file = self.path / SWEEP
        try:
            text = regular_file.read(file, max_bytes=MAX_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ParamError(f"{file} cannot be read: {error}") from None
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise ParamError(f"{file} is not what a sweep writes") from None

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Writes what is asked for.

        Raises:
            StorageError: if it cannot be written.
        """
        write_text(self.path / SWEEP, json.dumps(asked, indent=1) + "\n")

    def record(self, results: Sequence[Result], metric: Metric) -> None:
        """Writes what came of the sweep so far.

        Args:
            results: of the trials that have ended, the best first.
            metric: what they are compared by.

        Raises:
            StorageError: if it cannot be written.
        """
        table = {
            "metric": metric.name,
            "goal": metric.goal,
            "best": next((r.trial.path.name for r in results if r.score is not None), None),
            "trials": [_as_json(result) for result in results],
        }
        write_text(self.path / RESULTS, json.dumps(table, indent=1) + "\n")


def changed(path: Path, differences: Sequence[str]) -> ChangedSweep:
    """Returns the error for a sweep that is not the one that was begun."""
    listed = "\n  ".join(differences)
    return ChangedSweep(
        f"{path} was begun as another sweep:\n  {listed}\nSweep in another directory."
    )


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "number": result.trial.number,
        "name": result.trial.path.name,
        "values": result.trial.point,
        "state": result.state,
        "value": result.value,
        "step": result.step,
        "exit_code": result.exit_code,
        "command": result.trial.command,
    }
