"""Shows Params in a notebook, as a tree of the values that were set."""

from __future__ import annotations

import html

from lingo.config.base.types import Node, is_params
from lingo.config.node.field import fields
from lingo.config.node.label import value_text
from lingo.config.node.tree import Value, items, same

_OPEN_LEVELS = 2  # number of levels of the tree that are unfolded at first


def tree_html(params: Node) -> str:
    """Returns HTML without scripts: a tree in which Params are foldable branches with their values.

    Fields that keep their defaults are only counted.
    """
    return f'<div style="font-family: monospace">{_branch("", params, 0)}</div>'


def _branch(name: str, value: Value, level: int) -> str:
    """Returns the HTML of Params, or of a container with Params in it."""
    if is_params(value):
        defaults = {field.name: field.default for field in fields(value.cls).values()}
        shown = [
            (name, child)
            for name, child in value.__arguments__.items()
            if not same(child, defaults[name])
        ]
        title, num_hidden = value.cls.__name__, len(defaults) - len(shown)
    else:
        shown, num_hidden = [(part, child) for part, child in items(value)], 0
        title = f"{type(value).__name__} of {len(shown)}"
    lines = [_line(name, child, level + 1) for name, child in shown]
    if num_hidden:
        lines.append(f'<div style="color: gray">{num_hidden} by default</div>')
    is_open = " open" if level < _OPEN_LEVELS else ""
    head = f"{html.escape(name)} = " if name else ""
    inside = "".join(lines)
    return (
        f"<details{is_open}><summary>{head}<b>{html.escape(title)}</b></summary>"
        f'<div style="margin-left: 1.5em">{inside}</div></details>'
    )


def _line(name: str, value: Value, level: int) -> str:
    if is_params(value) or any(is_params(child) for _, child in items(value)):
        return _branch(name, value, level)
    return f"<div>{html.escape(name)} = {html.escape(value_text(value))}</div>"
