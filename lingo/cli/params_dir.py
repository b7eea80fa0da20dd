"""The flag `--params_dir`, which adds a directory of experiments."""

from __future__ import annotations

from absl import flags

from lingo.cli import command
from lingo.config.roots import roots
from lingo.config.roots.roots import Roots


def define(values: flags.FlagValues) -> None:
    """Defines the flag."""
    command.strings("params_dir", "A further directory of experiments.", values)


def find_roots(values: flags.FlagValues) -> Roots:
    """Returns the roots of experiments and classes, with those of `--params_dir`."""
    return roots.find(values.params_dir)
