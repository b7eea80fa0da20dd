"""A small experiment on texts of its own, and the directory of its run."""

import functools

import pytest


@pytest.fixture
def small(experiment, text):
    """Makes the experiment, of six steps or `max_steps`."""
    return functools.partial(experiment, text)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()
