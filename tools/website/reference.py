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
from lingo.config.params import Configurable, fields
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
    contracts = ["lingo.learner.task.Task", "lingo.contract.Experiment"]
    yield "reference/task.md", _page("tasks and experiments", contracts)
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
    return {
        name: value
        for name, value in exports_of(room).items()
        if inspect.isclass(value) and issubclass(value, Configurable)
    }


@functools.cache
def public_names() -> dict[type[Configurable], str]:
    """Returns class -> name from which it is imported, for all classes that rooms export."""
    return {
        cls: f"lingo.{room}.{name}"
        for room in ROOMS
        for name, cls in exported_classes(room).items()
    }


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


def class_text(cls: type[Configurable]) -> str:
    """Returns the entry of a class: its docstring, one example and a table of its fields."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    parts = [with_code(with_lists(doc))]
    if text := example(cls, public_names()):
        parts.append(f"```python\n{text}\n```")
    if rows := [field_row(cls, field) for field in docs.describe(cls)]:
        parts.append(
            "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])
        )
    return "\n\n".join(parts)


def field_row(cls: type[Configurable], field: docs.FieldDoc) -> str:
    """Returns the row of a field: name, type, default, meaning with the choices of a Literal."""
    choices = types.describe(fields(cls)[field.name].hint)
    suffix = f" ({choices})" if choices.startswith("one of") else ""
    cells = [
        f"<code>{_cell(html.escape(c))}</code>" for c in (field.name, field.type, field.default)
    ]
    return f"| {' | '.join(cells)} | {_cell(field.comment + suffix)} |"


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


class ReferenceTexts(griffe.Extension):
    """Gives mkdocstrings the text of a class with fields, and of a function with options."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Replaces the docstring of a class with fields; griffe calls it for each class."""
        public = {f"{c.__module__}.{c.__qualname__}": c for c in public_names()}
        if cls.docstring and cls.path in public:
            cls.docstring.value = class_text(public[cls.path])

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
