"""Counts of the steps of each of several tasks: how often each weight was updated.

Adam's bias correction, for one, depends on the number of a weight's updates. A weight that several
tasks share is updated by the steps of all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.layers.tree import ParamSpec
from lingo.learner.phase import declare_counts, sum_counts
from lingo.learner.task import Task


def count_path(name: str) -> str:
    """Returns the path of the state that counts the steps of a task, a float32 scalar."""
    return f"tasks/{name}/updates"


def states(whole: Task) -> dict[str, ParamSpec]:
    """Returns path -> declaration of the counts of a task's parts."""
    return declare_counts(map(count_path, whole.parts()))


def count_updates(whole: Task, where: str, state: Mapping[str, Any]) -> tf.Tensor:
    """Returns how often the weight at a program path was updated, an int32 scalar."""
    return sum_counts(map(count_path, _owners(whole)[where]), state)


def next_states(whole: Task, part: Task, state: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the count of the task `part` after one of its steps: path -> float32 scalar."""
    where = next(count_path(name) for name, task in whole.parts().items() if task is part)
    return {where: state[where] + 1.0}


@functools.lru_cache(maxsize=4)
def _owners(whole: Task) -> dict[str, list[str]]:
    """Returns the names of the tasks that have each weight, by program path."""
    owners: dict[str, list[str]] = {}
    for name, task in whole.parts().items():
        for where in task.weights():
            owners.setdefault(where, []).append(name)
    return owners
