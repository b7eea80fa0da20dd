"""Builds every experiment, shapes only, with the same overrides: a change tried on all of them.

    lingo check
    lingo check --set='FeedForward.dropout_rate=0.1' --set='Stack=Repeat'
    lingo check --exp=lm.source.tiny --set='TransformerLayer=Remat(layer=_)' --trace

It prints a line for each: its name, its weights, how often each override matched. An override by
class is "not applicable" where there is no such class, and a mistake if there is one nowhere. With
--trace, training and evaluation are traced symbolically, too: without memory, at any size.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from lingo.cli import command, experiment_flags, params_dir
from lingo.cli.command import UsageError
from lingo.config import registry
from lingo.config.errors import LingoError
from lingo.config.overrides.apply import Applied, NoMatch, apply
from lingo.config.params import ParamError
from lingo.config.roots.classes import Classes
from lingo.inspection import weight_table
from lingo.inspection.trace import trace

WORD = ""


class ExperimentsFailed(LingoError):
    """Some experiments do not build or trace, for another reason than their parameters."""


class Outcome(NamedTuple):
    """How the check of one experiment went.

    Attributes:
        line: what to print.
        applied: what each override did, by its text.
        mismatch: why an override concerned none; text -> message.
        error: what went wrong, or None.
    """

    line: str
    applied: dict[str, Applied]
    mismatch: dict[str, NoMatch]
    error: Exception | None = None


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    command.strings("exp", "Check this experiment only.", values)
    command.strings("set", "An override, as `lingo show` takes it.", values)
    command.boolean("trace", "Trace training and evaluation, too.", values)
    params_dir.define(values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints a line for every experiment, and one for all."""
    del word
    classes = Classes(params_dir.find_roots(values))
    names = values.exp or list(registry.index(classes.roots).entries)
    width = max(map(len, names), default=0)
    outcomes = []
    for name in names:
        outcomes.append(_check(name, values.set, classes, values))
        print(f"{name:{width}}  {outcomes[-1].line}", flush=True)
    errors = {n: o.error for n, o in zip(names, outcomes, strict=True) if o.error is not None}
    print(f"{len(names)} checked, {len(errors)} failed")
    _raise_first(errors, len(names))
    for text in values.set:
        if outcomes and all(text in outcome.mismatch for outcome in outcomes):
            raise UsageError(f"--set={text} matches in no experiment. {outcomes[0].mismatch[text]}")
    return 0


def _check(name: str, texts: Sequence[str], classes: Classes, values: flags.FlagValues) -> Outcome:
    """Builds one experiment, and traces it where asked to."""
    applied: dict[str, Applied] = {}
    mismatch: dict[str, NoMatch] = {}
    try:
        arguments = [text for text in texts if text.startswith(experiment_flags.ARGUMENT)]
        chosen = registry.get(name, arguments, classes.roots)
        for text in texts:
            if text not in arguments:
                try:
                    (applied[text],) = apply(chosen.params, [text], classes)
                except NoMatch as error:
                    mismatch[text] = error
        experiment = experiment_flags.build(chosen)
        total = weight_table.total_parameters(weight_table.rows(experiment.task))
        if values.trace:
            trace(experiment)
    except Exception as error:  # noqa: BLE001  # what ails one experiment does not spare the others
        if values.traceback:
            traceback.print_exc()
        return Outcome(f"FAILED  {_said(error)}", applied, mismatch, error)
    counts = [_matched(text, applied.get(text)) for text in {**applied, **mismatch}]
    return Outcome("  ".join([f"{total:,} parameters", *counts]), applied, mismatch)


def _matched(text: str, applied: Applied | None) -> str:
    if applied is None:
        return f"{text}: not applicable"
    dropped = f" (drops {'; '.join(applied.dropped)})" if applied.dropped else ""
    return f"{text}: {applied.matched}{dropped}"


def _said(error: Exception) -> str:
    """Returns an error in one line; TensorFlow's go on for pages."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return first if isinstance(error, ParamError) else f"{type(error).__name__}: {first}"


def _raise_first(errors: dict[str, Exception], count: int) -> None:
    """Raises one error for all that failed; it is of the command line if all are of parameters."""
    if not errors:
        return
    name, error = next(iter(errors.items()))
    message = f"{len(errors)} of {count} experiments failed; {name}: {_said(error)}"
    if all(isinstance(error, ParamError) for error in errors.values()):
        raise ParamError(message)
    raise ExperimentsFailed(f"{message} (--traceback shows where)")
