"""The minutes that `lingo list` shows were measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lingo.config import experiment_index
from tools.studies.__main__ import RESULTS

SMALL = {
    name: entry.minutes
    for name, entry in experiment_index.index().entries.items()
    if entry.minutes is not None
}


def measured(name: str) -> set[int]:
    """Returns the minutes, rounded up, of the trainings of an experiment as it is registered."""
    lines = [json.loads(line) for file in RESULTS.glob("*.jsonl") for line in _lines(file)]
    trial = {"experiment": name, "seed": 0, "overrides": [], "start": None}
    return {math.ceil(line["seconds"] / 60) for line in lines if line.get("trial") == trial}


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_some_experiments_say_their_minutes() -> None:
    assert {"lm.source.tiny", "image.lenet.digits"} <= {*SMALL}


@pytest.mark.parametrize("name", SMALL)
def test_minutes_are_those_of_a_training_in_the_results(name: str) -> None:
    assert SMALL[name] in measured(name)
