"""Processes agree, and find out who is lost; here they are threads with a service in memory."""

import threading
import time

import pytest

from lingo.processes import group
from lingo.processes.group import Group, Patience
from lingo.processes.processes import Cluster, LostWorker
from lingo.processes.signals import Stop
from lingo.runtimes.program import ProgramError

WORKERS = ("a:1", "b:2", "c:3")
PATIENCE = Patience(beat=0.02, start=2.0, silence=0.5, blame=0.2, grace=0.2, leave=0.5)


class Wire:
    """A coordination service in memory, as one process reaches it.

    Cut, it is as if the process were stopped.
    """

    def __init__(self, values: dict[str, str], changed: threading.Condition) -> None:
        self._values, self._changed = values, changed
        self.is_cut = threading.Event()
        self.aborted: list[str] = []

    def put(self, key: str, value: str) -> None:
        with self._access():
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, *, timeout_seconds: float) -> str | None:
        with self._access():
            self._changed.wait_for(lambda: key in self._values, timeout_seconds)
            return self._values.get(key)

    def delete(self, key: str) -> None:
        with self._access():
            self._values.pop(key, None)

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)

    def _access(self) -> threading.Condition:
        if self.is_cut.is_set():
            raise ConnectionError("cut")
        return self._changed


def at_once(work, count=3, times=1, values=None):
    """Does some work in several groups at once; returns what each returns or raises."""
    values, changed, found = {} if values is None else values, threading.Condition(), {}
    wires = [Wire(values, changed) for _ in range(count)]
    groups = [
        Group(Cluster(WORKERS[:count], index), wires[index], patience=PATIENCE)
        for index in range(count)
    ]

    def run(index: int) -> None:
        try:
            with groups[index] as group:
                found[index] = work(group, wires[index])
        except BaseException as error:  # noqa: BLE001  # it is looked at
            found[index] = error

    for _ in range(times):
        threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    return [found[index] for index in range(count)]


def test_all_hear_the_largest_number_and_one_flag_is_enough():
    def work(group, wire):
        flags = [group.any(group.index == 2), group.any(False)]
        return [*flags, *(group.max(10 * i if group.index == i % 3 else 1) for i in range(4))]

    assert at_once(work) == [[True, False, 1, 10, 20, 30]] * 3


def test_the_leaders_value_reaches_all_also_under_the_same_name_again():
    def work(group, wire):
        return [group.share("it", str(i) if group.is_leader else None) for i in range(3)]

    assert at_once(work, times=2) == [["0", "1", "2"]] * 3


def test_a_barrier_lets_nobody_through_before_all_have_come():
    came: list[int] = []

    def work(group, wire):
        time.sleep(0.1 * group.index)
        came.append(group.index)
        group.barrier("here")
        return len(came)

    assert at_once(work) == [3] * 3


def test_threads_agree_beside_each_other():
    def work(group, wire):
        beside = threading.Thread(target=lambda: [group.barrier("saved") for _ in range(20)])
        beside.start()
        total = sum(group.max(group.index) for _ in range(20))
        beside.join()
        return total

    assert at_once(work) == [40] * 3


def test_little_is_left_in_the_service():
    values: dict[str, str] = {}
    at_once(lambda group, _: [group.any(False) for _ in range(50)], count=2, values=values)
    assert len(values) <= 4


def ending(do, *, rest=None):
    """Returns work in which process 1 does something, and the rest ask until they are told."""

    def work(group, wire):
        group.barrier("begun")
        if group.index == 1:
            do(wire)
        elif rest:
            return rest(group, wire)
        while True:
            group.any(False)

    return work


def fail(_):
    raise ValueError("no data")


NO_DATA = "worker 1 (b:2) has ended: ValueError: no data"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_who_gives_no_sign_of_life_is_named_to_all(victim):
    def work(group, wire):
        group.barrier("begun")
        if group.index == victim:
            wire.is_cut.set()
        while True:
            group.any(False)

    ended = at_once(work)
    for index in {0, 1, 2} - {victim}:
        assert isinstance(ended[index], LostWorker)
        assert ended[index].index == victim
        name = f"worker {victim} ({WORKERS[victim]})"
        assert str(ended[index]) == f"{name} gave no sign of life for 0 s"


def test_why_a_process_has_ended_is_told():
    leader, other, third = at_once(ending(fail))
    assert isinstance(other, ValueError)
    assert str(leader) == str(third) == NO_DATA


def test_a_signal_that_ended_one_ends_the_others_as_if_it_were_theirs():
    def stop(_):
        raise Stop(15)

    ended = at_once(ending(stop, rest=lambda group, _: group.barrier("never")))
    assert [(type(error), error.number) for error in ended] == [(Stop, 15)] * 3


def test_what_was_lost_because_of_another_is_blamed_on_it():
    def work(group, wire):
        group.barrier("begun")
        if group.index == 1:
            wire.is_cut.set()
            time.sleep(1)
        raise group.blame(ProgramError("connection reset"))

    leader, _, other = at_once(work)
    assert isinstance(leader, LostWorker)
    assert isinstance(other, LostWorker)
    assert (leader.index, other.index) == (1, 1)


def test_what_fails_in_all_is_blamed_on_nobody():
    def work(group, wire):
        group.barrier("begun")
        raise group.blame(ProgramError(f"no memory in {group.index}"))

    ended = at_once(work)
    assert [str(error) for error in ended] == [f"no memory in {index}" for index in range(3)]


def test_what_is_computed_together_is_aborted_when_one_is_lost():
    aborted = []

    def compute(group, wire):
        with group.joint_computation():
            while not wire.aborted:
                time.sleep(0.01)
        aborted.extend(wire.aborted)
        group.any(False)

    leader, _, other = at_once(ending(fail, rest=compute))
    assert isinstance(leader, LostWorker)
    assert isinstance(other, LostWorker)
    assert aborted == [NO_DATA] * 2


def test_a_process_that_hangs_in_what_is_computed_together_is_ended(monkeypatch):
    codes: list[int] = []
    monkeypatch.setattr(group.os, "_exit", codes.append)

    def hang(group, _):
        with group.joint_computation():
            time.sleep(1.5)

    at_once(ending(fail, rest=hang), count=2)
    assert codes == [1]


def test_a_leader_without_a_value_is_a_mistake():
    service = Wire({}, threading.Condition())
    with pytest.raises(ValueError, match="the leader has no value for 'it'"):
        Group(Cluster(WORKERS[:2], 0), service).share("it", None)
