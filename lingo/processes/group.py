"""Processes that agree through the coordination service of their engine.

with Group(cluster, service) as processes:      # from here on each watches the others
    step = processes.share("step", "120" if processes.is_leader else None)
    while not processes.any(signals.received is not None):
        ...                                     # as many iterations in every process
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self, TypeVar

from lingo.config.base.errors import LingoError
from lingo.processes.processes import LEADER, Cluster, LostWorker
from lingo.processes.pulse import KeyValues, Patience, Pulse
from lingo.processes.signals import Stop

_T = TypeVar("_T")

_ASK_SECONDS = 5.0  # the longest that one `get` waits in the service before it is repeated
_PATIENCE = Patience()


class Group:
    """Implements `Processes` with a coordination service; one object for the life of a process."""

    def __init__(
        self, cluster: Cluster, service: KeyValues, *, patience: Patience = _PATIENCE
    ) -> None:
        self.index, self.count = cluster.index, len(cluster.workers)
        self._cluster, self._service, self._patience = cluster, service, patience
        self._num_entries = 0
        self._num_questions: collections.Counter[str] = collections.Counter()
        self._pulse = self._new_pulse()

    def __enter__(self) -> Self:
        self._num_entries += 1
        self._num_questions.clear()
        self._pulse = self._new_pulse()
        self._pulse.start()
        return self

    def _new_pulse(self) -> Pulse:
        self._prefix = f"lingo/{self._num_entries}"
        return Pulse(self._cluster, self._service, prefix=self._prefix, patience=self._patience)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            try:
                self.barrier("end")
            except BaseException as late:
                self._pulse.end(str(late))
                raise
            self._pulse.end()
        else:
            number = error.number if isinstance(error, Stop) else 0
            self._pulse.end(f"{type(error).__name__}: {error}", number)

    @property
    def is_leader(self) -> bool:
        return self.index == LEADER

    def joint_computation(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for computations of all processes, which a lost process may block.

        If a process is lost and the computation does not end, this process exits.
        """
        return self._pulse.joint_computation()

    def any(self, flag: bool) -> bool:
        return self.max(int(flag)) > 0

    def max(self, number: int) -> int:
        return self._agree("max", number)

    def barrier(self, name: str) -> None:
        self._agree(f"barrier/{name}", 0)

    def share(self, name: str, value: str | None) -> str:
        key = self._key(f"share/{name}", self._next_question(f"share/{name}"))
        if not self.is_leader:
            return self._get(key)
        if value is None:
            raise ValueError(f"the leader has no value for {name!r}")
        self._put(key, value)
        return value

    def blame(self, error: LingoError) -> LingoError:
        self._pulse.fail()
        return self._pulse.lost_worker or error

    def _agree(self, name: str, own: int) -> int:
        """Returns the largest number of all processes: the leader collects and distributes."""
        question = self._next_question(name)
        key = self._key(name, question)
        if self.is_leader:
            others = [int(self._get(f"{key}/{index}")) for index in range(1, self.count)]
            largest = max(own, *others)
            self._put(key, str(largest))
            if question:
                self._delete(self._key(name, question - 1))  # all have read it: they ask again
            return largest
        self._put(f"{key}/{self.index}", str(own))
        largest = int(self._get(key))
        self._delete(f"{key}/{self.index}")
        return largest

    def _next_question(self, name: str) -> int:
        """Returns how often this process has asked under a name before."""
        self._num_questions[name] += 1
        return self._num_questions[name] - 1

    def _key(self, name: str, number: int) -> str:
        return f"{self._prefix}/{name}/{number}"

    # ---- the service, which may be gone

    def _get(self, key: str) -> str:
        value = None
        while value is None:
            value = self._call(lambda: self._service.get(key, timeout_seconds=_ASK_SECONDS))
        return value

    def _put(self, key: str, value: str) -> None:
        self._call(lambda: self._service.put(key, value))

    def _delete(self, key: str) -> None:
        """Deletes what all have read; who has ended since is told at the next question."""
        with contextlib.suppress(LostWorker, Stop):
            self._call(lambda: self._service.delete(key))

    def _call(self, ask: Callable[[], _T]) -> _T | None:
        """Asks the service in a thread of its own, which a lost leader may block for ever."""
        answer: Future[_T] = Future()

        def work() -> None:
            try:
                answer.set_result(ask())
            except ConnectionError as error:
                answer.set_exception(error)

        threading.Thread(target=work, name="agree", daemon=True).start()
        while True:
            self._pulse.check()
            try:
                return answer.result(timeout=self._patience.beat)
            except TimeoutError:
                continue
            except ConnectionError:
                time.sleep(self._patience.beat)
                return None
