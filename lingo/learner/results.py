"""Checks of what a task returns: each mistake is one sentence, at the first trace.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line
from lingo.learner.task import Task

_MEAN = {"sum", "weight"}


def check_losses(task: Task, losses: Any) -> None:
    """Raises ParamError unless losses are {term: float32 scalar}, as `Task.loss` returns them."""
    where = _name(task.loss)
    if not (isinstance(losses, Mapping) and losses):
        raise ParamError(
            f"{where} returned {_kind(losses)}: it returns {{term: sum over the batch}}, as in"
            " {'loss': tf.reduce_sum(batch['weights'] * errors)}"
        )
    for term, value in losses.items():
        if term == "total":
            raise ParamError(f"{where}: 'total' is the name of the sum of all terms: rename yours")
        if not (tf.is_tensor(value) and value.dtype == tf.float32 and value.shape.rank == 0):
            raise ParamError(
                f"{where} returned {_kind(value)} as {term!r}: a term is a float32 scalar, the sum"
                " over the batch, as in tf.reduce_sum(batch['weights'] * errors)"
            )


def check_denominators(task: Task, denominators: Any) -> None:
    """Raises ParamError unless denominators are {term: scalar}, with one for `examples`."""
    where = _name(task.loss_denominators)
    if not isinstance(denominators, Mapping):
        raise ParamError(
            f"{where} returned {_kind(denominators)}: it returns {{term: weight of the batch}}"
        )
    if "examples" not in denominators:
        raise ParamError(
            f"{where} has no 'examples', which is for every term without one of its own:"
            " return super().loss_denominators(batch) | {...}"
        )


def check_metrics(task: Task, states: Any) -> None:
    """Raises ParamError unless states are {name: {"sum", "weight"}}, as `Task.metrics` has them."""
    where = _name(task.metrics)
    if not isinstance(states, Mapping):
        raise ParamError(
            f"{where} returned {_kind(states)}: it returns {{name: state}}, as in"
            " {'error': lingo.metrics.weighted_mean(errors, batch['weights'])}"
        )
    for name, state in states.items():
        if not (isinstance(state, Mapping) and set(state) == _MEAN):
            entries = f" with {sorted(state)}" if isinstance(state, Mapping) else ""
            raise ParamError(
                f"{where} returned {_kind(state)}{entries} as {name!r}: a state is {{'sum',"
                " 'weight'}, as lingo.metrics.weighted_mean(values, weights) returns it"
            )
        for entry, value in state.items():
            if tf.is_tensor(value) and value.shape.rank:
                raise ParamError(
                    f"{where} returned {_kind(value)} as the {entry!r} of {name!r}: a scalar, added"
                    " up over the batch, is wanted"
                )


def check_results(task: Task, results: Any) -> None:
    """Raises ParamError unless results are {name: number}, as `Task.results` returns them."""
    if not isinstance(results, Mapping):
        where = _name(task.results)
        raise ParamError(f"{where} returned {_kind(results)}: it returns {{metric: number}}")


def _name(method: Callable[..., Any]) -> str:
    return f"{definition_line(method)}: {method.__qualname__}"


def _kind(value: Any) -> str:
    """Returns what a value is, in words: "None", "a float32 tensor of shape (4,)", "a tuple"."""
    if tf.is_tensor(value):
        article = "an" if value.dtype.is_integer else "a"
        return f"{article} {value.dtype.name} tensor of shape {value.shape}"
    if isinstance(value, Mapping) and not value:
        return "nothing"
    return "None" if value is None else f"a {type(value).__name__}"
