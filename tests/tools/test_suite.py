"""Claims about the list of slow tests."""

from __future__ import annotations

from tools.suite import MAX_SECONDS, SLOW_SECONDS, Time, slow_tests

LONG, SHORT = SLOW_SECONDS + 0.1, SLOW_SECONDS - 0.1


def test_what_takes_long_is_slow_and_the_quickest_of_a_module_stays_quick() -> None:
    times = [Time(LONG + i, f"a.py::{i}") for i in range(3)]
    times += [Time(LONG, "b.py::long"), Time(SHORT, "b.py::short")]
    assert slow_tests(times, []) == ["a.py::1", "a.py::2", "b.py::long"]


def test_a_module_without_a_test_short_enough_is_slow_as_a_whole() -> None:
    times = [Time(MAX_SECONDS + 1 + i, f"a.py::{i}") for i in range(2)]
    assert slow_tests(times, []) == ["a.py::0", "a.py::1"]


def test_what_is_listed_stays_slow_though_another_made_what_it_needs() -> None:
    shared = [Time(60.0, "a.py::first"), Time(0.0, "a.py::second")]
    listed = ["a.py::first", "a.py::second", "a.py::deleted"]
    assert slow_tests(shared, listed) == ["a.py::first", "a.py::second"]
    assert slow_tests([*shared, Time(LONG, "a.py::own")], listed) == listed[:2]
