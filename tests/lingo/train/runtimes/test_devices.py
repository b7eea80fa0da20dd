"""One processor as several devices, chosen before TensorFlow starts."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.train.runtimes.devices import split_processor

ROOT = pathlib.Path(__file__).parents[4]


def test_a_process_has_as_many_devices_as_it_asked_for() -> None:
    code = (
        "from lingo.lazy import tf\n"
        "from lingo.train.runtimes.devices import split_processor\n"
        "split_processor(3)\n"
        "print(len(tf.config.list_logical_devices('CPU')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "3\n"


def test_it_is_too_late_once_something_was_computed() -> None:
    there = len(tf.config.list_logical_devices("CPU"))
    split_processor(there)
    with pytest.raises(ParamError, match=f"TensorFlow has already started with {there}"):
        split_processor(there + 1)
