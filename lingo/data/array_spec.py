"""Types for the shapes and dtypes of a batch's arrays, which are known before data is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

ArraySpec: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype."""

Specs: TypeAlias = Mapping[str, ArraySpec]
"""Name -> (shape, dtype) of each array of a batch."""

_TASK = "task__"


def task_mark(task: str) -> str:
    """Returns the name of the array that marks a batch of one of several tasks: int32 [B], zeros.

    >>> task_mark("translation")
    'task__translation'
    """
    return _TASK + task


def marked_task(names: Iterable[str]) -> str | None:
    """Returns the task of a batch that has arrays with these `names`; None: no array is a mark.

    >>> marked_task(["rows", "task__translation"])
    'translation'
    """
    return next((name.removeprefix(_TASK) for name in names if name.startswith(_TASK)), None)
