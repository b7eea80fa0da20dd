"""Drawing experiments."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from lingo.cli import graph
from lingo.cli.command import UsageError
from lingo.layers.feed_forward import FeedForward

FFN = FeedForward.params(hidden_dim=7, dim=3)


def test_a_text_for_graphviz_has_the_fields_that_were_set_in_the_order_of_the_class(tmp_path):
    graph.write(FFN, tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert "rankdir=LR" in text
    assert -1 < text.index(">dim<") < text.index(">hidden_dim<") < text.index(">init<")
    assert "dropout_rate" not in text
    assert [*FFN.__arguments__] == ["init", "hidden_dim", "dim"]  # these stay as they were set


def test_a_picture_is_what_the_program_dot_makes_of_the_text(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho $* && exec cat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    graph.write(FFN, tmp_path / "a.svg")
    graph.write(FFN, tmp_path / "a.dot")
    assert (tmp_path / "a.svg").read_text() == "-Tsvg\n" + (tmp_path / "a.dot").read_text()


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's program dot")
def test_graphviz_draws_it(tmp_path: pathlib.Path) -> None:
    graph.write(FFN, tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text()
    assert picture.rstrip().endswith("</svg>")
    assert ">hidden_dim</text>" in picture


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apt-get install graphviz. --graph=FILE.dot needs no program"),
        ("#!/bin/sh\necho no fonts >&2; exit 1\n", "dot failed: no fonts"),
    ],
)
def test_without_a_picture_there_is_no_file(script, message, tmp_path, monkeypatch):
    if script:
        (tmp_path / "dot").write_text(script)
        (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=message):
        graph.write(FFN, tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()


def test_a_name_that_cannot_be_written_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"a\.png: the name has to end in \.dot or \.svg"):
        graph.write(FFN, tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"cannot be written: No such file"):
        graph.write(FFN, tmp_path / "absent/a.dot")
