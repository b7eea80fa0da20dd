"""Pages of the site that are made from other files: MkDocs calls the functions `on_...`.

README.md, CONTRIBUTING.md, CHANGELOG.md  ->  index.md, contributing.md, changelog.md
the classes that a room exports           ->  tables/layers.md, ...: one row per class
the docstrings of what a room exports     ->  reference/layers.md, ...
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import lingo
from lingo.config import docs
from lingo.config.params import Configurable
from lingo.data.input import Input
from lingo.layers.layer import Layer
from lingo.optim.optimizer import Optimizer
from lingo.optim.schedule import Schedule
from lingo.runtimes.runtime import Runtime
from tools.source_tree import ROOT

COPIES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


class Table(NamedTuple):
    """A page with a row for each class of a kind."""

    title: str
    room: str  # the module that exports the classes
    kind: type[Configurable]
    sentence: str


TABLES = {
    "layers": Table("Layers", "layers", Layer, "A layer computes tensors from tensors."),
    "models": Table("Models", "models", Layer, "A layer of a network of one field."),
    "optimizers": Table("Optimizers", "optim", Optimizer, "An optimizer updates weights."),
    "schedules": Table(
        "Schedules", "optim", Schedule, "A schedule is the factor of the learning rate, by step."
    ),
    "inputs": Table("Inputs", "data", Input, "An input returns the batch of a step."),
    "datasets": Table("Datasets", "datasets", Input, "Data that is drawn or found anywhere."),
    "runtimes": Table(
        "Runtimes", "runtimes", Runtime, "A runtime says which devices compute a step, and how."
    ),
}

REFERENCE = {
    "layers": "Reference of layers",
    "models": "Reference of models",
    "optim": "Reference of optimizers and schedules",
    "data": "Reference of inputs and sources",
    "datasets": "Reference of datasets",
    "ops.image": "Reference of changes of images",
    "metrics": "Reference of metrics",
    "runtimes": "Reference of runtimes",
}


_DECLARED = re.compile(r"(takes|method_takes|documents)\(")


class DeclaredOptions(griffe.Extension):
    """Shows functions whose parameters are declared as options with these, as `help` does."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Replaces the signature and docstring of such a function; griffe calls it for each."""
        decorators = (str(decorator.value).strip("_") for decorator in func.decorators)
        if func.docstring is None or not any(map(_DECLARED.match, decorators)):
            return
        made = griffe.dynamic_import(func.path)
        func.docstring.value = inspect.getdoc(made) or ""
        func.parameters = griffe.Parameters(
            *map(_parameter, inspect.signature(made).parameters.values())
        )


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind(one.kind.description)
    default = None if one.default is inspect.Parameter.empty else repr(one.default)
    return griffe.Parameter(one.name, annotation=one.annotation, kind=kind, default=default)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made; MkDocs calls it once, with the files of `docs`."""
    for path, text in generated_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files, **kwargs: Any
) -> str:
    """Returns the text of a page with links and code blocks as the site needs them."""
    return with_titles(with_site_links(markdown))


def generated_pages() -> Iterator[tuple[str, str]]:
    """Yields path and text of each page that is not a file of `docs`."""
    for path, source in COPIES.items():
        yield path, (ROOT / source).read_text()
    for name, table in TABLES.items():
        yield f"tables/{name}.md", table_page(table)
    for room, title in REFERENCE.items():
        yield f"reference/{room}.md", reference_page(title, room)
    for file in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        yield f"notebooks/{file.stem}.md", notebook_page(file.read_text())
    functions = [f"lingo.{n}" for n in lingo.__all__ if inspect.isfunction(getattr(lingo, n))]
    yield "reference/lingo.md", _reference("Reference of `import lingo`", functions)
    yield (
        "reference/task.md",
        _reference(
            "Reference of tasks and experiments",
            ["lingo.learner.task.Task", "lingo.contract.Experiment"],
        ),
    )


def with_site_links(markdown: str) -> str:
    """Returns a text whose links lead to pages of the site instead of files of the repository.

    >>> with_site_links("[a](docs/data.md#b), [c](../README.md), [d](CONTRIBUTING.md)")
    '[a](data.md#b), [c](index.md), [d](contributing.md)'
    """
    markdown = re.sub(r"\]\(docs/", "](", markdown)
    markdown = re.sub(r"(\]\(notebooks/\w+)\.ipynb", r"\1.md", markdown)
    for page, source in COPIES.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(source)}", f"]({page}", markdown)
    return markdown


def with_titles(markdown: str) -> str:
    """Returns a text whose blocks of code have the name of their file as a title.

    >>> with_titles("```python first.py")
    '```python title="first.py"'
    """
    return re.sub(r"^```(\w+) ([\w./-]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def notebook_page(notebook: str) -> str:
    """Returns the cells of a notebook, its JSON, as a page.

    >>> notebook_page('{"cells": [{"cell_type": "code", "source": ["x = 1"]}]}')
    '```python\\nx = 1\\n```\\n'
    """
    texts = [(c["cell_type"], "".join(c["source"])) for c in json.loads(notebook)["cells"]]
    blocks = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts]
    return "\n\n".join(blocks) + "\n"


def table_page(table: Table) -> str:
    """Returns a page with the classes that a room exports: first sentence, and all fields."""
    classes = [cls for cls in exported_classes(table.room) if issubclass(cls, table.kind)]
    lines = [
        f"# {table.title}",
        "",
        f"{table.sentence} This table is made from the code; `lingo describe NAME` shows the types"
        f" and defaults of all fields, and their meaning. `from lingo.{table.room} import NAME`.",
        "",
        "| class | what it is | its own fields |",
        "|---|---|---|",
    ]
    lines += [table_row(cls, table) for cls in classes]
    return "\n".join(lines) + "\n"


def table_row(cls: type[Configurable], table: Table) -> str:
    """Returns the row of a class in a table of Markdown."""
    sentence = summary(cls).replace("|", "\\|")
    names = ", ".join(f"`{f.name}`" for f in docs.describe(cls) if f.owner != table.kind.__name__)
    link = f"[`{cls.__name__}`](../reference/{table.room}.md#{_anchor(cls)})"
    return f"| {link} | {sentence} | {names} |"


def reference_page(title: str, room: str) -> str:
    """Returns a page with the docstrings of all that a room exports."""
    module = importlib.import_module(f"lingo.{room}")
    exports = [getattr(module, name) for name in module.__all__]
    return _reference(title, [_anchor(value) for value in exports if hasattr(value, "__name__")])


def exported_classes(room: str) -> list[type[Configurable]]:
    """Returns the classes with fields that a room exports, sorted by name."""
    module = importlib.import_module(f"lingo.{room}")
    exports = [getattr(module, name) for name in module.__all__]
    return [v for v in exports if inspect.isclass(v) and issubclass(v, Configurable)]


def summary(cls: type) -> str:
    """Returns the first sentence of a class's docstring, in one line."""
    paragraph = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def _anchor(value: Any) -> str:
    return f"{value.__module__}.{value.__name__}"


def _reference(title: str, names: list[str]) -> str:
    return "\n".join([f"# {title}", "", *(f"::: {name}\n" for name in names)])
