"""Declarative experiments for TensorFlow.

    import lingo

    params = lingo.get("lm.source.tiny", "optimizer.learning_rate=1e-3")
    params.max_steps = 200
    lingo.train(params, "runs/tiny")
    model = lingo.load("runs/tiny")
    model.evaluate()
    model.generate("def ")

Layers, inputs, optimizers, runtimes and metrics are in `lingo.layers`, `lingo.data`, `lingo.optim`,
`lingo.runtimes` and `lingo.metrics`. `import lingo` imports none of these modules, and TensorFlow
is imported only when something is computed. After `import lingo`, lingo's packages `tasks` and
`params` are importable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from lingo.cli import options as _options
from lingo.config.options import documents as _documents
from lingo.config.options import shorten_errors as _shorten_errors
from lingo.config.options import takes as _takes
from lingo.config.roots import mount as _mount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lingo.config.experiment_index import Entry
    from lingo.config.params import Params
    from lingo.config.registry import experiment
    from lingo.config.text import Change
    from lingo.config.why import Chain
    from lingo.contract import Experiment, RunObserver
    from lingo.inspection.experiment_check import CheckResult
    from lingo.study.run import SweepOutcome
    from lingo.trainer.loop import Outcome
    from lingo.trainer.trained import Trained

    __version__: str

__all__ = [
    "Experiment",
    "RunObserver",
    "__version__",
    "check",
    "diff",
    "experiment",
    "get",
    "list",
    "load",
    "show",
    "sweep",
    "train",
    "why",
]

_mount.expose()

_LAZY = {
    "Experiment": "lingo.contract",
    "RunObserver": "lingo.contract",
    "experiment": "lingo.config.registry",
}
"""Public name -> the module that defines it.

The module is imported on first use, since it imports many other modules.
"""


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("lingo-tf")
        except metadata.PackageNotFoundError:
            return "0+unknown"  # a checkout that is not installed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> Sequence[str]:
    private = {"_documents", "_mount", "_options", "_shorten_errors", "_takes"}
    return sorted({*globals(), *__all__} - private)


# ---- reading experiments ---------------------------------------------------------------------


@_shorten_errors
def list(word: str = "") -> Sequence[Entry]:
    """Lists the experiments with a word in their name or summary, sorted by name; "" lists all.

    Each item describes an experiment by its `name`, `signature`, `summary`, `doc`, `file` and
    `line`.

    Raises:
        ParamError: if no experiment has the word in its name or summary.

    Warns:
        UserWarning: for each file of experiments that cannot be read.
    """
    import warnings

    from lingo.config import experiment_index

    _check_type("list", "a word", word, str)
    index = experiment_index.index()
    for problem in index.unreadable:
        warnings.warn(problem, stacklevel=3)
    return index.search(word)


@_shorten_errors
def get(name: str, *overrides: str) -> Params:
    """Returns the parameters of an experiment.

    Args:
        name: name of the experiment, such as `lm.source.tiny`, or a unique ending of the name;
            `name(argument=value)` or `file.py:function` are possible, too.
        *overrides: changes such as `max_steps=100`, as `--set` takes them, applied in order.

    Raises:
        ParamError: for any mistake in the name or an override.

    Warns:
        UserWarning: for each override whose new class does not take all values that were set.
    """
    import warnings

    from lingo.config import registry

    for text in (name, *overrides):
        _check_type("get", "a name and texts such as 'max_steps=100'", text, str)
    resolved = registry.get(name, overrides)
    for result in resolved.override_results:
        if result.dropped_values:
            warnings.warn(
                f"{result.text}: dropped: {'; '.join(result.dropped_values)}", stacklevel=2
            )
    return resolved.params


@_shorten_errors
def show(params: Params) -> str:
    """Returns the resolved text: one line per parameter, with the value that it has when built.

    If a parameter was not set, its line also says where the value comes from: a default, or a
    parent.

    Raises:
        ParamError: if the parameters cannot be built.
    """
    from lingo.config import text

    _check_params("show", params)
    return text.render(text.resolve(params))


@_shorten_errors
def diff(old: Params, new: Params) -> Sequence[Change]:
    """Returns a change for each parameter that differs between two experiments, sorted by `path`.

    A change has the values as texts, `old_value` and `new_value`; None means that this experiment
    lacks the parameter. It prints as `path: old -> new`.

    Raises:
        ParamError: if one of the experiments cannot be built.
    """
    from lingo.config import text

    for params in (old, new):
        _check_params("diff", params)
    return text.diff(text.resolve(old), text.resolve(new))


@_shorten_errors
def why(params: Params, path: str) -> Sequence[Chain]:
    """Traces where a parameter's value comes from: default, parent, line of a file, or override.

    The path leads to one field, such as `optimizer.learning_rate`, or to a field of all Params of a
    class, such as `FeedForward.dropout_rate`. The result has an item per field with its `path` and
    `steps`. Each step has a `value` and its `origin`, and the last step has the value in use.

    Raises:
        ParamError: if there is no such field.
    """
    from lingo.config.why import why as trace_values

    _check_params("why", params)
    return trace_values(params, path)


@_shorten_errors
@_documents(_options.CheckOptions)
def check(
    *overrides: str, names: Sequence[str] = (), trace: bool = False, contract: bool = False
) -> Sequence[CheckResult]:
    """Builds experiments with the same overrides, to try a change on all of them.

    Building needs no memory for weights, since only their shapes are computed.

    Args:
        *overrides: changes such as `max_steps=100`, as `--set` takes them.

    Returns:
        A result per experiment: `name`, `num_weights`, `error` (None if it passed), and with
        `contract` also `claims`, each with a `text`, `subject`, `outcome` and `detail`.

    Raises:
        ParamError: if an override matches no experiment, or `contract` is set without `names`.
    """
    from lingo.config.params import ParamError
    from lingo.inspection.experiment_check import check_experiments, check_matches

    names = [names] if isinstance(names, str) else names
    if contract and not names:
        raise ParamError("lingo.check(contract=True) runs experiments: name them in `names`")
    checked = check_experiments(overrides, names=names, trace_programs=trace, contract=contract)
    results = (*checked,)
    check_matches(results, overrides)
    return results


# ---- running experiments ---------------------------------------------------------------------


@_takes(_options.TrainCall)
def train(call: _options.TrainCall) -> Outcome:
    """Trains an experiment, and writes the run into a directory.

    The same call resumes a run that was stopped.

    Args:
        params: Params of an Experiment, from `lingo.get` or made in Python.
        logdir: directory of the run.

    Returns:
        The outcome: the number of steps done, and the last report and evaluations. If the run was
        done before the call, its outcome is returned, too.

    Raises:
        ParamError: if `params` are not an Experiment's, cannot be built, or use a class that is
            neither in a file nor in a notebook's cell.
        LingoError: for the errors of training that `lingo.trainer.run.train` lists.
    """
    from pathlib import Path

    from lingo.config import serial, text
    from lingo.config.cells import import_cells
    from lingo.config.source_files import find_user_files
    from lingo.contract import Experiment
    from lingo.trainer import run
    from lingo.trainer.directory.run_directory import RunDirectory, flags_text
    from lingo.trainer.request import Request

    _check_params("train", call.params, Experiment)
    _check_type("train", "a directory", call.logdir, (str, Path))
    params = import_cells(call.params)
    digest = text.digest(text.resolve(params))
    config = serial.dump(params, serial.Origin(), digest)
    directory = RunDirectory(call.logdir)
    request = Request(
        params,
        config,
        flags_text(directory.path.resolve(), config),
        note=call.note,
        tags=call.tag,
        audit=call.audit,
        allow_change=call.allow_change,
        source=find_user_files(params),
    )
    return run.train(request, directory)


@_takes(_options.LoadCall)
def load(call: _options.LoadCall) -> Trained:
    """Returns the trained model of a run, to evaluate it, predict or generate.

    Args:
        run_dir: directory of the run.

    Warns:
        UserWarning: for each of the user's files that the run uses and that has changed since.

    Raises:
        ParamError: if the directory holds no run, or the run's configuration is not trusted or
            not readable.
        NoUsableCheckpoint: if there is no checkpoint to read.
        CheckpointMismatch: if the checkpoint is another model's.
    """
    import warnings
    from pathlib import Path

    from lingo.config import serial
    from lingo.config.params import ParamError
    from lingo.contract import Experiment
    from lingo.storage.bucket.mirror import local_run
    from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
    from lingo.trainer.trained import Trained

    _check_type("load", "the directory of a run", call.run_dir, (str, Path))
    run_dir = local_run(call.run_dir, checkpoints=1 if call.step is None else None)
    saved, directory = serial.read(Path(run_dir) / CONFIG, call.trust), RunDirectory(run_dir)
    params = saved.params
    for path in dict.fromkeys([*saved.changed_files, *directory.changed_source(params)]):
        warnings.warn(f"{path} is not what it was when {run_dir} began", stacklevel=3)
    if not issubclass(params.cls, Experiment):
        raise ParamError(
            f"{run_dir} holds the Params of a {params.cls.__name__}, not of an Experiment"
        )
    return Trained(params, directory, step=call.step, quantize=call.quantize)


@_shorten_errors
@_documents(_options.SweepOptions)
def sweep(
    name: str,
    logdir: str | Path,
    *values: str,
    overrides: Sequence[str] = (),
    search: Literal["grid", "random", "optuna"] = "grid",
    num_trials: int | None = None,
    seed: int | None = None,
    metric: str | None = None,
    goal: Literal["min", "max"] | None = None,
    prune: str | None = None,
    workers: int = 1,
) -> SweepOutcome:
    """Trains an experiment once for each combination of values; the same call resumes the sweep.

    Args:
        name: name of the experiment, as `lingo.get` takes it. It is not Params, since each trial's
            process looks it up.
        logdir: directory of the sweep, in which each trial has a directory for its run.
        *values: values to try, as `--sweep` takes them: `path=a,b,c` or `path=log(low..high)`.
        overrides: overrides for all trials, as `--set` takes them.

    Returns:
        The outcome: `results`, with the best trial first, and `signal`, the signal that ended the
        sweep early, or None.

    Raises:
        ParamError: for any mistake in the arguments, before anything is created.
        LingoError: if the directory holds another sweep, is in use, or cannot be written.
    """
    from lingo.cli import buckets
    from lingo.cli.verbs import sweep as verb

    options = verb.Options(
        exp=name,
        run=None,
        logdir=buckets.local("sweep", "logdir", str(logdir)),
        sweep=values,
        set=overrides,
        search=search,
        num_trials=num_trials,
        seed=seed,
        metric=metric,
        goal=goal,
        prune=prune,
        workers=workers,
    )
    buckets.bring_down("sweep", options)
    return verb.sweep(options)


def _check_type(function: str, wanted: str, value: object, types: type | tuple[type, ...]) -> None:
    """Raises ParamError unless a value has one of the given types."""
    from lingo.config.base.errors import ParamError

    if not isinstance(value, types):
        given = f"{value!r:.80} ({type(value).__name__})"
        raise ParamError(f"lingo.{function} takes {wanted}, got {given}")


def _check_params(function: str, params: Any, cls: type | None = None) -> None:
    """Raises ParamError unless a value is Params, and of class `cls` if that is given."""
    from lingo.config.params import ParamError, Params

    wanted = "Params" if cls is None else f"the Params of an {cls.__name__}"
    wanted = f"{wanted}, as lingo.get('tiny') returns them"
    _check_type(function, wanted, params, Params)
    if cls is not None and not issubclass(params.cls, cls):
        given = f"the Params of a {params.cls.__name__}"
        raise ParamError(f"lingo.{function} takes {wanted}, got {given}")
