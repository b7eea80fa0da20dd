"""Reads override paths such as `a.b[0]['k'].c`, which lead from Params to a slot for a value."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

from lingo.config.base import types
from lingo.config.base.errors import ParamError, suggest
from lingo.config.base.synonyms import synonyms
from lingo.config.base.types import Node, is_params
from lingo.config.node.field import field_of, fields, unknown_field
from lingo.config.node.label import value_text
from lingo.config.node.tree import Value, field_path, nodes

_STEP = re.compile(r"""\.?([A-Za-z_]\w*)|\[\s*(?:'([^']*)'|"([^"]*)"|([^\]'"]*?))\s*\]""")


class _Item(NamedTuple):
    """The key of a step `[key]` in a path."""

    text: str  # without brackets and quotes


class Slot(NamedTuple):
    """A place for a value: a field of Params, or an item of a container in a field."""

    owner: Node  # the Params with the field
    field: str  # the name of the field
    keys: list[str | int]  # keys from the field's value to the item; []: the field itself
    path: str  # the path from the root to this slot

    @property
    def hint(self) -> Any:
        """The type that a value in this slot must have."""
        hint = field_of(self.owner.cls, self.field).hint
        for key in self.keys:
            hint = types.item(hint, key)
        return hint

    def get(self) -> Value:
        """Returns the value in this slot, or None if it is missing."""
        value = getattr(self.owner, self.field, None)
        for key in self.keys:
            value = _item_value(value, key)
        return value

    def set(self, value: Any) -> None:
        if self.keys:
            value = _replace_item(getattr(self.owner, self.field), self.keys, value)
        setattr(self.owner, self.field, value)


def follow(
    node: Node, path: str, where: str = "", *, root: Node | None = None, new: bool = True
) -> Slot:
    """Returns the slot at a path from a node; raises ParamError if the path leads nowhere.

    `where` is the node's own path and `root` the experiment, both for messages. With `new`, the
    slot may be an item that a dict does not have yet.
    """
    steps = _steps(path)
    while True:
        field = steps.pop(0)
        if isinstance(field, _Item):
            what = where or node.cls.__name__
            raise ParamError(f"{what} has fields, not items: {field.text!r} leads nowhere")
        if field not in fields(node.cls):
            refuse_unknown_field(node.cls, field, where, root)
        where = field_path(where, field)
        if not steps:
            return Slot(node, field, [], where)
        value, keys = _field_value(node, field, where), list[str | int]()
        while steps and isinstance(item := steps[0], _Item):
            del steps[0]
            keys.append(_key(value, item, where, new=new and not steps))
            where = f"{where}[{keys[-1]!r}]"
            if not steps:
                return Slot(node, field, keys, where)
            value = _item_value(value, keys[-1])
        if not is_params(value):
            _refuse_step(value, steps[0], where)
        node = value


def first_field(path: str) -> str | None:
    """Returns the first field of a path; None if the path begins with an item."""
    step = _steps(path)[0]
    return step if isinstance(step, str) else None


def _steps(path: str) -> list[str | _Item]:
    """Returns the steps of a path `a.b[0]['k'].c`."""
    steps: list[str | _Item] = []
    position = 0
    path = path.strip().removeprefix(".")
    while position < len(path) or not steps:
        match = _STEP.match(path, position)
        if not match or (steps and match[1] and match[0][0] != "."):
            raise ParamError(
                f"{path!r} is not a path, from {path[position:]!r} on: write a.b[0]['key'].c"
            )
        steps.append(match[1] or _Item(next((g for g in match.groups()[1:] if g is not None), "")))
        position = match.end()
    return steps


def _field_value(node: Node, field: str, where: str) -> Value:
    try:
        return getattr(node, field)
    except ParamError:
        raise ParamError(f"{where} is not set: there is nothing below it yet") from None


def _item_value(container: Value, key: str | int) -> Value:
    """Returns an item of a container, or None if it is missing."""
    if isinstance(container, dict):
        return container.get(str(key))
    if isinstance(container, (list, tuple)) and isinstance(key, int):
        return container[key]
    return None


def _key(container: Value, item: _Item, where: str, *, new: bool) -> str | int:
    """Returns the key of an item of a container; an index is made non-negative.

    Raises ParamError if the item does not exist, unless `new` is set and the container is a dict.
    """
    if isinstance(container, dict):
        if item.text not in container and not new:
            keys = ", ".join(map(repr, container)) or "none"
            near = suggest(item.text, container)
            raise ParamError(f"{where} has no item {item.text!r}.{near} Items: {keys}.")
        return item.text
    if not isinstance(container, (list, tuple)):
        raise ParamError(f"{where} is {value_text(container)}: it has no items")
    size = len(container)
    index = int(item.text) if re.fullmatch(r"-?[0-9]{1,9}", item.text) else size
    if not -size <= index < size:
        known = f"they are 0 to {size - 1}" if container else "it is empty"
        raise ParamError(f"{where} has no item {item.text!r}: {known}")
    return index % size


def _replace_item(container: Value, keys: list[str | int], value: Value) -> Value:
    """Returns a copy of a nested container in which `value` replaces the item at `keys`."""
    if not keys:
        return value
    key, *rest = keys
    value = _replace_item(_item_value(container, key), rest, value)
    if isinstance(container, dict):
        return {**container, str(key): value}
    items = enumerate(container) if isinstance(container, (list, tuple)) else ()
    changed = [value if i == key else v for i, v in items]
    return tuple(changed) if isinstance(container, tuple) else changed


def refuse_unknown_field(cls: type[Any], name: str, where: str, root: Node | None) -> NoReturn:
    """Raises ParamError for an unknown field, and suggests classes in `root` with such a field."""
    names = [name, *synonyms(name)]
    found = {(n.cls.__name__, own) for n in nodes(root) for own in names if own in fields(n.cls)}
    owners = sorted(f"{owner}.{own}" for owner, own in found)
    patterns = " or ".join(owners[:3])
    hint = f" To set it wherever it is: {patterns}." if owners else ""
    error = unknown_field(cls, name)
    raise ParamError(f"{where}: {error}{hint}" if where else f"{error}{hint}")


def _refuse_step(value: Value, step: str | _Item, where: str) -> NoReturn:
    """Raises ParamError for a path with a step `.field` after a value that is not Params."""
    if isinstance(value, dict):
        keys = [f"{where}[{key!r}]" for key in value] or [f"{where}['key']"]
        raise ParamError(f"{where} is a dict: write {' or '.join(keys[:5])}")
    if isinstance(value, (list, tuple)):
        raise ParamError(f"{where} is a list of {len(value)}: write {where}[0].{step}")
    first = f" Set it first, as in {where}=Class." if value is None else ""
    raise ParamError(f"{where} is {value_text(value)}: it has no field {step!r}.{first}")
