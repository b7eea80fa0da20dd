"""The override grammar, one for the command line and Python; in order, each seeing the ones before:

    a.b[0]['k'].c=v         sets a field
    Class.field=v           sets it in all Params of a class and its subclasses
    Class=Other(f=v)        swaps the class, keeping what was set and still applies
    Class=Other(f=_, ...)   wraps: `_` is what was there

A value is read by the type of its field (see `parse`).
"""
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from fiddle import history

from lingo.config import parse, types
from lingo.config.classes import Classes, label, own_modules
from lingo.config.params import (
    Configurable,
    ParamError,
    Params,
    Value,
    field_of,
    fields,
    kind,
    suggest,
    unknown_field,
    walk,
)
from lingo.config.selection import Selection
from lingo.config.text import value_text

HOLE = "_"

_STEP = re.compile(r"""\.?([A-Za-z_]\w*)|\[\s*(?:'([^']*)'|"([^"]*)"|([^\]'"]*?))\s*\]""")
_SETTING = threading.RLock()
_HEAD = re.compile(r"((?:[\w./-]+:)?[A-Za-z_]\w*)\s*(.*)", re.DOTALL)


class NoMatch(ParamError):
    """An override that concerns nothing in this experiment."""


class Applied(NamedTuple):
    """What an override did.

    Attributes:
        text: the override.
        matched: how many Params it concerned.
        dropped: what a swap could not keep, a line each.
    """

    text: str
    matched: int
    dropped: list[str]


class _Item(NamedTuple):
    """`[key]` in a path, without quotes."""

    text: str


class Slot(NamedTuple):
    """A place for a value: a field of Params, or an item of the container that the field holds.

    Attributes:
        owner: the Params.
        field: of these.
        keys: from the field's value to the item.
        path: from the root.
    """

    owner: Params
    field: str
    keys: list[str | int]
    path: str

    @property
    def hint(self) -> Any:
        """The type of what belongs here."""
        hint = field_of(self.owner.cls, self.field).hint
        for key in self.keys:
            hint = types.item(hint, key)
        return hint

    def get(self) -> Value:
        """Returns what stands here, None if nothing does."""
        value = getattr(self.owner, self.field, None)
        for key in self.keys:
            value = _inside(value, key)
        return value

    def set(self, value: Any) -> None:
        """Puts a value here."""
        if self.keys:
            value = _with_item(getattr(self.owner, self.field), self.keys, value)
        setattr(self.owner, self.field, value)


def apply(
    params: Params, overrides: Iterable[str], classes: Classes | None = None
) -> list[Applied]:
    """Changes parameters as overrides say.

    Args:
        params: the root, changed in place.
        overrides: texts, applied in order.
        classes: the classes that may be named, those of this installation if None; the modules that
            the experiment's own classes come from are looked at, too.

    Returns:
        What each did.

    Raises:
        NoMatch: for a class that is not in the experiment.
        ParamError: for every other mistake. The overrides before it have been applied.
    """
    classes = classes if classes is not None else Classes()
    setter = _Setter(classes.including(own_modules(n.cls for _, n in walk(params))), params)
    return [_apply(params, text, setter) for text in overrides]


def template(text: str, hint: Any, classes: Classes, where: str) -> Params:
    """Reads `Class` or `Class(field=value, ...)` for a place of some type.

    Raises:
        ParamError: for every mistake in it.
    """
    return _Setter(classes, None).template(text, hint, where)


def slots(params: Params, target: str, classes: Classes | None = None) -> list[Slot]:
    """Returns the places that the left side of an override names, where something stands.

    Args:
        params: the root.
        target: `a.b[0]['k'].c` or `Class.field`.
        classes: as for `apply`.

    Raises:
        NoMatch: for a class that is not in the experiment.
        ParamError: for a path that leads nowhere.
    """
    setter = _Setter(classes if classes is not None else Classes(), params)
    head = _head(params, target)
    if head is None:
        return [setter.slot(params, target, "", new=False)]
    selection = _select(params, head[1], setter.classes)
    if not head[2]:
        raise ParamError(f"{target!r} names a class, no field: write {target}.field.")
    matches = _matches(selection, head[2])
    return [setter.slot(node, head[2], where, new=False) for where, node in matches]


def _head(root: Params, target: str) -> re.Match[str] | None:
    """Takes `Class` and `Class.path` apart; None for a path from the root."""
    head = _HEAD.fullmatch(target)
    if head is None or head[1] in fields(root.cls) or not (":" in head[1] or head[1][0].isupper()):
        return None
    return head


def _matches(selection: Selection, path: str) -> list[tuple[str, Params]]:
    """Returns the Params selected, with their paths, if their class has the path's first field."""
    first = _steps(path)[0]
    if isinstance(first, str) and first not in fields(selection.cls):
        _no_field(selection.cls, first, "", selection.root)
    paths = {id(node): where for where, node in walk(selection.root)}
    return [(paths[id(node)], node) for node in selection]


def _apply(root: Params, text: str, setter: _Setter) -> Applied:
    try:
        target, equals, value = parse.partition(text, "=")
    except parse.Unreadable as error:
        raise ParamError(str(error)) from None
    if not equals or not target:
        raise ParamError(
            f"{text!r} sets nothing:"
            " write path=value, Class.field=value or Class=Other(field=value)."
        )
    if target.startswith("exp.") and "exp" not in fields(root.cls):
        raise ParamError(
            f"{target!r} is an argument of the experiment's function, which is not called here:"
            " set the fields that it would have set."
        )
    head = _head(root, target)
    # Fiddle keeps one location for the process: two threads would take back each other's.
    with _SETTING, history.custom_location(lambda: history.Location(f"--set {text}", 0, None)):
        if head is None:
            setter.assign(root, target, value)
            return Applied(text, 1, [])
        selection = _select(root, head[1], setter.classes)
        if not head[2]:
            return Applied(text, len(selection), setter.replace(selection, value))
        for where, node in _matches(selection, head[2]):
            setter.assign(node, head[2], value, where)
        return Applied(text, len(selection), [])


def _select(root: Params, name: str, classes: Classes) -> Selection:
    """Returns all Params of a class, given as `Class` or `module:Class`."""
    here = {c for _, node in walk(root) for c in node.cls.__mro__ if _is_named(c)}
    module, _, bare = name.rpartition(":")
    found = [
        c
        for c in here
        if c.__name__ == bare and module in ("", c.__module__, label(c).partition(":")[0])
    ]
    if len(found) > 1:
        forms = " or ".join(sorted(f"{c.__module__}:{bare}" for c in found))
        raise ParamError(f"{bare} is the name of {len(found)} classes here: write {forms}.")
    if not found:
        meant = "" if bare in classes.places else suggest(bare, [c.__name__ for c in here])
        there = sorted({node.cls.__name__ for _, node in walk(root)})
        raise NoMatch(
            f"There is no {name} in this experiment.{meant} Its classes: {', '.join(there)}."
        )
    return root.all(found[0])


class _Setter:
    """Sets fields from text.

    Attributes:
        classes: those that may be named.
        root: the experiment, whose classes messages name; None where there is none.
    """

    def __init__(self, classes: Classes, root: Params | None) -> None:
        self.classes, self.root = classes, root

    def assign(self, node: Params, path: str, text: str, where: str = "") -> None:
        """Sets a field of a node, or of what stands below it.

        Args:
            node: the Params.
            path: from there.
            text: the value.
            where: path of the node, for messages.
        """
        slot = self.slot(node, path, where)
        if types.takes_params(slot.hint) and HOLE in _values(text):
            standing = slot.get()
            if not isinstance(standing, Params):
                raise ParamError(
                    f"{slot.path}: nothing stands there that {HOLE!r} could mean."
                    f" It means what was there, in Class=Other(field={HOLE}); wrap one at a time."
                )
            self.replace(Selection([standing], standing.cls, node), text)
            return
        try:
            value = parse.read(
                text, slot.hint, lambda text, hint: self.template(text, hint, slot.path)
            )
        except parse.Unreadable as error:
            raise ParamError(
                f"{slot.path}: {slot.owner.cls.__name__}.{slot.field} {error}"
            ) from None
        try:
            slot.set(value)
        except ParamError as error:
            raise ParamError(f"{slot.path}: {error}") from None

    def template(self, text: str, hint: Any, where: str = "") -> Params:
        """Reads `Class` or `Class(field=value, ...)` for a field of a type."""
        try:
            call = parse.call(text)
            node = Params(self.classes.find(call.name, lambda cls: types.takes(hint, cls)))
        except parse.Unreadable as error:
            raise ParamError(f"{where}: {error}" if where else str(error)) from None
        except ParamError as error:
            raise type(error)(f"{where}: {error}" if where else str(error)) from None
        for path, value in call.arguments.items():
            self.assign(node, path, value, where)
        return node

    def replace(self, selection: Selection, text: str) -> list[str]:
        """Swaps all of them for `Class(...)`, or wraps them in it; returns what was dropped."""
        try:
            call = parse.call(text)
        except parse.Unreadable as error:
            raise ParamError(f"{label(selection.cls)}: {error}") from None
        hole = _hole(call, where=label(selection.cls))
        values = {path: value for path, value in call.arguments.items() if value != HOLE}
        kinds = {kind(node.cls) for node in selection}
        cls = self.classes.find(call.name, lambda cls: any(issubclass(cls, k) for k in kinds))
        for path, value in values.items():  # mistakes show before anything changes
            self.assign(Params(cls), path, value, cls.__name__)
        if hole and not types.takes_params(self.slot(Params(cls), hole, cls.__name__).hint):
            raise ParamError(f"{cls.__name__}.{hole} takes no {label(selection.cls)}.")
        new = selection.wrap(cls, hole) if hole else selection.swap(cls)
        for node in new:
            for path, value in values.items():
                self.assign(node, path, value, cls.__name__)
        return new.dropped

    def slot(self, node: Params, path: str, where: str, *, new: bool = True) -> Slot:
        """Follows a path to the place that it names; a `new` one may be added to a dict."""
        steps = _steps(path)
        while True:
            field = steps.pop(0)
            if isinstance(field, _Item):
                what = where or node.cls.__name__
                raise ParamError(f"{what} has fields, no items: {field.text!r} leads nowhere.")
            if field not in fields(node.cls):
                _no_field(node.cls, field, where, self.root)
            where = f"{where}.{field}" if where else field
            if not steps:
                return Slot(node, field, [], where)
            value, keys = _held(node, field, where), list[str | int]()
            while steps and isinstance(item := steps[0], _Item):
                del steps[0]
                keys.append(_key(value, item, where, new=new and not steps))
                where = f"{where}[{keys[-1]!r}]"
                if not steps:
                    return Slot(node, field, keys, where)
                value = _inside(value, keys[-1])
            if not isinstance(value, Params):
                _no_way(value, steps[0], where)
            node = value


def _is_named(cls: type) -> bool:
    return issubclass(cls, Configurable) and cls is not Configurable


def _values(text: str) -> Iterable[str]:
    """Returns the values of the arguments in `Class(field=value, ...)`; none for another text."""
    try:
        return parse.call(text).arguments.values()
    except parse.Unreadable:
        return [text]


def _hole(call: parse.Call, where: str) -> str:
    """Returns the field that `_` is given for, or ""."""
    holes = [field for field, value in call.arguments.items() if value == HOLE]
    if len(holes) > 1:
        raise ParamError(
            f"{where}: {call.name}(...) has {HOLE!r} {len(holes)} times:"
            " what was there can stand in one place."
        )
    return holes[0] if holes else ""


def _steps(path: str) -> list[str | _Item]:
    """Takes `a.b[0]['k'].c` apart."""
    steps: list[str | _Item] = []
    position = 0
    path = path.strip().removeprefix(".")
    while position < len(path) or not steps:
        match = _STEP.match(path, position)
        if not match or (steps and match[1] and match[0][0] != "."):
            raise ParamError(
                f"{path!r} is no path, from {path[position:]!r} on: write a.b[0]['key'].c"
            )
        steps.append(match[1] or _Item(next((g for g in match.groups()[1:] if g is not None), "")))
        position = match.end()
    return steps


def _held(node: Params, field: str, where: str) -> Value:
    try:
        return getattr(node, field)
    except ParamError:
        raise ParamError(f"{where} is not set: there is nothing below it yet.") from None


def _inside(container: Value, key: str | int) -> Value:
    """Returns an item of a container, None if it is not there."""
    if isinstance(container, dict):
        return container.get(str(key))
    if isinstance(container, (list, tuple)) and isinstance(key, int):
        return container[key]
    return None


def _key(container: Value, item: _Item, where: str, *, new: bool) -> str | int:
    """Returns the key of an item that exists, or, where `new`, may be added to a dict."""
    if isinstance(container, dict):
        if item.text not in container and not new:
            there = ", ".join(map(repr, container)) or "none"
            near = suggest(item.text, container)
            raise ParamError(f"{where} has no item {item.text!r}.{near} Items: {there}.")
        return item.text
    if not isinstance(container, (list, tuple)):
        raise ParamError(f"{where} is {value_text(container)}: it has no items.")
    size = len(container)
    index = int(item.text) if re.fullmatch(r"-?[0-9]{1,9}", item.text) else size
    if not -size <= index < size:
        there = f"they are 0 to {size - 1}" if container else "it is empty"
        raise ParamError(f"{where} has no item {item.text!r}: {there}.")
    return index % size


def _with_item(container: Value, keys: list[str | int], value: Value) -> Value:
    """Returns a container with another value at the end of some keys."""
    if not keys:
        return value
    key, *rest = keys
    value = _with_item(_inside(container, key), rest, value)
    if isinstance(container, dict):
        return {**container, str(key): value}
    items = enumerate(container) if isinstance(container, (list, tuple)) else ()
    changed = [value if i == key else v for i, v in items]
    return tuple(changed) if isinstance(container, tuple) else changed


def _no_field(cls: type[Configurable], name: str, where: str, root: Params | None) -> NoReturn:
    """Refuses an unknown field; names the classes of the experiment that have it."""
    having = sorted({n.cls.__name__ for _, n in walk(root) if name in fields(n.cls)})
    patterns = " or ".join(f"{having_cls}.{name}" for having_cls in having[:3])
    hint = f" To set it wherever it is: {patterns}." if having else ""
    classes = {} if where else {n.cls.__name__.lower(): n.cls.__name__ for _, n in walk(root)}
    if meant := classes.get(name.lower()):
        hint += f" The class is {meant}."
    error = unknown_field(cls, name)
    raise ParamError(f"{where}: {error}{hint}" if where else f"{error}{hint}")


def _no_way(value: Value, step: str | _Item, where: str) -> NoReturn:
    """Refuses a path that goes on where there are no Params."""
    if isinstance(value, dict):
        keys = [f"{where}[{key!r}]" for key in value] or [f"{where}['key']"]
        raise ParamError(f"{where} is a dict: write {' or '.join(keys[:5])}.")
    if isinstance(value, (list, tuple)):
        raise ParamError(f"{where} is a list of {len(value)}: write {where}[0].{step}.")
    first = f" Set it first, as in {where}=Class." if value is None else ""
    raise ParamError(f"{where} is {value_text(value)}: it has no field {step!r}.{first}")
