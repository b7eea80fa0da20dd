"""Compares an export's outputs with the outputs of its run: the trained model in lingo.

    examples      64 examples of an evaluation input, in calls of several sizes if sizes may vary
    expected      the run's outputs for the examples
    found         the export's outputs, which `lingo/export/reader.py` computes without lingo

Axes: B examples of a call.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config.base.errors import LingoError, ParamError
from lingo.config.lazy import UNNEEDED_MODULES
from lingo.data.input import Input
from lingo.export import reader
from lingo.export.exported_model import Arrays
from lingo.export.signature import Mean, Run, Signature

NUM_EXAMPLES = 64

_READER = """
import runpy, sys
sys.modules.update(dict.fromkeys({hidden}))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that runs a file, and hides modules that TensorFlow imports but does not need.

This halves the time of importing TensorFlow.
"""
_SYSTEM_ERROR = re.compile(r"OSError: \[Errno (\d+)\]")


class ExportError(LingoError):
    """An exported model cannot be read, or its outputs differ from the trained model's."""

    exit_code: ClassVar[int] = 1


class Loader(NamedTuple):
    """How an export is loaded in a process without lingo."""

    function: Callable[[Path], reader.Signatures]  # a function of reader.py
    hidden_modules: Sequence[str] = UNNEEDED_MODULES["tensorflow"]  # modules not to be imported


class Bound(NamedTuple):
    """The largest allowed differences between an export's outputs and its run's."""

    floats: float  # largest |difference| of an output, over the larger of 1 and its largest |value|
    others: float  # largest fraction of integers, bytes and tokens of texts that may differ


class Difference(NamedTuple):
    """How much the outputs of a signature differ, over one or more calls."""

    floats: float = 0.0  # the largest relative difference, as `Bound.floats` defines it
    num_unequal: int = 0  # number of integers, bytes and tokens of texts that differ
    num_others: int = 0  # number of integers, bytes and tokens of texts that are compared

    @property
    def others(self) -> float:
        """The fraction of compared integers, bytes and tokens of texts that differ."""
        return self.num_unequal / max(1, self.num_others)

    def merge(self, other: Difference) -> Difference:
        """Returns the difference over all calls that this and the other difference cover."""
        return Difference(
            max(self.floats, other.floats),
            self.num_unequal + other.num_unequal,
            self.num_others + other.num_others,
        )


class Case(NamedTuple):
    """One call of a signature, which the export and its run compute."""

    signature: Signature
    batch: Arrays  # the batch from which `inputs` are made
    inputs: Arrays
    is_evaluated: bool = True  # whether metrics are computed; False if inputs lack some of `batch`


class ExportCheck(NamedTuple):
    """The outcome of the comparison of an export with its run, for the manifest."""

    differences: dict[str, Difference]  # signature -> difference
    run_metrics: dict[str, float]  # "signature/metric" -> the run's value
    export_metrics: dict[str, float]  # "signature/metric" -> the export's value


def read_examples(data: Input, number: int = NUM_EXAMPLES) -> dict[str, np.ndarray]:
    """Returns the first `number` examples of an input, or all if it has fewer: {name: [B, ...]}.

    Examples that are padding (weight 0) are left out, and rows of shorter buckets are padded. At
    most `number` batches of a repeating input are read. Raises ParamError if there is no example.
    """
    batches: list[dict[str, np.ndarray]] = []
    missing = number
    for step in range(number if data.p.repeat else data.num_batches()):
        batch = data.batch(step)
        is_example = batch["weights"] > 0
        batches.append({name: array[is_example][:missing] for name, array in batch.items()})
        missing -= len(batches[-1]["weights"])
        if not missing:
            break
    if missing == number:
        raise ParamError(f"{type(data).__name__} has no examples to check an export with")
    sizes = {name: shape for name, (shape, _) in data.specs().items()}
    return {
        name: np.concatenate([_pad(b[name], sizes[name]) for b in batches]) for name in batches[0]
    }


def _pad(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns an array [B, ...] with zeros appended, up to a shape in all axes but the first."""
    widths = [most - size for most, size in zip(shape[1:], array.shape[1:], strict=True)]
    return np.pad(array, [(0, 0), *((0, width) for width in widths)]) if any(widths) else array


def split_examples(
    examples: Arrays, *, batch_size: int, is_static: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Splits examples into batches of `batch_size`, {name: [B, ...]}.

    With `is_static` all batches have the same size: the last batch is padded with the first
    examples, at weight 0. Otherwise the last batch may be smaller.
    """
    number = len(examples["weights"])
    for start in range(0, number, batch_size):
        ids = np.arange(start, start + batch_size)
        ids = ids if is_static else ids[ids < number]
        batch = {name: array[ids % number] for name, array in examples.items()}
        yield batch | {"weights": batch["weights"] * (ids < number)}


def make_cases(
    signatures: Sequence[Signature], batches: Sequence[Arrays], *, is_static: bool
) -> list[Case]:
    """Returns one call of every signature for every batch.

    If the length of examples may vary, the first signature also gets examples of half the length.
    """
    cases = [Case(one, batch, one.examples(batch)) for one in signatures for batch in batches]
    first = cases[0]
    if not is_static and all(s == (None, None) for s, _ in first.signature.inputs.values()):
        half = {name: array[:, : -(-array.shape[1] // 2)] for name, array in first.inputs.items()}
        cases.append(first._replace(inputs=half, is_evaluated=False))
    return cases


def check_export(
    folder: Path, loader: Loader, cases: Sequence[Case], run: Run, bound: Bound
) -> ExportCheck:
    """Computes the same calls with an export and with its run, and compares the outputs.

    Args:
        folder: the folder of the export.
        loader: how the export is loaded.
        cases: the calls.
        run: the trained model in lingo.
        bound: how much the outputs may differ.

    Raises:
        ExportError: if the export cannot be read, or differs more than the bound allows.
    """
    differences: dict[str, Difference] = {}
    before: dict[str, Mean] = {}
    after: dict[str, Mean] = {}
    for case, found in zip(cases, compute_alone(folder, loader, cases), strict=True):
        name, expected = case.signature.name, case.signature.reference(run, case.inputs)
        difference = compare(case.signature, expected, found)
        differences[name] = differences.get(name, Difference()).merge(difference)
        if not (case.is_evaluated and np.isfinite(difference.floats)):
            continue
        is_example = case.batch["weights"] > 0
        batch = {key: array[is_example] for key, array in case.batch.items()}
        for sums, arrays in ((before, expected), (after, found)):
            outputs = {key: array[is_example] for key, array in arrays.items()}
            for metric, mean in case.signature.evaluate(batch, outputs).items():
                old = sums.get(f"{name}/{metric}", Mean(0.0, 0))
                total = Mean(old.sum + mean.sum, old.count + mean.count)
                sums[f"{name}/{metric}"] = total
    for name, difference in differences.items():
        wrong = f"the exported {name} does not compute what the run computes"
        if np.isinf(difference.floats):
            raise ExportError(
                f"{wrong}: its outputs have other names or shapes, or are finite on one side only"
            )
        if not (difference.floats <= bound.floats and difference.others <= bound.others):
            raise ExportError(
                f"{wrong}: floats differ by up to {difference.floats:.2g} (allowed:"
                f" {bound.floats:.2g}), {difference.others:.2%} of integers and texts differ"
                f" (allowed: {bound.others:.2%})"
            )
    return ExportCheck(differences, _divide(before), _divide(after))


def compute_alone(
    folder: Path, loader: Loader, cases: Sequence[Case]
) -> list[dict[str, np.ndarray]]:
    """Computes calls with an export in a process without lingo: returns {name: [B, ...]} per call.

    Raises ExportError if the process fails, and OSError if its results cannot be written.
    """
    given = {
        f"{case.signature.name}|{i}|{name}": value
        for i, case in enumerate(cases)
        for name, value in case.inputs.items()
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        files = [str(Path(place) / name) for name in ("given.npz", "results.npz")]
        np.savez(files[0], **dict[str, Any](given))
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        program = _READER.format(hidden=loader.hidden_modules)
        name = loader.function.__name__
        done = subprocess.run(
            [sys.executable, "-Ic", program, reader.__file__, name, str(folder), *files],
            env=os.environ | quiet,
            capture_output=True,
            text=True,
        )
        if done.returncode < 0:
            ended = f"signal {-done.returncode} ({signal.strsignal(-done.returncode)})"
            raise ExportError(f"{ended} ended the process that computes with the export")
        if done.returncode:
            last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            if match := _SYSTEM_ERROR.match(last):
                raise OSError(int(match[1]), os.strerror(int(match[1])))
            raise ExportError(f"the export cannot be used without lingo: {last}")
        with np.load(files[1]) as results:
            outputs: list[dict[str, np.ndarray]] = [{} for _ in cases]
            for key in results.files:
                _, index, name = key.split("|")
                outputs[int(index)][name] = results[key]
    return outputs


def compare(signature: Signature, expected: Arrays, found: Arrays) -> Difference:
    """Returns how much the run's (`expected`) and the export's (`found`) outputs of a call differ.

    The difference is infinite if names or shapes differ, or if a number is finite in one of them
    only.
    """
    if {*expected} != {*found} or any(expected[n].shape != found[n].shape for n in expected):
        return Difference(np.inf)
    floats, rows = 0.0, signature.comparable(expected, found)
    for name, value in expected.items():
        if value.dtype.kind == "f":
            floats = max(floats, _largest_difference(value[rows], found[name][rows]))
    return Difference(floats, *signature.count_unequal(expected, found))


def _largest_difference(expected: np.ndarray, found: np.ndarray) -> float:
    is_finite = np.isfinite(expected) & np.isfinite(found)
    same = is_finite | (expected == found) | (np.isnan(expected) & np.isnan(found))
    if not same.all():
        return np.inf
    a, b = (x[is_finite].astype(np.float64) for x in (expected, found))
    return float(np.abs(a - b).max(initial=0.0) / max(1.0, np.abs(a).max(initial=0.0)))


def _divide(means: Mapping[str, Mean]) -> dict[str, float]:
    return {name: mean.sum / max(1, mean.count) for name, mean in means.items()}
