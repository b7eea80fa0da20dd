"""Applies overrides, texts that change an experiment's Params from the command line or Python:

    a.b[0]['k'].c=v         sets a field
    Class.field=v           sets a field in all Params of a class and its subclasses
    Class=Other(f=v)        swaps the class, keeping set values that still apply
    Class=Other(f=_, ...)   wraps Params in other Params, in the field whose value is `_`

A class may be `path/to/file.py:Class`, in any file. Overrides are applied in order, so each sees
the effect of the earlier ones. The type of a field decides how its value's text is read (see
`override_reader`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from lingo.config import override_reader
from lingo.config.base import types
from lingo.config.base.errors import UnknownClass, Unreadable
from lingo.config.classes import Classes, is_named, own_modules
from lingo.config.node.fiddle_api import Location, record_location
from lingo.config.node.label import label, value_text
from lingo.config.node.selection import Selection
from lingo.config.node.tree import Value, functions, nodes, same, walk
from lingo.config.override_path import Slot, first_field, follow, refuse_unknown_field
from lingo.config.params import Configurable, ParamError, Params, fields, interface, suggest

HOLE = "_"

_HEAD = re.compile(r"((?:[\w./-]+:)?[A-Za-z_]\w*)\s*(.*)", re.DOTALL)


class NoMatch(ParamError):
    """An override matches nothing in this experiment."""


class OverrideResult(NamedTuple):
    """What an override has changed."""

    text: str  # the override
    num_matches: int  # how many Params the override matched
    dropped_values: list[str]  # a line for each set value that was lost when a class was swapped
    left_out: str = ""  # which set values a new object in the old one's place does not have; ""


def apply(
    params: Params, overrides: Iterable[str], classes: Classes | None = None
) -> list[OverrideResult]:
    """Applies overrides in order to an experiment's Params, in place; returns a result for each.

    An override may name a class in `classes`, or in a module of one of the experiment's classes.
    Raises NoMatch for a class that is not in the experiment, and ParamError for any other mistake.
    After an error, the earlier overrides stay applied.
    """
    classes = classes or Classes()
    named = [n.cls for n in nodes(params)] + functions(params)
    setter = _Setter(classes.with_modules(own_modules(named)), params)
    return [_apply(params, text, setter) for text in overrides]


def parse_template(text: str, hint: Any, classes: Classes, where: str) -> Any:
    """Returns the Params that `Class` or `Class(field=value, ...)` means in a field of type `hint`.

    If the field takes a function, returns the function with the name `text`. `where` is the
    field's path, for messages.
    """
    return _Setter(classes, None).template(text, hint, where)


def find_slots(params: Params, target: str, classes: Classes | None = None) -> list[Slot]:
    """Returns the existing slots that the left side of an override names.

    Raises ParamError for a mistake, as `apply` does.
    """
    head = _head(params, target)
    if head is None:
        return [follow(params, target, root=params, new=False)]
    selection = _select(params, head[1], classes or Classes())
    if not head[2]:
        raise ParamError(f"{target!r} names a class, not a field: write {target}.field")
    matches = _matches(selection, head[2])
    return [follow(node, head[2], where, root=params, new=False) for where, node in matches]


def _head(root: Params, target: str) -> re.Match[str] | None:
    """Returns a match with the groups `Class` and `.path`; None if the target is a root's path."""
    head = _HEAD.fullmatch(target)
    if head is None or head[1] in fields(root.cls) or not (":" in head[1] or head[1][0].isupper()):
        return None
    return head


def _matches(selection: Selection, path: str) -> list[tuple[str, Params]]:
    """Returns (path, Params) for each selected node.

    Raises ParamError if the selection's class lacks the first field of `path`.
    """
    first = first_field(path)
    if first is not None and first not in fields(selection.cls):
        refuse_unknown_field(selection.cls, first, "", selection.root)
    paths = {id(node): where for where, node in walk(selection.root)}
    return [(paths[id(node)], node) for node in selection]


def _apply(root: Params, text: str, setter: _Setter) -> OverrideResult:
    try:
        target, equals, value = override_reader.partition(text, "=")
    except Unreadable as error:
        raise ParamError(str(error)) from None
    if not equals or not target:
        raise ParamError(
            f"{text!r} sets nothing:"
            " write path=value, Class.field=value or Class=Other(field=value)"
        )
    if target.startswith("exp.") and "exp" not in fields(root.cls):
        raise ParamError(
            f"{target!r} is an argument of the experiment's function, which is not called here:"
            " set the fields that it would have set"
        )
    head = _head(root, target)
    with record_location(Location(f"--set {text}", 0, None)):
        if head is None:
            return OverrideResult(text, 1, [], setter.assign(root, target, value))
        selection = _select(root, head[1], setter.classes, f"{head[2][1:]}={value}")
        if not head[2]:
            return OverrideResult(text, len(selection), setter.replace(selection, value))
        for where, node in _matches(selection, head[2]):
            setter.assign(node, head[2], value, where)
        return OverrideResult(text, len(selection), [])


def _select(root: Params, name: str, classes: Classes, argument: str = "") -> Selection:
    """Returns all Params of a class, whose name is `Class` or `module:Class`.

    Raises NoMatch if the experiment has no such Params. The message suggests an override that adds
    some, with `argument`, such as `num_experts=8`, in it.
    """
    mro = {cls for node in nodes(root) for cls in node.cls.__mro__}
    known = {c for c in mro if issubclass(c, Configurable) and c is not Configurable}
    module, _, bare = name.rpartition(":")
    found = [c for c in known if c.__name__ == bare and is_named(c, module)]
    if len(found) > 1:
        forms = " or ".join(sorted(f"{c.__module__}:{bare}" for c in found))
        raise ParamError(f"{bare} is the name of {len(found)} classes here: write {forms}")
    if not found:
        names = sorted({node.cls.__name__ for node in nodes(root)})
        if bare in classes.places:
            meant = _swap_hint(root, bare, argument, classes)
        else:
            meant = suggest(bare, [c.__name__ for c in known]) or suggest(bare, classes.names())
        raise NoMatch(
            f"There is no {name} in this experiment.{meant} Its classes: {', '.join(names)}."
        )
    return root.all(found[0])


class _Setter:
    """Applies the right sides of overrides: sets fields, swaps and wraps Params."""

    def __init__(self, classes: Classes, root: Params | None) -> None:
        self.classes = classes  # the classes that texts may name
        self.root = root  # the experiment; messages suggest its classes

    def assign(self, node: Params, path: str, text: str, where: str = "") -> str:
        """Sets the field at `path` from a node to the value of a text; the node is at `where`.

        Returns a text on the set values of Params there that the new Params do not have, or "".
        """
        slot = follow(node, path, where, root=self.root)
        if types.takes_params(slot.hint) and HOLE in _values(text):
            old = slot.get()
            if not isinstance(old, Params):
                raise ParamError(
                    f"{slot.path}: there is nothing that {HOLE!r} could mean: it is the old value,"
                    f" in Class=Other(field={HOLE}). Give one override per wrapper."
                )
            self.replace(Selection([old], old.cls, node), text)
            return ""
        old = slot.get()
        try:
            value = override_reader.read(
                text, slot.hint, lambda text, hint: self.template(text, hint, slot.path)
            )
        except Unreadable as error:
            raise ParamError(
                f"{slot.path}: {slot.owner.cls.__name__}.{slot.field} {error}"
            ) from None
        try:
            slot.set(value)
        except ParamError as error:
            raise ParamError(f"{slot.path}: {error}") from None
        return _left_out(slot.path, old, slot.get())

    def template(self, text: str, hint: Any, where: str = "") -> Any:
        try:
            if hint is types.Function_:
                return self.classes.find_function(text)
            name, arguments = override_reader.parse_call(text)
            if name in ("True", "true"):
                wanted = types.describe(hint)
                raise Unreadable(f"{name} is no object: give a class. It takes {wanted}.")
            node = Params(self.classes.find(name, lambda cls: types.takes(hint, cls)))
        except Unreadable as error:
            raise ParamError(f"{where}: {error}" if where else str(error)) from None
        except ParamError as error:
            takes = f" It takes {types.describe(hint)}." if isinstance(error, UnknownClass) else ""
            raise type(error)(f"{where}: {error}{takes}" if where else str(error)) from None
        for path, value in arguments.items():
            self.assign(node, path, value, where)
        return node

    def replace(self, selection: Selection, text: str) -> list[str]:
        """Swaps all selected nodes for `Class(...)`, or wraps them if the text has `_`.

        Returns a line for each dropped value.
        """
        try:
            name, arguments = override_reader.parse_call(text)
        except Unreadable as error:
            raise ParamError(f"{label(selection.cls)}: {error}") from None
        hole = _hole(name, arguments, where=label(selection.cls))
        values = {path: value for path, value in arguments.items() if value != HOLE}
        kinds = {interface(node.cls) for node in selection}
        cls = self.classes.find(name, lambda cls: any(issubclass(cls, k) for k in kinds))
        for path, value in values.items():  # a mistake raises here, before anything changes
            self.assign(Params(cls), path, value, cls.__name__)
        if hole and not types.takes_params(
            follow(Params(cls), hole, cls.__name__, root=self.root).hint
        ):
            raise ParamError(f"{cls.__name__}.{hole} does not take {label(selection.cls)}")
        before = {id(n): where for where, n in walk(selection.root) if issubclass(n.cls, cls)}
        if not hole:
            selection.change_class(cls)
        new = selection.wrap(cls, hole) if hole else selection
        dropped = new.dropped_values
        for node in new:
            for path, value in values.items():
                if hole and id(node) in before:
                    dropped += self._reassign(node, path, value, before[id(node)])
                else:
                    self.assign(node, path, value, cls.__name__)
        return dropped

    def _reassign(self, node: Params, path: str, text: str, where: str) -> list[str]:
        """Sets a field of a wrapper that existed already; returns a line if that changes its value.

        For example, `FeedForward=MoE(expert=_, num_experts=8)` also changes the number of experts
        of each MoE that was there before.
        """
        slot = follow(node, path, where, root=self.root)
        had_value, old = slot.owner.is_given(slot.field), slot.get()
        self.assign(node, path, text, where)
        new = slot.get()
        if not had_value or same(old, new):
            return []
        return [
            f"{slot.path} = {value_text(old)}: this {node.cls.__name__} was there before,"
            f" it has {value_text(new)} now"
        ]


def _left_out(where: str, old: Value, new: Value) -> str:
    """Describes the values that were set in old Params, and that the new ones lack; else ""."""
    if not (isinstance(old, Params) and isinstance(new, Params)):
        return ""
    lines = [
        f"{where}.{name} = {value_text(getattr(old, name))}"
        for name in fields(old.cls)
        if name in fields(new.cls)
        and old.is_given(name)
        and not new.is_given(name)
        and not same(getattr(old, name), getattr(new, name, None))
    ]
    names = (old.cls.__name__, new.cls.__name__)
    return f"{'; '.join(lines)}. {'='.join(names)}(...) keeps them" if lines else ""


def _values(text: str) -> Iterable[str]:
    """Returns the texts of the values in `Class(field=value, ...)`, or [text] for other text."""
    try:
        return override_reader.parse_call(text)[1].values()
    except Unreadable:
        return [text]


def _hole(name: str, arguments: dict[str, str], where: str) -> str:
    """Returns the field whose value is `_`, the one that gets the wrapped Params; "" if none."""
    holes = [field for field, value in arguments.items() if value == HOLE]
    if len(holes) > 1:
        raise ParamError(
            f"{where}: {name}(...) has {HOLE!r} {len(holes)} times:"
            " the old value can be in one place only"
        )
    return holes[0] if holes else ""


def _swap_hint(root: Params, name: str, argument: str, classes: Classes) -> str:
    """Returns " To have one: --set='FeedForward=MoE(expert=_, num_experts=8)'.", or "".

    Only lingo's classes are suggested, since others would have to be imported. `argument` is what
    the failed override sets, such as `num_experts=8`.
    """
    modules = [place.module for place in classes.places[name] if place.module.startswith("lingo.")]
    if len(modules) != 1:
        return ""
    cls = classes.find(f"{modules[0]}:{name}")
    present = {node.cls.__name__: node.cls for node in nodes(root)}
    found = [*_find_wrapped(cls, present), *_find_replaced(cls, present)]
    if not found:
        return ""
    old, hole = found[0]
    arguments = ", ".join(text for text in (hole, argument) if text)
    return f" To have one: --set='{old}={name}({arguments})'."


def _find_wrapped(cls: type[Configurable], present: dict[str, type]) -> list[tuple[str, str]]:
    """Returns (class name, `field=_`) for each present class that is a field's default in `cls`."""
    defaults = {f.name: f.default.cls for f in fields(cls).values() if types.is_params(f.default)}
    return [
        (old.__name__, f"{field}=_")
        for field, old in defaults.items()
        if old.__name__ in present and interface(old) is interface(cls)
    ]


def _find_replaced(cls: type[Configurable], present: dict[str, type]) -> list[tuple[str, str]]:
    """Returns [(class name, "")] of the present class that is most like `cls`; [] if unclear.

    It is the only one that shares a base class with `cls`, or if none does, the only one that
    shares its interface.
    """
    kin = {name: old for name, old in present.items() if interface(old) is interface(cls)}
    bases = {base for base in cls.__mro__ if base not in interface(cls).__mro__}
    near = [name for name, old in kin.items() if bases.intersection(old.__mro__)]
    return [(name, "") for name in near or kin if len(near or kin) == 1]
