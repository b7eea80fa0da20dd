"""Draws parameters with Fiddle's graphviz: a box for each class, a row for each field that was set.

A field that holds parameters has a coloured cell, and a line from there to their box. The depth of
a box in the tree is its position from left to right.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from lingo.cli.command import UsageError
from lingo.config.node.tree import nodes
from lingo.config.params import Params, fields

_LAYOUT = {"rankdir": "LR", "ranksep": "1", "nodesep": "0.1"}


def write(params: Params, file: Path) -> None:
    """Writes a picture as `.dot`, or `.svg` by the program `dot`; raises UsageError if it fails."""
    if file.suffix not in (".dot", ".svg"):
        raise UsageError(f"--graph={file}: the name has to end in .dot or .svg")
    text = source(params)
    content = text if file.suffix == ".dot" else _svg(text)
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--graph={file} cannot be written: {error.strerror}") from None


def source(params: Params) -> str:
    """Returns the Graphviz source of a picture of parameters."""
    from fiddle import graphviz  # 0.07 s, for this flag only

    params = params.copy()
    for node in nodes(params):  # rows in the order of declaration, not of setting
        values = dict(node.__arguments__)
        node.__arguments__.clear()
        node.__arguments__.update(
            (name, values[name]) for name in fields(node.cls) if name in values
        )
    picture = graphviz.render(params)
    picture.graph_attr.update(_LAYOUT)
    return picture.source


def _svg(text: str) -> str:
    try:
        command = ["dot", "-Tsvg"]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        raise UsageError(
            "--graph=FILE.svg needs the program dot of Graphviz, which is not installed: on Debian"
            " apt-get install graphviz. --graph=FILE.dot needs no program."
        ) from None
    except subprocess.CalledProcessError as error:
        raise UsageError(f"--graph: dot failed: {error.stderr.strip()}") from None
