"""Golden texts: what each experiment sets, and once for all of them what its classes default to.

A field that an experiment neither sets nor inherits is not in its golden, so a new field of a
shared class changes one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lingo.config import text
from lingo.config.label import label, value_text
from lingo.config.node.field import REQUIRED
from lingo.config.node.tree import field_path, nodes, same, walk
from lingo.config.params import Params, fields
from lingo.contract import Experiment
from lingo.inspection import weight_table


def experiment_text(params: Params, experiment: Experiment) -> str:
    """Returns the resolved text without defaults, and the weights with one row for equal layers."""
    lines = (line for line in text.resolve(params) if line.origin != text.DEFAULT)
    table = weight_table.text(weight_table.compact(experiment.task))
    return f"{text.render(lines)}\n{table}"


def defaults_text(experiments: Iterable[Params]) -> str:
    """Returns the defaults of all classes that some experiments use, a sorted line each."""
    waiting = [node.cls for params in experiments for node in nodes(params)]
    found: dict[type, None] = {}
    while waiting:
        if (cls := waiting.pop()) not in found:
            found[cls] = None
            waiting += [node.cls for node in nodes(cls.params())]
    lines = (line for cls in found for line in _default_lines(cls))
    return "".join(f"{line}\n" for line in sorted(lines))


def _default_lines(cls: type) -> Iterator[str]:
    """Yields the fields of a class with their defaults, and what these set in other classes."""
    for name, field in fields(cls).items():
        if field.default is REQUIRED:
            continue
        where = f"{label(cls)}.{name}"
        yield f"{where} = {value_text(field.default)}"
        for path, node in walk(field.default, where):
            known = fields(node.cls)
            for inner, value in node.__arguments__.items():
                if not same(value, known[inner].default):
                    yield f"{field_path(path, inner)} = {value_text(value)}"
