"""Builds every experiment, shapes only, with the same overrides: a change tried on all of them.

    lingo check
    lingo check --set='FeedForward.dropout_rate=0.1' --set='Stack=Repeat'
    lingo check --exp=lm.source.tiny --set='TransformerLayer=Remat(layer=_)' --trace

It prints a line for each: its name, its weights, how often each override matched. An override by
class is "not applicable" where there is no such class, and a mistake if there is one nowhere. A
WARNING is where overrides replace set values, such as the number of experts of a model that is
sparse already, and leave fewer weights. If products are quantized, it says how many, and which are
not: `--set='FeedForward=Quantized(layer=_)'`. With --trace, training and evaluation are traced
symbolically, too: without memory, at any size.

    lingo check --contract --exp=mine.py:mine
    lingo check --contract --exp=mine.py:mine --set=task.model.dim=32 --set=train_input.length=64

With --contract, an experiment is computed with a few examples of its first batch, in float32 on
this machine, to check what layers, task and input promise; there is a line for each claim:

    input   batch(step) is the same whenever it is made, as specs say, and row by row
    layer   no hidden state; eager = graph = XLA; no row depends on another; step by step = whole;
            alone = in Stack, Remat, Repeat and vmapped
    task    every weight has a gradient; losses and metrics of parts add up to those of the whole;
            20 steps, saved and resumed after 10, = 20 steps

Layers are those of your own classes, or one of each class if there are none. All sizes are those of
the experiment, except that of the batch: shrink a large one by --set. "not checked" gives the
reason. If a claim fails, the exit code is 1.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence

from lingo.cli.command import RootOptions, UsageError
from lingo.cli.options import CheckOptions
from lingo.config import experiment_index
from lingo.config.base.errors import LingoError
from lingo.config.options import option, option_class
from lingo.config.params import ParamError
from lingo.inspection.experiment_check import CheckResult, check_experiments, check_matches


class ExperimentsFailed(LingoError):
    """Some experiments do not build or trace, for another reason than their parameters."""


@option_class
class Options(CheckOptions, RootOptions):
    """The options of the verb."""

    set: Sequence[str] = option("An override, as `lingo show` takes it.", default=())


def run(options: Options) -> int:
    """Prints a line for every experiment, and a summary."""
    if options.contract and not options.names:
        raise UsageError("--contract computes an experiment: name it, --exp=mine.py:mine")
    roots = options.roots()
    names = options.names or [*experiment_index.index(roots).entries]
    width = max(map(len, names), default=0)
    results: list[CheckResult] = []
    with _without_advice():
        for result in check_experiments(
            options.set,
            names=names,
            roots=roots,
            trace_programs=options.trace,
            contract=options.contract,
            report=lambda claim: print(claim, flush=True),
        ):
            if options.traceback and result.error is not None:
                traceback.print_exception(result.error)
            print(f"{result.name:{width}}  {result}", flush=True)
            results.append(result)
    failures = [result for result in results if result.error is not None]
    print(f"{len(results)} checked, {len(failures)} failed")
    _raise_first(failures, len(results))
    check_matches(results, options.set)
    return 0


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Hides TensorFlow's warnings of many small programs, which are what is wanted here."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _raise_first(failures: Sequence[CheckResult], count: int) -> None:
    """Raises one error for all failures: ParamError if all of them are, else ExperimentsFailed."""
    if not failures:
        return
    first = failures[0]
    message = f"{len(failures)} of {count} experiments failed; {first.name}: {first.reason}"
    if all(isinstance(result.error, ParamError) for result in failures):
        raise ParamError(message)
    raise ExperimentsFailed(f"{message} (--traceback shows where)")
