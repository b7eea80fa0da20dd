"""Traces where a parameter's value comes from: a default, a parent, a line of code, or `--set`."""

from __future__ import annotations

from typing import NamedTuple, cast

from lingo.config import docs
from lingo.config.node.build import builds
from lingo.config.node.fiddle_api import HistoryEntry, Location
from lingo.config.node.field import REQUIRED, field_of
from lingo.config.node.label import label, value_text
from lingo.config.node.selection import CLASS
from lingo.config.node.tree import Value
from lingo.config.overrides import Slot, find_slots
from lingo.config.params import Params
from lingo.config.printable import relative_path
from lingo.config.text import JOIN


class Step(NamedTuple):
    """A value that a field had, and the origin of this value."""

    value: str
    origin: str


class Chain(NamedTuple):
    """The values that a field had in order; the last value is the one in use."""

    path: str
    steps: list[Step]

    def __str__(self) -> str:
        width = max((len(step.value) for step in self.steps), default=0)
        return "\n".join([self.path, *(f"  {s.value:{width}}  {s.origin}" for s in self.steps)])


def why(params: Params, target: str) -> list[Chain]:
    """Returns the history of the values at a path, or of `Class.field` for all Params of a class.

    Raises ParamError if there is no such field, or if the field is not set and the tree cannot be
    built to find the inherited value.
    """
    return [Chain(slot.path, _steps(params, slot)) for slot in find_slots(params, target)]


def _steps(root: Params, slot: Slot) -> list[Step]:
    entries = _entries(slot)
    return [
        *_default(slot),
        *([] if entries else _inherited_values(root, slot)),
        *(Step(value, _place(entry.location)) for value, entry in entries),
    ]


def _default(slot: Slot) -> list[Step]:
    field = field_of(slot.owner.cls, slot.field)
    if field.default is REQUIRED:
        return []
    declared = docs.declaration(field)
    where = f", {relative_path(declared.file)}:{declared.line}" if declared.file else ""
    return [Step(value_text(field.default), f"default of {label(field.owner)}{where}")]


def _inherited_values(root: Params, slot: Slot) -> list[Step]:
    where = slot.path.removesuffix(slot.field).removesuffix(".")
    found = {
        (value_text(getattr(build.params, slot.field)), build.inherited_from[slot.field])
        for build in builds(root)
        if build.path == where and slot.field in build.inherited_from
    }
    if not found:
        return []
    values, parents = (dict.fromkeys(column) for column in zip(*sorted(found), strict=True))
    return [Step(JOIN.join(values), f"inherited from {JOIN.join(parents)}")]


def _entries(slot: Slot) -> list[tuple[str, HistoryEntry]]:
    """Returns (value text, entry) for each change of a field, in order.

    If the field holds Params, changes of their class are included.
    """
    held = slot.get()
    changes = held.__argument_history__.get(CLASS, []) if isinstance(held, Params) else []
    entries = slot.owner.__argument_history__.get(slot.field, [])
    found = [(_value(entry, held, changes), entry) for entry in entries]
    found += [(_class(entry), entry) for entry in changes if entry.location.filename]
    return sorted(found, key=lambda pair: pair[1].sequence_id)


def _value(entry: HistoryEntry, held: Value, changes: list[HistoryEntry]) -> str:
    """Returns the text of the value that was set; for Params, their class at that time."""
    if entry.new_value is not held or not changes:
        return value_text(cast("Value", entry.new_value))
    before = [change for change in changes if change.sequence_id < entry.sequence_id]
    return _class((before or changes[:1])[-1])


def _class(entry: HistoryEntry) -> str:
    return label(cast("type", entry.new_value))


def _place(location: Location) -> str:
    if not location.line_number:
        return location.filename
    inside = (
        f" in {location.function_name}" if location.function_name not in (None, "<module>") else ""
    )
    return f"{relative_path(location.filename)}:{location.line_number}{inside}"
