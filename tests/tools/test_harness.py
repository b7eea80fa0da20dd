"""Rivals take turns, each is measured, and a benchmark ends with what it missed."""

import functools
import math

import pytest

from tools.bench.lm import plain_steps
from tools.harness import (
    Bound,
    Cost,
    Process,
    Report,
    Spread,
    alternate,
    at_least,
    at_most,
    measure,
    ratios,
)
from tools.rivals.plain_lm import Size

SIZE = Size(dim=8, num_layers=1, num_heads=2, hidden_dim=8, vocab_size=11, length=4, batch_size=2)
RIVAL = functools.partial(plain_steps, size=SIZE, xla=False)


def test_every_round_has_a_turn_of_each_rival():
    first, costs = measure({"one": RIVAL, "other": RIVAL}, num=3)
    assert {name: len(turns) for name, turns in costs.items()} == {"one": 3, "other": 3}
    assert all(cost.seconds > 0 for turns in costs.values() for cost in turns)
    for name, turns in costs.items():  # the first turn traces
        assert first[name].cpu_seconds > max(cost.cpu_seconds for cost in turns)


def test_a_rival_that_fails_ends_the_rounds(capfd):
    process = Process(functools.partial(int))
    with pytest.raises((EOFError, ConnectionError)):
        process.turn()
    process.close()
    assert "TypeError: int() argument" in capfd.readouterr().err


def test_the_peak_memory_is_that_of_the_process():
    process = Process(RIVAL)
    process.turn()
    assert 100 < process.peak_megabytes() < 10_000  # TensorFlow alone takes hundreds
    process.close()


def test_functions_are_called_once_in_each_round():
    calls: list[str] = []
    results = alternate({k: lambda k=k: calls.append(k) or len(calls) for k in "ab"}, num=2)
    assert calls == ["a", "b", "a", "b"]
    assert results == {"a": [1, 3], "b": [2, 4]}


def test_ratios_are_taken_within_a_round(capsys):
    assert ratios([2.0, 20.0], [1.0, 10.0]) == (2.0, 2.0, 2.0)
    ours = [Cost(2.0, 1.0), Cost(20.0, 10.0)]
    theirs = [Cost(1.0, 1.0), Cost(10.0, 5.0)]
    assert Report().ratio("ours / theirs", ours, theirs) == (2.0, 2.0, 2.0)
    assert capsys.readouterr().out.split()[-1] == "1.500"  # of processor seconds


@pytest.mark.parametrize(
    ("bound", "inside", "outside", "shown"),
    [
        (at_most(1.02), [0.5, 1.02], [1.03, math.nan], "<= 1.02"),
        (at_least(5), [5.0, 9.0], [4.9, math.nan], ">= 5"),
        (Bound(0.8, 1.2), [0.8, 1.0, 1.2], [0.7, 1.3, math.nan], "0.8 to 1.2"),
    ],
)
def test_a_bound_holds_what_is_inside(bound, inside, outside, shown):
    assert all(map(bound.holds, inside))
    assert not any(map(bound.holds, outside))
    assert str(bound) == shown


def test_what_is_missed_is_named_and_is_code_1(capsys):
    report = Report()
    report.line("caches", 6.0, at_least(5))
    assert report.exit_code() == 0
    assert "missed" not in capsys.readouterr().out
    report.line("step / by hand", 1.05, at_most(1.02))
    report.line("caches", Spread(4.0, 6.0, 7.0), at_least(5))
    report.line("for reading", 100.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "/", "by", "hand", "1.050", "<=", "1.02"]
    assert lines[1].split() == ["caches", "4.000", "6.000", "7.000", ">=", "5"]
    assert report.exit_code() == 1
    assert capsys.readouterr().out == "missed: step / by hand is 1.05, wanted <= 1.02\n"
