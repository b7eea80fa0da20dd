"""Builds every experiment, shapes only, with the same overrides, to try a change on all of them.

    lingo check
    lingo check --set='FeedForward.dropout_rate=0.1' --set='Stack=Repeat'
    lingo check --exp=lm.source.tiny --set='TransformerLayer=Remat(layer=_)' --trace

It prints a line per experiment with its name, its number of weights, and how often each override
matched. An override by class is "not applicable" to an experiment without that class, and a mistake
if no experiment has the class. A WARNING says that overrides replaced set values, such as the
number of experts of a model that is sparse already, and left fewer weights. If matrix products are
quantized, as by `--set='FeedForward=Quantized(layer=_)'`, the line says how many are quantized, and
which are not. With --trace, training and evaluation are also traced symbolically, which needs no
memory for weights or batches.

    lingo check --contract --exp=mine.py:mine
    lingo check --contract --exp=mine.py:mine --set=task.model.dim=32 --set=train_input.length=64

With --contract, an experiment runs on a few examples of its first batch, in float32 on this
machine, to check the promises of layers, task and input, with a line per claim:

    input   batch(step) is always the same and as specs say; rows made alone = the batch's rows
    layer   no hidden state; eager = graph = XLA; no row depends on another; step by step = whole;
            alone = in Stack, Remat, Repeat and vmapped
    task    every weight has a gradient; losses and metrics of parts add up to the whole's;
            20 steps, saved and resumed after 10, = 20 steps

It checks the layers of your own classes, or one layer of each class if none is your own. All sizes
except the batch's are the experiment's, so shrink a large experiment by --set. If a claim is "not
checked", the line gives the reason. If a claim fails, the exit code is 1.
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
    """Some experiments cannot be built or traced, and not only because of their parameters."""


@option_class
class Options(CheckOptions, RootOptions):
    """The options of `lingo check`."""

    set: Sequence[str] = option("An override, as `lingo show` takes it.", default=())


def run(options: Options) -> int:
    """Prints a line for every experiment, and a summary."""
    if options.contract and not options.names:
        raise UsageError("--contract runs an experiment: name it, as in --exp=mine.py:mine")
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
    """A context without TensorFlow's warnings about many small programs, which are intended."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _raise_first(failures: Sequence[CheckResult], count: int) -> None:
    """Raises one error for all failures: ParamError if each is a ParamError, or ExperimentsFailed.

    Without failures it does nothing. The message has the reason of the first failure.
    """
    if not failures:
        return
    first = failures[0]
    message = f"{len(failures)} of {count} experiments failed; {first.name}: {first.reason}"
    if all(isinstance(result.error, ParamError) for result in failures):
        raise ParamError(message)
    raise ExperimentsFailed(f"{message} (--traceback shows where)")
