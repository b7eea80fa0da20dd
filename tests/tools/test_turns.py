"""Rivals work one at a time, in turn, and each turn is measured."""

from __future__ import annotations

import functools

import pytest

from tools.bench.lm import plain_steps
from tools.rivals.plain_lm import Size
from tools.turns import Process, measure, spread

SIZE = Size(dim=8, num_layers=1, num_heads=2, hidden_dim=8, vocab_size=11, length=4, batch_size=2)
RIVAL = functools.partial(plain_steps, size=SIZE, xla=False)


def test_every_round_has_a_turn_of_each_rival() -> None:
    first, costs = measure({"one": RIVAL, "other": RIVAL}, num=3)
    assert {name: len(turns) for name, turns in costs.items()} == {"one": 3, "other": 3}
    assert all(cost.seconds > 0 for turns in costs.values() for cost in turns)
    for name, turns in costs.items():  # the first turn traces
        assert first[name].cpu_seconds > max(cost.cpu_seconds for cost in turns)


def test_a_rival_that_fails_ends_the_rounds(capfd: pytest.CaptureFixture[str]) -> None:
    process = Process(functools.partial(int))
    with pytest.raises((EOFError, ConnectionError)):
        process.turn()
    process.close()
    assert "TypeError: int() argument" in capfd.readouterr().err


def test_the_peak_memory_is_that_of_the_process() -> None:
    process = Process(RIVAL)
    process.turn()
    assert 100 < process.peak_megabytes() < 10_000  # TensorFlow alone takes hundreds
    process.close()


def test_the_middle_of_an_even_number_lies_between_two() -> None:
    assert spread([4.0, 1.0, 3.0]) == (1.0, 3.0, 4.0)
    assert spread([4.0, 1.0, 3.0, 2.0]) == (1.0, 2.5, 4.0)
    assert str(spread([1.0])) == "   1.000    1.000    1.000"
