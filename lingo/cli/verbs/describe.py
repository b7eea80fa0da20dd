"""Describes a class with its fields, or an experiment with its arguments.

    lingo describe FeedForward
    lingo describe FeedForward.activation
    lingo describe Schedule                  also lists all schedules
    lingo describe lm.source.tiny
    lingo describe my/file.py:MyLayer

NAME is a class that --set can name, with a capital letter, or an experiment.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from lingo.cli.command import RootOptions
from lingo.config import docs, experiment_index, registry
from lingo.config.base import types
from lingo.config.classes import Classes
from lingo.config.experiment_index import Entry
from lingo.config.node.field import field_of
from lingo.config.options import option_class, word
from lingo.config.params import Configurable, ParamError, fields, interface
from lingo.config.printable import relative_path
from lingo.config.roots.roots import Roots


@option_class
class Options(RootOptions):
    """The options of `lingo describe`."""

    name: str = word("NAME")


def run(options: Options) -> int:
    """Prints the description of a class or an experiment."""
    places, word = options.roots(), options.name
    module, colon, last = word.rpartition(":")
    if last[:1].isupper():
        name, dot, field = last.partition(".")
        classes = Classes(places)
        cls = classes.find(f"{module}{colon}{name}")
        print(class_text(cls, only=field if dot else None), end="")
        if not dot and interface(cls) is cls:
            print(subclasses_text(classes, cls), end="")
    else:
        print(experiment_text(_find_experiment(word, places)), end="")
    return 0


def _find_experiment(word: str, places: Roots) -> Entry:
    """Returns an experiment by name, or by `file.py:function`.

    If the name is a class's name in lower case, the error says so.
    """
    file, _, function = word.rpartition(":")
    if file.endswith(".py"):
        return registry.entry_in_file(Path(file), function)
    try:
        return experiment_index.index(places).find(word)
    except ParamError:
        names = {name.lower(): name for name in Classes(places).names()}
        if word.lower() not in names:
            raise
        raise ParamError(
            f"there is no experiment {word!r}. Did you mean the class {names[word.lower()]}?"
        ) from None


def class_text(cls: type[Configurable], *, only: str | None = None) -> str:
    """Returns a class's docstring and a line per field; with `only`, a line for this field only."""
    if only is not None:
        field_of(cls, only)
    rows = [("name", "type", "default", "meaning")]
    shown = [f for f in docs.describe(cls) if only in (None, f.name)]
    for field in shown:  # adds the choices of a Literal, which the type as written may not show
        choices = types.describe(fields(cls)[field.name].hint)
        suffix = f" ({choices})" if choices.startswith("one of") else ""
        rows.append((field.name, field.type, field.default, f"{field.comment}{suffix}"))
    kind = interface(cls).__name__
    where = f"{relative_path(inspect.getsourcefile(cls) or '')}:{inspect.getsourcelines(cls)[1]}"
    table = f"\nfields:\n{_table(rows)}" if shown else ""
    article = "an" if kind[0] in "AEIOU" else "a"
    doc = inspect.cleandoc(cls.__doc__ or "")
    return f"{cls.__name__}, {article} {kind}: {where}\n\n{doc}\n{table}"


def subclasses_text(classes: Classes, cls: type[Configurable]) -> str:
    """Returns a line per subclass of a class: its name and its docstring's first line; or ""."""
    rows = [
        (name, docs.first_line(place.file, name))
        for name, place in classes.subclasses(cls).items()
        if not name.startswith("_")
    ]
    return f"\nsubclasses:\n{_table(rows)}" if rows else ""


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"  {line}\n" for line in lines)


def experiment_text(entry: Entry) -> str:
    """Returns the description of an experiment."""
    where = f"{relative_path(str(entry.file))}:{entry.line}"
    return f"{entry.name}{entry.signature}: {where}\n\n{entry.doc}\n"
