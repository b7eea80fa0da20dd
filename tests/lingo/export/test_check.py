"""The comparison of an export with its run."""

from __future__ import annotations

import pathlib
from typing import get_args

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data import ArrayInput, BucketedInput, TextFiles
from lingo.export import check
from lingo.export.check import (
    Bound,
    Case,
    Difference,
    ExportError,
    check_export,
    compare,
    compute_alone,
    make_cases,
    read_examples,
    split_examples,
)
from lingo.export.exported_model import Arrays
from lingo.export.formats import FORMATS, Format, Quantize
from lingo.export.signature import Predict, count_changes

LITE = FORMATS["tflite"].loader


def test_every_format_has_an_entry() -> None:
    assert [*FORMATS] == [one.name for one in FORMATS.values()] == [*get_args(Format)]
    assert {n for one in FORMATS.values() for n in one.numbers} == {*get_args(Quantize)}


def test_the_largest_difference_is_relative_to_the_largest_value() -> None:
    expected = {"x": np.array([1.0, -8.0], np.float32), "k": np.array([1, 2])}
    found = {"x": np.array([1.4, -8.0], np.float32), "k": np.array([1, 3])}
    difference = compare(Predict({}), expected, found)
    assert difference == pytest.approx(Difference(0.05, 1, 2))
    both = difference.merge(Difference(0.01, 0, 6))
    assert (both.floats, both.others) == (difference.floats, 1 / 8)  # over all calls


@pytest.mark.parametrize("value", [[1.0], [1.0, np.nan], [1.0, np.inf]])
def test_other_shapes_and_numbers_that_are_not_finite_differ_without_bound(value) -> None:
    expected = {"x": np.array([1.0, 2.0], np.float32)}
    assert compare(Predict({}), expected, {"x": np.array(value, np.float32)}).floats == np.inf
    assert compare(Predict({}), expected, {}).floats == np.inf


def test_what_is_not_finite_in_both_is_equal() -> None:
    values = {"x": np.array([np.nan, -np.inf, 1.0], np.float32)}
    assert compare(Predict({}), values, values) == Difference()


def test_texts_are_compared_up_to_the_first_token_that_differs() -> None:
    expected = np.array([[[5, 6, 7, 2, 2], [5, 2, 2, 2, 2]]])
    found = np.array([[[5, 9, 4, 4, 4], [5, 2, 2, 2, 2]]])
    lengths = np.array([[5, 1]])  # the second has an end after one token
    assert count_changes(expected, found, lengths) == (1, 2 + 2)
    assert count_changes(expected, expected, lengths) == (0, 5 + 2)


def test_examples_leave_out_padding_and_are_at_most_the_number() -> None:
    data = ArrayInput.params(function=numbers, batch_size=4, repeat=False).build()
    whole = read_examples(data)["x"].tolist()
    assert sorted(whole) == [0, 1, 2, 3, 4, 5]
    assert read_examples(data, 3)["x"].tolist() == whole[:3]


def test_examples_of_several_lengths_are_as_long_as_the_longest_rows(
    tmp_path: pathlib.Path,
) -> None:
    for name, text in {"a": "a", "b": 9 * "b"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    source = TextFiles.params(pattern=f"{tmp_path}/*.txt")
    data = BucketedInput.params(source=source, boundaries=[4, 16, 32], repeat=False, batch_size=1)
    examples = read_examples(data.build())
    assert examples["tokens"].shape == (2, 32)
    assert sorted((examples["segments"] > 0).sum(axis=1).tolist()) == [2, 10]


def test_static_batches_are_filled_up_with_the_first_examples() -> None:
    examples = {"x": np.arange(5), "weights": np.ones(5)}
    static, others = (
        [b["x"].tolist() for b in split_examples(examples, batch_size=3, is_static=is_static)]
        for is_static in (True, False)
    )
    assert static == [[0, 1, 2], [3, 4, 0]]
    assert others == [[0, 1, 2], [3, 4]]


class Labels:
    """A run, and an export, that says that every label is 1."""

    def predict(self, arrays: Arrays) -> dict[str, np.ndarray]:
        return {"labels": np.ones_like(arrays["tokens"])}


def check_labels(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, np.ndarray] | None = None, **kind: bool
) -> check.ExportCheck:
    """Checks an export that says `found`, or what the run does, of five examples of six tokens."""
    examples = {
        "tokens": np.zeros([5, 6], int),
        "labels": np.arange(30).reshape(5, 6) == 0,  # the very first
        "weights": np.ones(5),
    }
    signatures = [Predict({"tokens": ((None, None), "int32")})]
    batches = [*split_examples(examples, batch_size=3, **kind)]
    cases = make_cases(signatures, batches, **kind)

    def compute(
        folder: pathlib.Path, format: str, cases: list[Case]
    ) -> list[dict[str, np.ndarray]]:
        return [Labels().predict(case.inputs) if found is None else found for case in cases]

    monkeypatch.setattr(check, "compute_alone", compute)
    return check_export(pathlib.Path(), LITE, cases, Labels(), Bound(0, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_static", [True, False])
def test_metrics_are_of_each_example_once(monkeypatch: pytest.MonkeyPatch, is_static: bool) -> None:
    """Not of those that fill up a static batch, nor of the call of half the length."""
    report = check_labels(monkeypatch, is_static=is_static)
    assert report.export_metrics == report.run_metrics == {"predict/accuracy": 1 / 30}


@pytest.mark.parametrize("found", [{}, {"labels": np.ones([3, 2], int)}])
def test_outputs_of_other_names_or_shapes_are_told(monkeypatch: pytest.MonkeyPatch, found) -> None:
    with pytest.raises(
        ExportError, match=r"predict does not compute .*: its outputs have other names or sh"
    ):
        check_labels(monkeypatch, found, is_static=False)


def test_the_signal_that_ended_the_reader_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "reader.py"
    killed.write_text(
        "import os, sys; print('a warning', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    )
    monkeypatch.setattr(check.reader, "__file__", str(killed))
    with pytest.raises(ExportError, match=r"^signal 9 \(Killed\) ended the process that computes"):
        compute_alone(tmp_path, LITE, [])


@pytest.mark.parametrize("repeat", [True, False])
def test_an_input_without_examples_is_refused(
    monkeypatch: pytest.MonkeyPatch, repeat: bool
) -> None:
    data = ArrayInput.params(function=numbers, batch_size=4, repeat=repeat).build()
    monkeypatch.setattr(data, "batch", lambda step: {"weights": np.zeros(4, np.float32)})
    with pytest.raises(ParamError, match="ArrayInput has no examples to check an export with"):
        read_examples(data)
    monkeypatch.setattr(type(data), "num_batches", lambda self: 0)
    with pytest.raises(ParamError, match="ArrayInput has no examples to check an export with"):
        read_examples(data)


def numbers() -> dict[str, np.ndarray]:
    return {"x": np.arange(6)}
