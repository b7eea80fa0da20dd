"""Training. The package can be called: `lingo.train(params, logdir)` trains an experiment."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from lingo.config.params import Params
    from lingo.trainer.loop import Outcome


class _Training(ModuleType):
    """The package: the name `lingo.train` is both where training is and what starts it."""

    def __call__(
        self,
        params: Params,
        logdir: str | Path,
        *,
        allow_change: bool = False,
        audit: bool = False,
    ) -> Outcome:
        """Trains an experiment in a directory; the same call resumes what was stopped.

        Args:
            params: of an Experiment, as `lingo.get` returns them or made in Python.
            logdir: directory of the run.
            allow_change: whether another configuration than the directory's may go on from its
                checkpoint.
            audit: whether each step leaves a row in `audit.jsonl`.

        Returns:
            How it ended: steps done, the last report and evaluations.

        Raises:
            ParamError: if it is no experiment, cannot be built, or uses a class that is in no file.
            LingoError: for what goes wrong in training, as `lingo.trainer.run.train` lists it.
        """
        from pathlib import Path

        from lingo.config import text
        from lingo.config.params import ParamError, Params
        from lingo.config.serial import serial
        from lingo.contract import Experiment
        from lingo.trainer.directory import flags_file
        from lingo.trainer.directory.run_directory import RunDirectory
        from lingo.trainer.request import Request
        from lingo.trainer.run import train

        if not isinstance(params, Params) or not issubclass(params.cls, Experiment):
            given = f"{params!r:.80} ({type(params).__name__})"
            if isinstance(params, Params):
                given = f"the Params of a {params.cls.__name__}"
            raise ParamError(
                "lingo.train takes the Params of an Experiment, as lingo.get('tiny') returns them,"
                f" got {given}"
            )
        if not isinstance(logdir, (str, Path)):
            raise ParamError(
                f"lingo.train takes a directory, got {logdir!r:.80} ({type(logdir).__name__})"
            )
        digest = text.digest(text.resolve(params))
        config = serial.dump(params, serial.Origin(), digest)
        run = RunDirectory(logdir)
        flags = flags_file.flags(run.path.resolve(), config)
        request = Request(params, config, flags, audit=audit)
        return train(request, run, allow_change=allow_change)


sys.modules[__name__].__class__ = _Training
