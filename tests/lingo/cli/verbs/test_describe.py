"""Describing classes and experiments."""

from __future__ import annotations

import pathlib
from collections.abc import Callable


def test_a_class_is_described_field_by_field(lingo: Callable, toys: pathlib.Path) -> None:
    done = lingo("describe", "ToyLayer")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith(f"ToyLayer, a Layer: {toys / 'toys.py'}:")
    assert lines[2] == "A layer that multiplies."
    table = [line.split() for line in lines[lines.index("fields:") + 1 :]]
    assert table[0] == ["name", "type", "default", "meaning"]
    assert ["rate", "float", "0.0", "does", "nothing"] in table
    assert table[1][:3] == ["dtype", "Dtype", "'float32'"]
    assert "one of 'float32', 'bfloat16'" in done.out
    assert lingo("describe", "params.toys:ToyLayer") == done
    one = lingo("describe", "ToyLayer.rate").out.partition("fields:\n")[2].splitlines()
    assert [line.split()[0] for line in one] == ["name", "rate"]
    assert "no field 'rat'. Did you mean 'rate'" in lingo("describe", "ToyLayer.rat").err


def test_an_interface_lists_the_classes_that_have_it(lingo: Callable, toys: pathlib.Path) -> None:
    out = lingo("describe", "Schedule").out
    assert "fields:" not in out
    rows = [line.strip() for line in out.partition("subclasses:\n")[2].splitlines()]
    assert rows[0].split() == ["ConstantRate", "The", "same", "factor", "at", "every", "step."]
    assert [row.split()[0] for row in rows] == sorted(row.split()[0] for row in rows)
    layers = lingo("describe", "Layer").out.partition("subclasses:\n")[2]
    shown = {line.split()[0] for line in layers.splitlines()}
    assert shown > {"FeedForward", "Task", "LanguageModeling", "ToyLayer", "Quantized"}
    assert not shown & {"Layer", "Schedule", "Cosine"}
    assert "subclasses:" not in lingo("describe", "FeedForward").out


def test_a_field_without_a_default_is_required(lingo: Callable) -> None:
    (line,) = [x for x in lingo("describe", "ToyTask").out.splitlines() if " stack " in x]
    assert line.split() == ["stack", "Stack", "required", "the", "layers"]


def test_an_experiment_is_described_with_its_arguments(lingo: Callable, toys: pathlib.Path) -> None:
    out = lingo("describe", "narrow").out
    assert out.startswith(f"toys.narrow(num_layers: int = 2): {toys / 'toys.py'}:")
    assert out.endswith("Two layers of width 3.\n\nAnd more.\n")


def test_what_is_in_a_file_is_described_by_the_files_path(lingo: Callable, toys: pathlib.Path):
    pathlib.Path("mine.py").write_text((toys / "toys.py").read_text())
    assert lingo("describe", "mine.py:ToyLayer").out.startswith("ToyLayer, a Layer: mine.py:")
    assert " does nothing" in lingo("describe", "mine.py:ToyLayer.rate").out
    assert lingo("describe", "mine.py:narrow").out.startswith("mine.narrow(num_layers: int = 2): ")
    assert "There is no file its.py" in lingo("describe", "its.py:narrow").err
