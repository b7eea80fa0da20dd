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
    """Returns where experiments and classes are looked for."""
    return roots.find(values.params_dir)
