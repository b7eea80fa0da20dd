"""Shows in what two experiments differ, a line for each parameter: `path: a -> b`.

    lingo diff --exp=lm.source.tiny --exp=lm.source.small
    lingo diff --run=runs/a --run=runs/b
    lingo diff --exp=lm.source.tiny --run=runs/a
    lingo diff --exp=lm.source.tiny --set='Stack=Repeat'       what the overrides change

Of an experiment and a run, the experiment comes first. With two of them, --set changes both.
"""

from __future__ import annotations

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.config import text
from lingo.config.registry import ResolvedExperiment

WORD = ""  # it takes no word beside its flags


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define(values, several=True)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the differences."""
    del word
    before, after = (text.resolve(resolved.params) for resolved in _resolve_two(values))
    for change in text.diff(before, after):
        print(change)
    return 0


def _resolve_two(values: flags.FlagValues) -> tuple[ResolvedExperiment, ResolvedExperiment]:
    given = len(values.exp) + len(values.run)
    if given == 1 and values.set:
        return _resolve_all(values, [])[0], _resolve_all(values, values.set)[0]
    if given != 2:
        raise UsageError(
            f"diff compares two of --exp and --run, or one with and without --set; {given} given"
        )
    first, second = _resolve_all(values, values.set)
    return first, second


def _resolve_all(values: flags.FlagValues, overrides: list[str]) -> list[ResolvedExperiment]:
    places = command.find_roots(values)
    return [experiment_flags.resolve_name(form, overrides, places) for form in values.exp] + [
        experiment_flags.read_run(directory, overrides, values.trust, places)
        for directory in values.run
    ]
