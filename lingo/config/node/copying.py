"""Copies trees of Params, and freezes the Params of built objects."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from lingo.config.base.errors import ParamError
from lingo.config.base.types import SCALARS, Node, is_params
from lingo.config.node.fiddle_api import History
from lingo.config.node.field import field_of
from lingo.config.node.tree import Value, field_path

FROZEN = "the parameters of a built object cannot change; copy() them."


def shallow_copy(params: Node, **state: Any) -> Node:
    """Returns a shallow copy of Params, with the attributes in `state` replaced."""
    new: Node = object.__new__(type(params))
    vars(new).update(vars(params), **state)
    return new


def deep_copy(value: Value) -> Any:
    """Returns a deep copy of a parameter value, or of a dict of parameter values."""
    return copy_tree(value, {})


def copy_tree(value: Value, memo: dict[int, Any] | None) -> Any:
    """Returns a deep copy of a parameter value; no Params in the copy are frozen.

    Params that occur twice are copied once if `memo` (id -> copy) is a dict. With `memo` None, each
    occurrence gets its own copy.
    """
    if type(value) in SCALARS:
        return value
    if is_params(value):
        if memo and id(value) in memo:
            return memo[id(value)]
        new = shallow_copy(value)
        if memo is not None:
            memo[id(value)] = new
        state: dict[str, Any] = vars(new)
        state.pop("_frozen", None)
        state.pop("_path", None)
        state["__arguments__"] = {k: copy_tree(v, memo) for k, v in value.__arguments__.items()}
        state["__argument_tags__"] = defaultdict(
            set, {k: set(v) for k, v in value.__argument_tags__.items()}
        )
        state["__argument_history__"] = History(
            {k: list(entries) for k, entries in value.__argument_history__.items()}
        )
        return new
    if isinstance(value, list):
        return [copy_tree(v, memo) for v in value]
    if isinstance(value, tuple):
        return tuple(copy_tree(v, memo) for v in value)
    if isinstance(value, dict):
        return {k: copy_tree(v, memo) for k, v in value.items()}
    return value


def freeze(value: Value, path: str) -> Any:
    """Freezes Params in place, with all values inside, and stores each Params' path in it.

    Returns the frozen value: a list or dict is replaced by a copy that refuses changes. Containers
    in fields are checked again, since they may have been changed after they were set.
    """
    if is_params(value):
        for name, child in value.__arguments__.items():
            if isinstance(child, (list, tuple, dict)):
                child = cast("Value", field_of(value.cls, name).fit(child))
            if type(child) not in SCALARS:
                value.__arguments__[name] = freeze(child, field_path(path, name))
        vars(value).update(_frozen=True, _path=path)
        return value
    if isinstance(value, (list, tuple)):
        inside = [freeze(v, f"{path}[{i}]") for i, v in enumerate(value)]
        return tuple(inside) if isinstance(value, tuple) else _FrozenList(inside)
    if isinstance(value, dict):
        return _FrozenDict({k: freeze(v, f"{path}[{k!r}]") for k, v in value.items()})
    return value


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise ParamError(FROZEN)


def _frozen_type(base: type, writes: str) -> Any:
    """Returns a subclass of list or dict whose methods named in `writes` raise ParamError."""
    return type(f"Frozen{base.__name__.title()}", (base,), dict.fromkeys(writes.split(), _refuse))


_FrozenList = _frozen_type(
    list,
    "__setitem__ __delitem__ __iadd__ __imul__ append extend insert pop remove clear sort reverse",
)
_FrozenDict = _frozen_type(
    dict, "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update"
)
