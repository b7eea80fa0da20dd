"""Shows how two experiments differ, a line for each parameter: `path: a -> b`.

    lingo diff --exp=lm.source.tiny --exp=lm.source.small
    lingo diff --run=runs/a --run=runs/b
    lingo diff --exp=lm.source.tiny --run=runs/a
    lingo diff --exp=lm.source.tiny --set='Stack=Repeat'       what the overrides change

If an experiment and a run are compared, the experiment comes first. --set changes both.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.cli.command import UsageError
from lingo.cli.experiment_options import (
    EXPERIMENT,
    RUN,
    OverrideOptions,
    read_run,
    resolve_name,
)
from lingo.config import text
from lingo.config.options import option, option_class
from lingo.config.registry import ResolvedExperiment


@option_class
class Options(OverrideOptions):
    """The options of `lingo diff`."""

    exp: Sequence[str] = option(EXPERIMENT, default=())
    run: Sequence[str] = option(RUN, default=())


def run(options: Options) -> int:
    """Prints the differences."""
    before, after = (text.resolve(resolved.params) for resolved in _resolve_two(options))
    for change in text.diff(before, after):
        print(change)
    return 0


def _resolve_two(options: Options) -> tuple[ResolvedExperiment, ResolvedExperiment]:
    given = len(options.exp) + len(options.run)
    if given == 1 and options.set:
        return _resolve_all(options, [])[0], _resolve_all(options, options.set)[0]
    if given != 2:
        raise UsageError(
            f"diff compares two of --exp and --run, or one with and without --set; {given} given"
        )
    first, second = _resolve_all(options, options.set)
    return first, second


def _resolve_all(options: Options, overrides: Sequence[str]) -> list[ResolvedExperiment]:
    places = options.roots()
    return [resolve_name(form, overrides, places) for form in options.exp] + [
        read_run(directory, overrides, options.trust, places) for directory in options.run
    ]
