"""Builds every experiment, shapes only, with the same overrides: a change tried on all of them.

    lingo check
    lingo check --set='FeedForward.dropout_rate=0.1' --set='Stack=Repeat'
    lingo check --exp=lm.source.tiny --set='TransformerLayer=Remat(layer=_)' --trace

It prints a line for each: its name, its weights, how often each override matched. An override by
class is "not applicable" where there is no such class, and a mistake if there is one nowhere. A
WARNING is where overrides replace set values, such as the number of experts of a model that is
sparse already, and leave fewer weights. With --trace, training and evaluation are traced
symbolically, too: without memory, at any size.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from absl import flags

from lingo.cli import command
from lingo.config import experiment_index
from lingo.config.errors import LingoError
from lingo.config.params import ParamError
from lingo.inspection.experiment_check import CheckResult, check_experiments, check_matches

WORD = ""  # it takes no word beside its flags


class ExperimentsFailed(LingoError):
    """Some experiments do not build or trace, for another reason than their parameters."""


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    command.strings("exp", "Check this experiment only.", values)
    command.strings("set", "An override, as `lingo show` takes it.", values)
    command.boolean("trace", "Trace training and evaluation, too.", values)
    command.define_params_dir(values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints a line for every experiment, and a summary."""
    del word
    roots = command.find_roots(values)
    names = values.exp or [*experiment_index.index(roots).entries]
    width = max(map(len, names), default=0)
    results: list[CheckResult] = []
    for result in check_experiments(
        values.set, names=names, roots=roots, trace_programs=values.trace
    ):
        if values.traceback and result.error is not None:
            traceback.print_exception(result.error)
        print(f"{result.name:{width}}  {result}", flush=True)
        results.append(result)
    failures = [result for result in results if result.error is not None]
    print(f"{len(results)} checked, {len(failures)} failed")
    _raise_first(failures, len(results))
    check_matches(results, values.set)
    return 0


def _raise_first(failures: Sequence[CheckResult], count: int) -> None:
    """Raises one error for all failures: ParamError if all of them are, else ExperimentsFailed."""
    if not failures:
        return
    first = failures[0]
    message = f"{len(failures)} of {count} experiments failed; {first.name}: {first.reason}"
    if all(isinstance(result.error, ParamError) for result in failures):
        raise ParamError(message)
    raise ExperimentsFailed(f"{message} (--traceback shows where)")
