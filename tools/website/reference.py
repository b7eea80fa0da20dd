"""The reference: a page per room, with an entry for each class and function that it exports.

mkdocstrings writes signatures and methods. An extension of griffe, which reads the source for it,
gives each class with fields the text of `class_text`: summary, one example, all fields.
"""

from __future__ import annotations

import functools
import html
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe

import lingo
from lingo.config import docs
from lingo.config.base import types
from lingo.config.classes import is_configurable
from lingo.config.params import Configurable, fields
from lingo.contract import Experiment
from lingo.learner.multi_task import MultiTask
from lingo.learner.task import Task
from tools.website.examples import example

ROOMS = {
    "layers": "layers",
    "models": "models",
    "optim": "optimizers and schedules",
    "data": "inputs and sources",
    "datasets": "datasets",
    "ops.image": "changes of images",
    "metrics": "metrics",
    "runtimes": "runtimes",
}
"""Room of `lingo` -> what its page is a reference of."""

CONTRACTS = {
    "lingo.learner.task.Task": Task,
    "lingo.learner.multi_task.MultiTask": MultiTask,
    "lingo.Experiment": Experiment,
}
PHASE = "lingo.learner.phase.Phase"  # of a task: a tuple, which has no fields to set

_DESCRIBE = (
    "`from lingo.{room} import NAME` imports a class; `lingo describe NAME` prints its fields and"
    " documentation."
)
_DECLARED = re.compile(r"(takes|method_takes|documents)\(")
_SECTION = re.compile(r"^([A-Z]\w*\b.*):\n((?: {4}.+\n?)+)", re.MULTILINE)
_ITEM = re.compile(r"^([^`:]+): ")


# ---- pages


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yields path and text of each page of the reference."""
    functions = [f"lingo.{n}" for n in lingo.__all__ if inspect.isfunction(getattr(lingo, n))]
    yield "reference/lingo.md", _page("`import lingo`", functions)
    yield "reference/task.md", _page("tasks and experiments", [*CONTRACTS, PHASE])
    for room, title in ROOMS.items():
        exports = {n: v for n, v in exports_of(room).items() if hasattr(v, "__name__")}
        names = [f"lingo.{room}.{name}" for name in exports]
        yield f"reference/{room}.md", _page(title, names, introduction(room))


def exports_of(room: str) -> dict[str, Any]:
    """Returns name -> value of all that a room exports, in the order of its `__all__`."""
    module = importlib.import_module(f"lingo.{room}")
    return {name: getattr(module, name) for name in module.__all__}


def exported_classes(room: str) -> dict[str, type[Configurable]]:
    """Returns name -> class of the classes with fields that a room exports."""
    return {name: value for name, value in exports_of(room).items() if is_configurable(value)}


@functools.cache
def public_names() -> dict[type[Configurable], str]:
    """Returns class -> name from which it is imported, for all classes with fields."""
    names = {cls: name for name, cls in CONTRACTS.items()}
    for room in ROOMS:
        names |= {cls: f"lingo.{room}.{name}" for name, cls in exported_classes(room).items()}
    return names


def introduction(room: str) -> str:
    """Returns a table for each kind of class that a room exports: name and first sentences."""
    kinds: dict[str, list[str]] = {}
    for name, cls in exported_classes(room).items():
        rows = kinds.setdefault(kind(cls).__name__, [])
        rows.append(f"| [`{name}`][lingo.{room}.{name}] | {_cell(summary(cls))} |")
    tables = [f"| {name} | what it is |\n|---|---|\n" + "\n".join(kinds[name]) for name in kinds]
    return "\n\n".join([_DESCRIBE.format(room=room), *tables] if tables else [])


def kind(cls: type[Configurable]) -> type[Configurable]:
    """Returns the class just below `Configurable` from which a class inherits, such as Layer."""
    return [c for c in cls.__mro__ if issubclass(c, Configurable) and c is not Configurable][-1]


def summary(cls: type) -> str:
    """Returns the first paragraph of a class's docstring, in one line."""
    paragraph = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def _page(title: str, names: list[str], text: str = "") -> str:
    return "\n\n".join([f"# Reference of {title}", text, *(f"::: {name}" for name in names)])


# ---- entries


def class_text(cls: type) -> str:
    """Returns the entry of a class: its docstring, one example and a table of its fields."""
    parts = [with_code(with_lists(inspect.cleandoc(cls.__doc__ or "")))]
    if is_configurable(cls):
        if text := example(cls, public_names()):
            parts.append(f"```python\n{text}\n```")
        rows = [field_row(field, _choices(cls, field.name)) for field in docs.describe(cls)]
    else:
        rows = [field_row(field) for field in docs.attributes(cls)]
    if rows:
        header = ["| field | type | default | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([*header, *rows]))
    return "\n\n".join(parts)


def field_row(field: docs.FieldDoc, choices: str = "") -> str:
    """Returns the row of a field: name, type, default, meaning."""
    code = (_cell(html.escape(text)) for text in (field.name, field.type, field.default))
    cells = [*(f"<code>{text}</code>" for text in code), _cell(field.comment + choices)]
    return f"| {' | '.join(cells)} |"


def _choices(cls: type[Configurable], field: str) -> str:
    choices = types.describe(fields(cls)[field].hint)
    return f" ({choices})" if choices.startswith("one of") else ""


def with_lists(doc: str) -> str:
    """Returns a docstring whose sections, such as "Weights:", are lists of Markdown.

    >>> print(with_lists("Weights:\\n    w: [D, F].\\n    b: [F], with\\n        `use_bias`."))
    **Weights**
    <BLANKLINE>
    - `w`: [D, F].
    - `b`: [F], with `use_bias`.
    """

    def section(match: re.Match[str]) -> str:
        items = re.sub(r"\n {5,}", " ", match[2]).splitlines()
        lines = ["- " + _ITEM.sub(r"`\1`: ", item.strip()) for item in items]
        return "\n".join([f"**{match[1]}**", "", *lines])

    return _SECTION.sub(section, doc)


def with_code(doc: str) -> str:
    """Returns a docstring whose examples of `>>>` are blocks of code, and whose `<` is no tag.

    >>> with_code("Adds <x>.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds &lt;x>.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    paragraphs = (
        f"```pycon\n{text}\n```" if text.startswith(">>>") else _without_tags(text)
        for text in doc.split("\n\n")
    )
    return "\n\n".join(paragraphs)


def _without_tags(text: str) -> str:
    """Returns text whose `<` before a word is no tag of HTML, except in `code` and code blocks."""
    return re.sub(r"(`[^`]*`|^ {4}.*)|<(?=\w)", lambda m: m[1] or "&lt;", text, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return _without_tags(text).replace("|", "&#124;")


@functools.cache
def _shown_classes() -> dict[str, type]:
    """Returns the name with the module that defines it -> class, for all of the reference."""
    exports = [value for room in ROOMS for value in exports_of(room).values()]
    classes = [value for value in [*CONTRACTS.values(), *exports] if inspect.isclass(value)]
    return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}


class ReferenceTexts(griffe.Extension):
    """Gives mkdocstrings the text of a class with fields, and of a function with options."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Adds to the docstring of a class of the reference; griffe calls it for all classes."""
        if cls.docstring and cls.path in _shown_classes():
            cls.docstring.value = class_text(_shown_classes()[cls.path])

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Shows a function's examples as code, and its declared options as `help` does."""
        if func.docstring is None:
            return
        decorators = (str(decorator.value).strip("_") for decorator in func.decorators)
        if any(map(_DECLARED.match, decorators)):
            made = griffe.dynamic_import(func.path)
            func.docstring.value = inspect.getdoc(made) or ""
            func.parameters = griffe.Parameters(
                *map(_parameter, inspect.signature(made).parameters.values())
            )
        func.docstring.value = with_code(func.docstring.value)


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind(one.kind.description)
    default = None if one.default is inspect.Parameter.empty else repr(one.default)
    return griffe.Parameter(one.name, annotation=one.annotation, kind=kind, default=default)
