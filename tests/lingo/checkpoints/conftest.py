"""Small tensors, checkpoints of them, harm done to files, and threads that act as processes."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lingo.checkpoints import manifest, store
from lingo.checkpoints.store import Retention
from lingo.config.base.errors import LingoError
from lingo.processes.processes import LostWorker

SECONDS = 60.0  # by which a thread that is not stuck has done anything here


def tensors(scale=1.0):
    grid = np.float32(scale) * np.arange(12, dtype=np.float32).reshape(3, 4)
    return {"weights/ffn/w": grid, "slots/m/ffn/w": grid / 2, "state/count": np.int64(7)}


def save(directory, step, *, keep=3, scale=1.0, **options):
    given = {"tensors": tensors(scale).items(), "metadata": {"seed": 1}} | options
    return store.save(directory, step=step, retention=Retention(keep), **given)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def rewrite(path, **changes):
    """Writes a manifest that says something else, and whose digest is right."""
    file = path / manifest.MANIFEST
    body = json.loads(file.read_text())
    del body["sha256"]
    file.write_bytes(manifest.render(body | changes))


def reseal(path):
    """Writes the manifest anew with the digests of the files that are there."""
    files = json.loads((path / manifest.MANIFEST).read_text())["files"]
    rewrite(path, files={name: manifest.seal_file(path / name) for name in files})


class Crowd:
    """Threads that act as the processes of a run. One that dies does not clear up."""

    def __init__(self, count, deaths=()):
        """Each of `deaths` is (process, point): 0 before its first exchange, 1 after it, ..."""
        self.count, self.deaths = count, deaths
        self.over, self.lock, self.is_dead = threading.Event(), threading.Lock(), False
        self.barriers = {}
        self.shared = {}
        self.flags = [False] * count

    def run(self, action):
        """Returns what an action does in each process, or raises there; None of those that died."""
        with ThreadPoolExecutor(self.count) as threads:
            members = [Member(self, index) for index in range(self.count)]
            futures = [threads.submit(action, member) for member in members]
            alive = [not any(index == i for index, _ in self.deaths) for i in range(self.count)]
            found = [
                (future.exception(SECONDS) or future.result()) if is_alive else None
                for future, is_alive in zip(futures, alive, strict=True)
            ]
            self.seen = self.look() if self.deaths else None
            self.over.set()
        return found

    def barrier(self, name):
        """Returns where processes meet; none does any more when one has died."""
        with self.lock:
            found = self.barriers.setdefault(name, threading.Barrier(self.count))
            if self.is_dead:
                found.abort()
            return found

    def lose(self):
        """Ends all meetings."""
        with self.lock:
            self.is_dead = True
            for barrier in self.barriers.values():
                barrier.abort()

    def look(self):
        """Is replaced by a test that looks at what is there while the dead are dead."""


class Member:
    """One process of a crowd, in a thread of its own."""

    def __init__(self, crowd, index):
        self.crowd, self.index, self.count, self.points = crowd, index, crowd.count, 0
        self.is_leader = index == 0

    def any(self, flag):
        found = []
        self.crowd.flags[self.index] = flag
        self._exchange("any", lambda: found.append(any(self.crowd.flags)))
        return found[0]

    def barrier(self, name):
        self._exchange(name, lambda: None)

    def check(self):
        if self.crowd.is_dead:
            raise LostWorker(1 - self.index, "a process has ended")

    def share(self, name, value):
        assert (value is not None) == self.is_leader
        if value is not None:
            self.crowd.shared[name] = value
        found = []
        self._exchange(name, lambda: found.append(self.crowd.shared[name]))
        return found[0]

    def _exchange(self, name, read):
        self._may_die()
        try:
            self.crowd.barrier(name).wait(SECONDS)
            read()
            self.crowd.barrier(name).wait(SECONDS)
        except threading.BrokenBarrierError:
            raise LostWorker(1 - self.index, "a process has ended") from None
        self._may_die()

    def _may_die(self):
        self.points += 1
        if (self.index, self.points - 1) in self.crowd.deaths:
            self.crowd.lose()
            assert self.crowd.over.wait(SECONDS)
            raise LingoError("killed")


def give(name, value):
    """Returns a fixture that gives tests a function or a class of this file."""
    return pytest.fixture(lambda: value, name=name)


_crowd = give("crowd", Crowd)
_tensors = give("tensors", tensors)
_save = give("save", save)
_flip = give("flip", flip)
_rewrite = give("rewrite", rewrite)
_reseal = give("reseal", reseal)
