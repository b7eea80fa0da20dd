"""Changes all Params of a class in a tree together: sets, swaps, or wraps them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

from lingo.config.base import types
from lingo.config.base.errors import ParamError
from lingo.config.base.types import Node
from lingo.config.node.copying import FROZEN, deep_copy, shallow_copy
from lingo.config.node.fiddle_api import History, Location, record_location
from lingo.config.node.field import REQUIRED, Field, field_of, fields, interface
from lingo.config.node.label import label, value_text
from lingo.config.node.tree import Value, field_path, items, nodes, same, walk
from lingo.config.roots.user_line import is_installed

CLASS = "__fn_or_cls__"
"""The key in a history for changes of the Params' class, as in Fiddle."""


class Selection:
    """All Params of a class and its subclasses in the tree of a root, each once.

    Params are changed in place, so every reference to them sees the change.
    """

    def __init__(self, found: list[Any], cls: type[Any], root: Any) -> None:
        self._nodes = list({id(node): node for node in found}.values())
        self.cls, self.root = cls, root
        self.dropped_values: list[str] = []  # values that a swap could not keep, one line each

    def __iter__(self) -> Iterator[Any]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: int) -> Any:
        return self._nodes[index]

    def set(self, **values: Any) -> Selection:
        """Sets fields of each node, which gets its own copy of the values."""
        with record_location(_caller_location()):
            for node in self:
                node.set(**deep_copy(values))
        return self

    def swap(self, cls: type[Any], **values: Any) -> Selection:
        """Changes the class of each node to `cls`, of the same interface, then sets values.

        A value that was set is kept, with its history, if the new class has a field of this name
        that takes the value. `dropped_values` lists the other values; a user's code that drops any
        gets a UserWarning. A default template is replaced by the new class's, but values that were
        set inside it are kept. Raises ParamError, and changes nothing, if a field that contains a
        node does not take `cls`.
        """
        self.change_class(cls)
        caller = _caller_location()
        file = caller.filename or ""
        if self.dropped_values and not is_installed(os.path.realpath(file)):
            text = f"dropped: {'; '.join(self.dropped_values)}"
            warnings.warn_explicit(text, UserWarning, file, caller.line_number or 0)
        return self.set(**values)

    def change_class(self, cls: type[Any]) -> None:
        """Changes the class of each node to `cls` as `swap` does, without a warning."""
        paths = {id(node): path for path, node in walk(self.root)}
        self._check_places(self._nodes, cls.params())
        for node in self:
            if node.cls is not cls:
                new = cls.params()
                self.dropped_values += _carry(node, None, new, paths.get(id(node), ""))
                _become(node, new)

    def wrap(self, cls: type[Any], field: str, **values: Any) -> Selection:
        """Replaces each node by Params of `cls` with the node in `field`; returns the wrappers.

        Wrapping is idempotent: a node that is already in this field of Params of `cls` is not
        wrapped again, and nor is a node whose class is `cls`. Raises ParamError if a field that
        contains a node does not take `cls`, or if `cls` lacks the field.
        """
        target = field_of(cls, field)
        existing = self._existing_wrappers(cls, field)
        bare = [n for n in self if id(n) not in existing and not issubclass(n.cls, cls)]
        self._check_places(bare, cls.params())
        for node in bare:
            target.fit(node)
        for node in bare:
            wrapper = cls.params()
            wrapper.set(**{field: shallow_copy(node)})
            _become(node, wrapper)
        wrappers = [n for n in self if issubclass(n.cls, cls)]
        return Selection([*existing.values(), *wrappers], cls, self.root).set(**values)

    def _existing_wrappers(self, cls: type[Any], field: str) -> dict[int, Any]:
        """Returns id of a selected node -> the Params of `cls` that have the node in `field`."""
        ids = {id(node) for node in self}
        return {
            id(inner): owner
            for owner in nodes(self.root)
            if issubclass(owner.cls, cls)
            for inner in _outermost(owner.__arguments__.get(field))
            if id(inner) in ids
        }

    def _check_places(self, selected: list[Any], candidate: Any) -> None:
        """Raises ParamError if Params `candidate` cannot replace each of the selected nodes."""
        ids = {id(node) for node in selected}
        for node in selected:
            if "_frozen" in vars(node):
                raise ParamError(f"{label(node.cls)}: {FROZEN}")
        if id(self.root) in ids:
            _check_interface(self.root, candidate, "")
        for path, owner in walk(self.root):
            for name, value in owner.__arguments__.items():
                inside = [node for node in _outermost(value) if id(node) in ids]
                if inside:
                    where = f"{field_path(path, name)}: "
                    _check_field(fields(owner.cls)[name], value, inside, candidate, where)


def _outermost(value: Value) -> Iterator[Any]:
    """Yields the Params in a value, but not the Params inside these."""
    if types.is_params(value):
        yield value
    else:
        for _, inner in items(value):
            yield from _outermost(inner)


def _check_field(field: Field, value: Value, inside: list[Any], candidate: Any, where: str) -> None:
    try:
        field.fit(_replace(value, {id(node) for node in inside}, candidate))
    except ParamError as error:
        raise ParamError(f"{where}{error}") from None
    if types.takes_any_class(field.hint):
        for node in inside:
            _check_interface(node, candidate, where)


def _check_interface(node: Any, candidate: Any, where: str) -> None:
    if not issubclass(candidate.cls, interface(node.cls)):
        given, wanted = map(types.describe, (interface(candidate.cls), interface(node.cls)))
        raise ParamError(
            f"{where}{label(candidate.cls)} cannot replace {label(node.cls)}:"
            f" it is {given}, not {wanted}"
        )


def _caller_location() -> Location:
    """Returns the location of the caller's line, to search for it once and not for every field."""
    probe = History()
    probe.add_new_value("", None)
    return probe[""][0].location if probe[""] else Location("", 0, None)


def _replace(value: Value, ids: set[int], candidate: Any) -> Value:
    """Returns a copy of a field's value with `candidate` in place of the Params with these ids."""
    if id(value) in ids:
        return candidate
    if isinstance(value, (list, tuple)):
        return [_replace(inner, ids, candidate) for inner in value]
    if isinstance(value, dict):
        return {key: _replace(inner, ids, candidate) for key, inner in value.items()}
    return value


def _become(node: Node, new: Node) -> None:
    """Gives a node the state of `new`, and records the change of class in its history."""
    entries = new.__argument_history__
    entries[CLASS] = list(node.__argument_history__.get(CLASS, []))
    if not entries[CLASS]:
        with record_location(Location("", 0, None)):
            entries.add_new_value(CLASS, node.cls)
    entries.add_new_value(CLASS, new.cls)
    vars(node).clear()
    vars(node).update(vars(new))


def _carry(old: Any, preset: Any | None, new: Any, path: str) -> list[str]:
    """Copies the values set in `old` to `new`; returns a line for each value that does not fit.

    If `old` is a copy of a default template, that is `preset`, whose values are not copied.
    """
    dropped: list[str] = []
    for name, value in old.__arguments__.items():
        before = _value_before(old, preset, name)
        if same(value, before):
            continue
        target, where = new.__arguments__.get(name), field_path(path, name)
        if all(map(types.is_params, (value, before, target))) and value.cls is before.cls:
            dropped += _carry(value, before, target, where)
        elif reason := _carry_value(old, name, new):
            dropped.append(f"{where} = {value_text(value)}: {reason}")
    return dropped


def _value_before(node: Any, preset: Any | None, name: str) -> Any:
    """Returns the value that a field had before it was set; REQUIRED if it had no value."""
    entries = node.__argument_history__.get(name)
    if not entries:
        return fields(node.cls)[name].default
    theirs = preset.__argument_history__.get(name) if preset is not None else None
    if preset is None or not theirs or theirs[-1] is not entries[-1]:
        return REQUIRED
    return preset.__arguments__[name]


def _carry_value(old: Any, name: str, new: Any) -> str:
    """Copies a value and its history to `new`; returns why `new` cannot take it, or ""."""
    if name not in fields(new.cls):
        return f"{label(new.cls)} has no such field"
    try:
        new.__arguments__[name] = fields(new.cls)[name].fit(old.__arguments__[name])
    except ParamError as error:
        return str(error)
    if entries := old.__argument_history__.get(name):
        new.__argument_history__[name] = list(entries)
    return ""
