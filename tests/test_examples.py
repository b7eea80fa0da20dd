"""The examples in docstrings of schedules, pure operations and metrics are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
OPS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "lingo/ops").rglob("[a-z]*.py")
)
METRICS = [
    f"lingo.metrics.{name}"
    for name in ("classification", "mask", "metric", "results", "transcript")
]
MODULES = [*METRICS, "lingo.optim.schedule", *OPS]
DIALOG = ["tasks.dialog.ratings", "tasks.dialog.research", "tasks.dialog.tools.retrieval"]
OTHERS = [
    "lingo.data.array_spec",
    "lingo.data.task_schedule",
    "lingo.datasets.spoken_digits",
    "lingo.datasets.synthesizer",
    "lingo.datasets.tones",
    "lingo.optim.compound_schedule",
    "lingo.trainer.directory.environment",
    "tools.website.hooks",
    "tools.website.reference",
    *DIALOG,
]  # some functions have examples
NOT_PURE = {"on_device_of_inputs", "gradient_scope", "host_bits", "host_words", "on_device"}
NOT_PURE |= {"explain_float_labels", "import_coco_masks", "one_scope", "output_specs", "text_hash"}
"""Functions of these modules that compute nothing of tensors: they need no example."""


@pytest.mark.parametrize("name", [*MODULES, *OTHERS])
def test_every_example_gives_what_its_docstring_says(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_schedule_and_every_operation_has_an_example(name: str) -> None:
    module = importlib.import_module(name)
    kind = inspect.isclass if name.endswith("schedule") else inspect.isfunction
    own = [(key, it) for key, it in inspect.getmembers(module, kind) if it.__module__ == name]
    lacking = {key for key, it in own if key[0] != "_" and ">>>" not in (it.__doc__ or "")}
    assert lacking <= NOT_PURE | {"Schedule"}
