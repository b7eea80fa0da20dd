"""Errors with an exit code of their own.

0 done; 1 unexpected failure; 2 usage or configuration; 3 no usable checkpoint; 4 checkpoint of
another model; 5 bad data; 6 directory locked; 7 another configuration in the directory; 8 numeric
failure; 9 hang; 10 storage full or read-only; 129 hung up, saved; 130 interrupted, saved; 143
terminated, saved.
"""

from __future__ import annotations

from typing import ClassVar


class LingoError(Exception):
    """An error that a user can cause or must know: the message says where, what and what to do."""

    exit_code: ClassVar[int] = 1  # of a program that ends with this error


class NumericFailure(LingoError):
    """Losses or gradients are not finite for too many steps in a row, or a weight is not."""

    exit_code: ClassVar[int] = 8


class MissingPackage(LingoError):
    """A package is missing that one of lingo's extras installs."""

    exit_code: ClassVar[int] = 2
