"""All Params of a class in a tree, changed together: set, swapped for another class, or wrapped in one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from fiddle import history

from lingo.config import types
from lingo.config.classes import label
from lingo.config.params import (
    REQUIRED,
    Configurable,
    Field,
    ParamError,
    Params,
    detached,
    field_of,
    fields,
    items,
    kind,
    same,
    walk,
)
from lingo.config.text import value_text

CLASS = "__fn_or_cls__"
"""The name under which a history keeps changes of the class, as Fiddle does."""


class _Holder(NamedTuple):
    """A field in which a node stands, directly or in a container."""

    owner: Params
    field: Field


class Selection:
    """Params of a class and its subclasses below a root, each once.

    Changes happen in place: whoever holds one of them sees the change.

    Attributes:
        cls: the class that was looked for.
        root: where it was looked for.
        dropped: what a swap could not keep, a line each.
    """

    def __init__(self, nodes: list[Params], cls: type[Configurable], root: Params) -> None:
        self._nodes = list({id(node): node for node in nodes}.values())
        self.cls, self.root = cls, root
        self.dropped: list[str] = []

    def __iter__(self) -> Iterator[Params]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: int) -> Params:
        return self._nodes[index]

    def __repr__(self) -> str:
        return f"{len(self)} {self.cls.__name__} in {self.root.cls.__name__}"

    def set(self, **values: Any) -> Selection:
        """Sets fields of each; Params among the values are copied, so that none is shared.

        Raises:
            ParamError: as setting one does.
        """
        with history.custom_location(_here()):
            for node in self:
                node.set(**detached(values))
        return self

    def swap(self, cls: type[Configurable], **values: Any) -> Selection:
        """Makes each the parameters of another class.

        What was set is kept, with its history, where the new class has such a field and takes such a
        value; default templates are replaced by the new class's, except for what was set inside
        them. `dropped` tells what was lost.

        Args:
            cls: the new class, of the kind of the old.
            **values: set on each afterwards.

        Raises:
            ParamError: if the place of one of them takes no such class; nothing has changed then.
        """
        paths, candidate = self._paths(), Params(cls)
        self._check_places(self._nodes, candidate)
        for node in self:
            if node.cls is not cls:
                new = Params(cls)
                self.dropped += _carry(node, None, new, paths.get(id(node), ""))
                _become(node, new)
        return self.set(**values)

    def wrap(self, cls: type[Configurable], field: str, **values: Any) -> Selection:
        """Puts new Params around each: what stood there becomes their `field`.

        Wrapping twice is wrapping once: what stands in that field of that class already is not
        wrapped again, nor are Params of the class `cls` itself.

        Args:
            cls: the class of the wrapper.
            field: its field for what it stands around.
            **values: set on each wrapper.

        Returns:
            The wrappers, those that stood there already among them.

        Raises:
            ParamError: if the place of one of them takes no `cls`, or `cls` no such field.
        """
        takes = field_of(cls, field)
        standing = self._standing(cls, field)
        bare = [n for n in self if id(n) not in standing and not issubclass(n.cls, cls)]
        self._check_places(bare, Params(cls))
        for node in bare:
            takes.fit(node)
        for node in bare:
            inner, wrapper = _moved(node), Params(cls)
            wrapper.set(**{field: inner})
            _become(node, wrapper)
        wrappers = [n for n in self if issubclass(n.cls, cls)]
        return Selection([*standing.values(), *wrappers], cls, self.root).set(**values)

    def _paths(self) -> dict[int, str]:
        return {id(node): path for path, node in walk(self.root)}

    def _standing(self, cls: type[Configurable], field: str) -> dict[int, Params]:
        """Returns, by id, the nodes that stand in that field of that class, with their wrappers."""
        holders = _holders(self.root)
        return {
            id(node): holder.owner
            for node in self
            for holder in holders[id(node)]
            if issubclass(holder.owner.cls, cls) and holder.field.name == field
        }

    def _check_places(self, nodes: list[Params], candidate: Params) -> None:
        """Refuses a candidate that does not fit where one of the nodes stands."""
        holders, paths = _holders(self.root), self._paths()
        for node in nodes:
            if "_frozen" in vars(node):
                raise ParamError(
                    f"{label(node.cls)}: the parameters of what is built cannot change; copy() them."
                )
            where = f"{paths[id(node)]}: " if paths.get(id(node)) else ""
            free = True
            for holder in holders[id(node)]:
                free &= types.takes_any_class(holder.field.hint)
                try:
                    holder.field.fit(
                        _with(holder.owner.__arguments__[holder.field.name], node, candidate)
                    )
                except ParamError as error:
                    raise ParamError(f"{where}{error}") from None
            if free and not issubclass(candidate.cls, kind(node.cls)):
                raise ParamError(
                    f"{where}{label(candidate.cls)} cannot stand for {label(node.cls)}:"
                    f" it is {types.describe(kind(candidate.cls))}, not {types.describe(kind(node.cls))}."
                )


def _here() -> history.LocationProvider:
    """Returns the location of the caller's line; it is looked for once, not for every field."""
    found = history.History()
    found.add_new_value("", None)
    location = found[""][0].location if found[""] else history.Location("", 0, None)
    return lambda: location


def _holders(root: Params) -> defaultdict[int, list[_Holder]]:
    """Returns by id of a node the fields it stands in."""
    found: defaultdict[int, list[_Holder]] = defaultdict(list)

    def note(value: Any, holder: _Holder) -> None:
        if isinstance(value, Params):
            found[id(value)].append(holder)
        else:
            for _, child in items(value):
                note(child, holder)

    for _, owner in walk(root):
        for name, value in owner.__arguments__.items():
            note(value, _Holder(owner, fields(owner.cls)[name]))
    return found


def _with(value: Any, node: Params, candidate: Params) -> Any:
    """Returns a value of a field with a candidate in the place of a node."""
    if value is node:
        return candidate
    if isinstance(value, (list, tuple)):
        return [_with(v, node, candidate) for v in value]
    if isinstance(value, dict):
        return {k: _with(v, node, candidate) for k, v in value.items()}
    return value


def _moved(node: Params) -> Params:
    """Returns new Params with the state of a node, which is about to become something else."""
    new = object.__new__(Params)
    vars(new).update(vars(node))
    return new


def _become(node: Params, new: Params) -> None:
    """Gives a node the state of another, and its history a line for the class before and after."""
    entries = new.__argument_history__
    entries[CLASS] = list(node.__argument_history__.get(CLASS, []))
    if not entries[CLASS]:
        with history.custom_location(lambda: history.Location("", 0, None)):
            entries.add_new_value(CLASS, node.cls)
    entries.add_new_value(CLASS, new.cls)
    vars(node).clear()
    vars(node).update(vars(new))


def _carry(old: Params, preset: Params | None, new: Params, path: str) -> list[str]:
    """Copies into `new` what was set in `old`; returns what does not apply there, a line each.

    Args:
        old: the Params that go.
        preset: the template that `old` began as, whose own settings are not carried; None for none.
        new: the Params that come.
        path: where they stand.
    """
    dropped: list[str] = []
    for name, value in old.__arguments__.items():
        before = _before(old, preset, name)
        if same(value, before):
            continue
        target, where = new.__arguments__.get(name), f"{path}.{name}" if path else name
        if isinstance(before, Params) and isinstance(target, Params) and value.cls is before.cls:
            dropped += _carry(value, before, target, where)
        else:
            dropped += _carry_value(old, name, new, where)
    return dropped


def _before(node: Params, preset: Params | None, name: str) -> Any:
    """Returns what a field held before anybody set it; REQUIRED if it held nothing."""
    entries = node.__argument_history__.get(name)
    if not entries:
        return fields(node.cls)[name].default
    theirs = preset.__argument_history__.get(name) if preset is not None else None
    return (
        preset.__arguments__[name]
        if preset is not None and theirs and theirs[-1] is entries[-1]
        else REQUIRED
    )


def _carry_value(old: Params, name: str, new: Params, where: str) -> list[str]:
    value = old.__arguments__[name]
    if name not in fields(new.cls):
        return [f"{where} = {value_text(value)}: {label(new.cls)} has no such field"]
    try:
        fitted = fields(new.cls)[name].fit(value)
    except ParamError as error:
        return [f"{where} = {value_text(value)}: {error}"]
    new.__arguments__[name] = fitted
    if entries := old.__argument_history__.get(name):
        new.__argument_history__[name] = list(entries)
    return []
