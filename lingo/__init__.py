"""Declarative experiments for TensorFlow.

    import lingo

    params = lingo.get("lm.source.tiny", "optimizer.learning_rate=1e-3")
    params.max_steps = 200
    lingo.train(params, "runs/tiny")
    model = lingo.load("runs/tiny")
    model.evaluate()
    model.generate("def ")

Nothing is imported before it is used; TensorFlow only when something is computed. `tasks` and
`params` are importable from here on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lingo.config.roots import mount as _mount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lingo.config.params import Params
    from lingo.trainer.loop import Outcome
    from lingo.trainer.trained import Trained

__all__ = ["get", "load", "train"]

_mount.expose()


def get(name: str, *overrides: str) -> Params:
    """Returns the parameters of an experiment.

    Args:
        name: `lm.source.tiny`, an ending of such a name, `name(argument=value)` or
            `file.py:function`.
        *overrides: as `--set` takes them, applied in order.

    Raises:
        ParamError: for every mistake in these.
    """
    from lingo.config import registry
    from lingo.config.params import ParamError

    for text in (name, *overrides):
        if not isinstance(text, str):
            raise ParamError(
                f"lingo.get takes the name of an experiment and texts such as 'max_steps=100',"
                f" got {text!r:.80} ({type(text).__name__})"
            )
    return registry.get(name, overrides).params


def load(
    run_dir: str | Path,
    *,
    step: int | Literal["best"] | None = None,
    trust: Sequence[str] = (),
) -> Trained:
    """Returns the model of a run.

    Args:
        run_dir: directory of the run.
        step: of the checkpoint; "best" by `evaluate.metric`; the latest that is sound if None.
        trust: files outside of lingo that define classes of the experiment and may be imported.

    Raises:
        ParamError: if the directory holds no run, or what it holds cannot be trusted or read.
        NoUsableCheckpoint: if there is no checkpoint to read.
        CheckpointMismatch: if it is of another model.
    """
    from pathlib import Path

    from lingo.config.params import ParamError
    from lingo.config.serial import serial
    from lingo.contract import Experiment
    from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
    from lingo.trainer.trained import Trained

    if not isinstance(run_dir, (str, Path)):
        raise ParamError(
            f"lingo.load takes the directory of a run, got {run_dir!r:.80}"
            f" ({type(run_dir).__name__})"
        )
    params = serial.read(Path(run_dir) / CONFIG, trust).params
    if not issubclass(params.cls, Experiment):
        raise ParamError(f"{run_dir} holds the Params of a {params.cls.__name__}, no Experiment")
    return Trained(params, RunDirectory(run_dir), step=step)


def train(
    params: Params, logdir: str | Path, *, allow_change: bool = False, audit: bool = False
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
    from lingo.trainer import run
    from lingo.trainer.directory import flags_file
    from lingo.trainer.directory.run_directory import RunDirectory
    from lingo.trainer.request import Request

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
    directory = RunDirectory(logdir)
    flags = flags_file.flags(directory.path.resolve(), config)
    request = Request(params, config, flags, audit=audit)
    return run.train(request, directory, allow_change=allow_change)
