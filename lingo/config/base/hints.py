"""Hints in errors that name an option as the caller gives it: by flag, or by Python argument."""

from __future__ import annotations

import contextlib
import contextvars
import shlex
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType

_arguments: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    "arguments", default=MappingProxyType({})
)
"""Flag -> argument of the Python function that is being called; empty on the command line."""


@contextlib.contextmanager
def name_arguments(names: Mapping[str, str]) -> Generator[None]:
    """Makes hints of the body name Python arguments; `names` maps each flag to its argument."""
    token = _arguments.set(names)
    try:
        yield
    finally:
        _arguments.reset(token)


def hint(flag: str, values: Sequence[str] | None = None) -> str:
    """Returns how the caller gives an option: `--trust=a.py`, or `trust=['a.py']` in Python.

    The caller is in Python if it has called a function that has an option with this flag. `values`
    are the values of a repeated flag; None: the option is a switch.
    """
    if (name := _arguments.get().get(flag)) is not None:
        return f"{name}={True if values is None else [*values]!r}"
    if values is None:
        return f"--{flag}"
    return " ".join(f"--{flag}={shlex.quote(value)}" for value in values)
