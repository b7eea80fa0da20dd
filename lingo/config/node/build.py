"""Builds objects from Params: parents first, so that their children can inherit unset values."""

from __future__ import annotations

import contextvars
import re
from typing import Any, NamedTuple

from lingo.config.base import types
from lingo.config.base.errors import ParamError, note_line, note_place, suggest
from lingo.config.base.types import Node
from lingo.config.node.copying import copy_tree, freeze, shallow_copy
from lingo.config.node.field import REQUIRED
from lingo.config.node.tree import field_path, same, walk
from lingo.config.roots.user_line import is_user_file

MAX_PARTS = 50_000

_NAME = re.compile(r"[A-Za-z_]\w*")


class Build(NamedTuple):
    """A record of one built object."""

    path: str  # the path of its Params from the root
    params: Any  # its Params, with inherited values filled in
    inherited_from: dict[str, str]  # field -> class name of the parent whose value filled it


class _Inherited(NamedTuple):
    """A value that a parent passes down."""

    value: Any
    by: str  # the parent's class name


class _Frame(NamedTuple):
    """The state of one object under construction."""

    instance: Any
    values: dict[str, _Inherited]  # all values that the object inherits, also without a field
    inherited_from: dict[str, str]  # field -> class name of the parent, as in `Build`
    records: list[Build]  # the records of all objects built so far


_frame: contextvars.ContextVar[_Frame | None] = contextvars.ContextVar("frame", default=None)


def build(params: Node, inherited: dict[str, Any]) -> Any:
    """Builds an object from Params, as described in `Params.build`."""
    parent = _frame.get()
    if parent is None:
        return _build_root(params, inherited, [])
    if "_path" not in vars(params):
        raise ParamError(
            f"{type(parent.instance).__name__} builds {params.cls.__name__} parameters that are in"
            " none of its fields, so no override could change them: declare a field for them"
        )
    return _build_node(params, inherited, parent, parent.records)


def builds(params: Node) -> list[Build]:
    """Builds a tree of Params, and returns a record for each built object, the root first."""
    records: list[Build] = []
    _build_root(params, {}, records)
    return records


def inherited_values() -> dict[str, Any]:
    """Returns all values that the object under construction inherits, even without such a field.

    A stack passes them on to its layers: `self.p.layer.build(**inherited_values())`.
    """
    frame = _frame.get()
    return {name: inherited.value for name, inherited in frame.values.items()} if frame else {}


def _build_root(params: Node, inherited: dict[str, Any], records: list[Build]) -> Any:
    """Builds a frozen copy of a tree, in which no Params are shared, so that each has one path."""
    root = freeze(copy_tree(params, None), "")
    try:
        return _build_node(root, inherited, None, records)
    except ParamError as error:
        note_line(error, set_line(root, error.path or "", str(error)))
        raise


def set_line(root: Node, path: str, message: str) -> str:
    """Returns `file:line` where a user's file set the Params at a path, or "".

    It is the line that set the last of their fields, or of the fields that the error's message
    names. If no field was set, it is the line that set the field that holds these Params.
    """
    around = [(where, node) for where, node in walk(root) if path.startswith(where)]
    for where, node in sorted(around, key=lambda pair: len(pair[0]), reverse=True):
        history, inner = node.__argument_history__, _NAME.findall(path[len(where) :])
        names = inner[:1] or [name for name in history if name in _NAME.findall(message)]
        entries = [history[name][-1] for name in names or history if history.get(name)]
        if entries:
            location = max(entries, key=lambda entry: entry.sequence_id).location
            file = location.filename or ""
            return f"{file}:{location.line_number}" if is_user_file(file) else ""
    return ""


def _build_node(
    template: Node, inherited: dict[str, Any], parent: _Frame | None, records: list[Build]
) -> Any:
    values = _collect_values(template, inherited, parent)
    if parent is not None and template.cls._fits_parent and parent.instance._fits_parent:
        _check_values(template, values)
    node, inherited_from = _fill_fields(template, values)
    path, cls = vars(template)["_path"], template.cls
    _check_complete(node, path, parent, values)
    if len(records) == MAX_PARTS:
        raise ParamError(
            f"{path}: the experiment has more than {MAX_PARTS:,} parts. Use fewer layers, or"
            " Repeat instead of Stack: it builds a layer once, however often it is used.",
            path,
        )
    instance = object.__new__(cls)
    vars(instance)["p"] = node
    records.append(Build(path, node, inherited_from))
    token = _frame.set(_Frame(instance, values, inherited_from, records))
    try:
        instance.check()
        instance.setup()
        instance._finish(parent.instance if parent else None)
    except ParamError as error:
        if error.path is None:
            raise ParamError(f"{path or cls.__name__}: {error}", path) from None
        raise
    except Exception as error:
        note_place(error, path)
        raise
    finally:
        _frame.reset(token)
    return instance


def _collect_values(
    template: Node, inherited: dict[str, Any], parent: _Frame | None
) -> dict[str, _Inherited]:
    """Returns all values that a node inherits.

    They are the parent's dtype, then the values that a wrapper inherits if the node is what it
    wraps, then the values that the parent passes to `build`; later values replace earlier ones.
    """
    by = type(parent.instance).__name__ if parent else "the caller"
    values: dict[str, _Inherited] = {}
    if parent is not None:
        above: Node = parent.instance.p
        if "dtype" in above.cls._fields and (
            above.is_given("dtype") or "dtype" in parent.inherited_from
        ):
            values["dtype"] = _Inherited(parent.instance.p.dtype, by)
        wrapped = parent.instance._wrapped
        if wrapped and vars(template)["_path"] == field_path(vars(above)["_path"], wrapped):
            values |= parent.values
    return values | {name: _Inherited(value, by) for name, value in inherited.items()}


def _check_values(template: Node, values: dict[str, _Inherited]) -> None:
    """Raises ParamError if a required field was set, but differs from the value it inherits."""
    for name, (inherited, by) in values.items():
        field = template.cls._fields.get(name)
        if field is None or field.default is not REQUIRED or not template.is_given(name):
            continue
        if not same(value := template.__arguments__[name], inherited):
            path = vars(template)["_path"]
            raise ParamError(
                f"{field_path(path, name)}={value!r:.80}, but {by}, which builds it, has"
                f" {name}={inherited!r:.80}: leave it out, or set it there",
                path,
            )


def _check_complete(
    node: Node, path: str, parent: _Frame | None, values: dict[str, _Inherited]
) -> None:
    """Raises ParamError for required fields that were neither set nor inherited.

    Inherited `values` without a field are ignored elsewhere, since they may be for another class.
    If the name of one is similar to a missing field's, the message says so.
    """
    cls, arguments = node.cls, node.__arguments__
    missing = [
        field.name
        for field in cls._fields.values()
        if field.default is REQUIRED and field.name not in arguments
    ]
    if not missing:
        return
    by = (
        f"{type(parent.instance).__name__}, which builds it, does not pass it down"
        if parent
        else "no parent passes it down"
    )
    near = {name: suggest(name, missing) for name in values if name not in cls._fields}
    unused = (
        f". {values[name].by} passes down {name!r}.{meant}" for name, meant in near.items() if meant
    )
    what = f"{path or cls.__name__}: {cls.__name__} needs {' and '.join(missing)}"
    advice = "".join(unused) or _advice(cls, missing, path, parent)
    raise ParamError(f"{what}: it is not set, and {by}{advice}", path)


def _advice(cls: type[Any], missing: list[str], path: str, parent: _Frame | None) -> str:
    """Returns the end of the error for missing fields: advice for a likely mistake, or "".

    It shows how to wrap if a wrapper lacks what it wraps. It says what the parent's field takes if
    `cls` does not fit it.
    """
    if cls._wrapped in missing:
        return f". {cls.__name__}({cls._wrapped}=_) wraps what was there"
    if parent is None:
        return ""
    above: Node = parent.instance.p
    owner, start = above.cls, len(vars(above)["_path"])
    name = _NAME.findall(path[start:])[0]
    hint = owner._fields[name].hint
    is_other = types.is_configurable(hint) and not issubclass(cls, hint)
    return f". {owner.__name__}.{name} takes {types.describe(hint)}" if is_other else ""


def _fill_fields(template: Node, values: dict[str, _Inherited]) -> tuple[Node, dict[str, str]]:
    """Returns a node with inherited values in unset fields, and field -> parent's class name."""
    fields = template.cls._fields
    inherited_from = {
        name: inherited.by
        for name, inherited in values.items()
        if name in fields and not template.is_given(name)
    }
    if not inherited_from:
        return template, inherited_from
    arguments = dict(template.__arguments__)
    for name, by in inherited_from.items():
        try:
            arguments[name] = fields[name].fit(values[name].value)
        except ParamError as error:
            path = vars(template)["_path"]
            raise ParamError(
                f"{path or template.cls.__name__}: {by} passes down a wrong value: {error}", path
            ) from None
    return shallow_copy(template, __arguments__=arguments), inherited_from
