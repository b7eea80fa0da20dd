"""Resolved text: a sorted line for every parameter of an experiment, with its final value.

    optimizer = AdamW
    optimizer.learning_rate = 0.0003
    optimizer.weight_decay = 0.01  # default
    task.model.ffn.dim = 128  # inherited from TransformerLayer

The tree is built first, to fill in inherited values. Params that no parent builds appear as they
are. A template that is built several times has one line per field, with the values of different
builds joined by " | ". `lingo show`, `lingo diff`, config.txt, goldens and the check when a run
resumes all use this text.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from lingo.config.base.types import SCALARS
from lingo.config.node.build import Build, builds
from lingo.config.node.field import REQUIRED, Field
from lingo.config.node.label import label, value_text
from lingo.config.node.tree import Value, items, nodes
from lingo.config.params import Params, fields

ROOT = "class"
DEFAULT = "default"
JOIN = " | "

_INDEX = re.compile(r"\[(\d+)\]")
_LINE = re.compile(
    r"""(?P<path>(?:[\w.]|\[(?:\d+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\])+)\ =\ (?P<value>.*?)"""
    r"""(?:\ \ \#\ (?P<origin>(?:default|inherited\ from)[\w\ |]*))?""",
    re.VERBOSE,
)


class Line(NamedTuple):
    """A line of the resolved text: one parameter."""

    path: str  # the parameter's path; "class" for the class of the root
    value: str  # the value as Python prints it; the class for Params
    origin: str = ""  # "default", "inherited from X", or "" if the value was set
    operational: bool = False  # whether the parameter may change when a run resumes

    def __str__(self) -> str:
        return f"{self.path} = {self.value}" + (f"  # {self.origin}" if self.origin else "")


class Change(NamedTuple):
    """A parameter that differs between two texts; a value is None if that text lacks it."""

    path: str
    old_value: str | None
    new_value: str | None
    operational: bool = False

    def __str__(self) -> str:
        old, new = ("(absent)" if v is None else v for v in (self.old_value, self.new_value))
        return f"{self.path}: {old} -> {new}"


def resolve(params: Params) -> list[Line]:
    """Returns the resolved text, line by line, sorted by path."""
    records = builds(params)
    return _Writer(records).write(records[0].params)


def flatten(params: Params) -> list[Line]:
    """Returns the lines of Params without building them, so without inherited values."""
    return _Writer(()).write(params)


def render(lines: Iterable[Line]) -> str:
    """Returns lines as text, each with a newline at its end."""
    return "".join(f"{line}\n" for line in lines)


def read(text: str) -> list[Line]:
    """Returns the lines of a text from `render`; `operational` is False, as the text lacks it."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return [Line(m["path"], m["value"], m["origin"] or "") for m in found if m]


def digest(lines: Iterable[Line]) -> str:
    """Returns the SHA-256 of the lines' paths and values; a value's origin has no effect."""
    text = "".join(f"{line.path} = {line.value}\n" for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()


def diff(old: Iterable[Line], new: Iterable[Line]) -> list[Change]:
    """Returns the parameters whose values differ, sorted by path."""
    olds, news = {line.path: line for line in old}, {line.path: line for line in new}
    changes: list[Change] = []
    for path in {**olds, **news}:
        a, b = olds.get(path), news.get(path)
        if a is None or b is None or a.value != b.value:
            operational = _is_operational(path, olds) or _is_operational(path, news)
            changes.append(Change(path, a and a.value, b and b.value, operational))
    return sorted(changes, key=lambda change: _key(change.path))


class _Writer:
    """Collects the lines of a tree, sorted by path; indices are sorted as numbers."""

    def __init__(self, records: Iterable[Build]) -> None:
        self.lines: list[Line] = []
        self._label = functools.cache(label)  # cached, since `label` looks for files
        self._fields: dict[type, list[tuple[str, Field]]] = {}
        self._built: defaultdict[str, list[Build]] = defaultdict(list)
        for record in records:
            self._built[record.path].append(record)

    def write(self, root: Params) -> list[Line]:
        """Returns the lines of a tree of Params, with the class of the root."""
        self._node("", root, untouched=False, operational=False)
        place = next((i for i, line in enumerate(self.lines) if line.path > ROOT), len(self.lines))
        self.lines.insert(place, Line(ROOT, label(root.cls)))
        return self.lines

    def _node(self, path: str, raw: Params, *, untouched: bool, operational: bool) -> None:
        """Writes the lines of `raw`, Params before inheritance; inherited values are looked up.

        `untouched` says that the Params are in an unchanged default template, and `operational`
        that they are in an operational field.
        """
        cls, arguments, given = raw.cls, raw.__arguments__, raw.__argument_history__
        built = self._built.get(path, ())
        inherited = {name for build in built for name in build.inherited_from}
        prefix = f"{path}." if path else ""
        if cls not in self._fields:
            self._fields[cls] = sorted(fields(cls).items())
        for name, field in self._fields[cls]:
            value = arguments.get(name, field.default)
            if value is REQUIRED and name not in inherited:
                continue
            scalar = type(value) in SCALARS
            default = untouched or not (given.get(name) or (not scalar and raw.is_given(name)))
            where, operated = prefix + name, operational or field.operational
            if name in inherited:
                self._write_inherited(where, field, built, DEFAULT if default else "", operated)
            elif scalar:
                self.lines.append(Line(where, repr(value), DEFAULT if default else "", operated))
            else:
                self._deep(where, value, untouched=default, operational=operated)

    def _deep(self, where: str, value: Value, *, untouched: bool, operational: bool) -> None:
        """Writes the lines of Params or a container; a container without Params has one line."""
        origin = DEFAULT if untouched else ""
        if type(value) is Params:
            self.lines.append(Line(where, self._label(value.cls), origin, operational))
            self._node(where, value, untouched=untouched, operational=operational)
        elif type(value) not in SCALARS and nodes(value):
            for part, child in sorted(items(value)) if isinstance(value, dict) else items(value):
                self._deep(where + part, child, untouched=untouched, operational=operational)
        else:
            self.lines.append(Line(where, value_text(value), origin, operational))

    def _write_inherited(
        self, where: str, field: Field, built: Iterable[Build], otherwise: str, operational: bool
    ) -> None:
        """Writes the line of a field that inherited its value in at least one build.

        `otherwise` is the origin in the builds in which the field did not inherit its value.
        """
        values: dict[str, None] = {}
        origins: dict[str, None] = {}
        for build in built:
            values[value_text(build.params.__arguments__.get(field.name, field.default))] = None
            parent = build.inherited_from.get(field.name)
            origins[f"inherited from {parent}" if parent else otherwise] = None
        self.lines.append(
            Line(where, JOIN.join(values), JOIN.join(filter(None, origins)), operational)
        )


def _is_operational(path: str, lines: dict[str, Line]) -> bool:
    """Returns whether a path, or the nearest path above it in `lines`, is operational."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return bool(path) and lines[path].operational


def _key(path: str) -> str:
    """Returns the sort key of a path, in which indices sort as numbers."""
    return _INDEX.sub(lambda m: f"[{int(m[1]):09d}]", path)
