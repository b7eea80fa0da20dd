"""All processes go on from the checkpoint that the leader has found."""

from __future__ import annotations

import pathlib

import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_sound
from lingo.checkpoints.chosen import share_checkpoint, share_checkpoints
from lingo.processes.processes import ALONE, Processes


class Follower:
    """A process that hears what the leader has shared."""

    is_leader = False

    def __init__(self, *said: str) -> None:
        self._said = iter(said)

    def share(self, name: str, value: str | None) -> str:
        assert value is None
        return next(self._said)


def follower(*said: str) -> Processes:
    return Follower(*said)  # type: ignore[return-value]


def save(directory: pathlib.Path, *steps: int) -> None:
    for step in steps:
        tensors = [("weights/a", np.zeros(2, np.float32))]
        store.save(directory, step=step, tensors=tensors, metadata={}, keep=9)


def never() -> None:
    raise AssertionError("only the leader looks")


def test_others_open_what_the_leader_found_though_there_is_a_later_one(
    tmp_path: pathlib.Path,
) -> None:
    save(tmp_path / "c", 1, 2)
    found = share_checkpoint(follower("1"), tmp_path / "c", never)
    assert found is not None
    assert found.step == 1


def test_where_the_leader_found_none_there_is_none(tmp_path: pathlib.Path) -> None:
    assert share_checkpoint(follower(""), tmp_path, never) is None
    assert share_checkpoint(ALONE, tmp_path, lambda: None) is None


def test_many_are_passed_on_until_there_is_no_more(tmp_path: pathlib.Path) -> None:
    save(tmp_path / "c", 1, 2)
    found = [open_sound(store.step_path(tmp_path / "c", step)) for step in (2, 1)]
    assert [one.step for one in share_checkpoints(ALONE, tmp_path / "c", found)] == [2, 1]
    heard = share_checkpoints(follower("2", "1", ""), tmp_path / "c", ())
    assert [one.step for one in heard] == [2, 1]
