"""Processes of a run that agree through the coordination service of TensorFlow or JAX.

with Group(cluster, service) as processes:      # from here on, processes watch each other
    step = processes.share("step", "120" if processes.is_leader else None)
    while not processes.any(signals.received is not None):
        ...                                     # as many iterations in every process

Processes watch each other by heartbeats, one per second. The leader listens to all processes and
reports a lost process; the other processes listen to the leader. One thread sends and another
thread listens, because each may wait long for a service that is gone. A process that is suspended,
or holds Python's lock in C code, sends no heartbeats.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from lingo.config.base.errors import LingoError
from lingo.processes.processes import LEADER, Cluster, LostWorker
from lingo.processes.signals import Stop

_T = TypeVar("_T")

_ASK_SECONDS = 5.0  # timeout of a `get` in the service, which is then repeated
_log = logging.getLogger(__name__)


class KeyValues(Protocol):
    """A key-value store that the leader hosts for all processes; callable from any thread.

    `put`, `get` and `delete` raise ConnectionError if the service does not answer.
    """

    def put(self, key: str, value: str) -> None:
        """Sets a key's value, and replaces an earlier value."""
        ...

    def get(self, key: str, *, timeout_seconds: float) -> str | None:
        """Returns a key's value as soon as it is set; None if it is not set in time."""
        ...

    def delete(self, key: str) -> None: ...

    def abort(self, reason: str) -> None:
        """Makes joint computations of this process fail, if TensorFlow or JAX can do that."""
        ...


class Patience(NamedTuple):
    """How long a process waits for other processes, in seconds."""

    beat: float = 1.0  # from one heartbeat to the next
    start: float = 300.0  # for the first heartbeat of another process
    silence: float = 30.0  # a process without heartbeats for this time is lost
    blame: float = 10.0  # like `silence`, once a joint computation has failed in this process
    grace: float = 15.0  # for a joint computation to end after a loss; then this process exits
    leave: float = 5.0  # at its end, until the other processes know that it has ended


class Sign(NamedTuple):
    """A heartbeat: a process's report on itself."""

    beat: int = 0  # changes with every heartbeat
    is_failing: bool = False  # whether a joint computation has failed
    is_over: bool = False  # whether the process has ended
    words: str = ""  # why the process has ended; "" if it ended normally
    signal: int = 0  # number of the signal that has ended the process, or 0
    # A process that the sender has found lost: its index, a description, its signal or 0.
    lost_worker: tuple[int, str, int] | None = None


class _LastSign(NamedTuple):
    """The last heartbeat received from a process, and the seconds since then."""

    sign: Sign | None = None
    quiet_seconds: float = 0.0


class Pulse:
    """Sends a process's heartbeats, and listens to other processes' heartbeats.

    `lost_worker` is the error for a lost process, or None if no process is lost.
    """

    def __init__(
        self, cluster: Cluster, service: KeyValues, *, prefix: str, patience: Patience
    ) -> None:
        """Sends nothing yet; keys of heartbeats in the service begin with `prefix`."""
        self._cluster, self._service, self._patience = cluster, service, patience
        self._prefix = prefix
        self._leads = cluster.index == LEADER
        others = range(1, len(cluster.workers)) if self._leads else [LEADER]
        self._last_signs = {i: _LastSign() for i in others}
        self._own, self._change_lock = Sign(), threading.Lock()
        self.lost_worker: LostWorker | None = None
        self._signal = 0  # signal that has ended the lost process
        self._computation: object | None = None  # a new object for each joint computation
        self._is_closed, self._has_sent_end = threading.Event(), threading.Event()
        self._news = threading.Event()

    def start(self) -> None:
        for work in (self._send_signs, self._listen):
            threading.Thread(target=work, name="pulse", daemon=True).start()

    def check(self) -> None:
        """Raises LostWorker if a process is lost, or Stop if a signal has ended it."""
        if self._signal:
            raise Stop(self._signal)
        if self.lost_worker is not None:
            raise self.lost_worker

    @contextlib.contextmanager
    def joint_computation(self) -> Iterator[None]:
        """Marks the body as a joint computation; if another process is lost, this one may exit."""
        before, self._computation = self._computation, object()
        try:
            yield
        finally:
            self._computation = before

    def fail(self) -> None:
        """Reports that a joint computation has failed here; waits until the cause is known."""
        self._report(is_failing=True)
        while self.lost_worker is None and not self._is_settled():
            time.sleep(self._patience.beat / 10)

    def end(self, words: str = "", signal: int = 0) -> None:
        """Reports that this process has ended, then stops; the leader first awaits all reports."""
        self._report(is_over=True, words=words, signal=signal)
        deadline = time.monotonic() + self._patience.leave
        self._has_sent_end.wait(self._patience.leave)
        while self._leads and not self._are_over() and time.monotonic() < deadline:
            time.sleep(self._patience.beat / 10)
        self._is_closed.set()

    def _is_settled(self) -> bool:
        """Returns whether no process is to blame, because all have failed or ended."""
        if self._leads:
            signs = [last.sign for last in self._last_signs.values()]
            return all(sign is not None and (sign.is_failing or sign.is_over) for sign in signs)
        return self._are_over()

    def _are_over(self) -> bool:
        signs = [last.sign for last in self._last_signs.values()]
        return all(sign is not None and sign.is_over for sign in signs)

    # ---- sending

    def _report(self, **changes: Any) -> None:
        self._change(**changes)
        self._news.set()

    def _change(self, **changes: Any) -> Sign:
        with self._change_lock:
            self._own = self._own._replace(**changes)
            return self._own

    def _send_signs(self) -> None:
        while not self._is_closed.is_set():
            sign = self._change(beat=self._own.beat + 1)
            with contextlib.suppress(ConnectionError):
                self._service.put(self._key(self._cluster.index), json.dumps(sign))
                if sign.is_over:
                    self._has_sent_end.set()
            self._news.wait(self._patience.beat)
            self._news.clear()

    def _key(self, index: int) -> str:
        return f"{self._prefix}/pulse/{index}"

    # ---- listening

    def _listen(self) -> None:
        last = time.monotonic()
        while not self._is_closed.wait(self._patience.beat / 2):
            seconds, last = time.monotonic() - last, time.monotonic()
            for index in self._last_signs:
                # At most 5 beats count as silence: this process itself may have been suspended.
                self._receive(index, min(seconds, 5 * self._patience.beat))
                if self.lost_worker is None and (found := self._judge(index)) is not None:
                    self._give_up(*found)

    def _receive(self, index: int, seconds: float) -> None:
        sign, (before, quiet_seconds) = None, self._last_signs[index]
        with contextlib.suppress(ConnectionError):
            text = self._service.get(self._key(index), timeout_seconds=self._patience.beat)
            sign = Sign(*json.loads(text)) if text is not None else None
        if sign is None or sign == before:
            self._last_signs[index] = _LastSign(before, quiet_seconds + seconds)
        else:
            self._last_signs[index] = _LastSign(sign)

    def _judge(self, index: int) -> tuple[int, str, int] | None:
        """Returns a lost process's index, description and signal, or None if none is lost.

        The last heartbeat of process `index` decides: whether it is lost, or reports a loss.
        """
        sign, quiet_seconds = self._last_signs[index]
        if sign is not None and sign.lost_worker is not None:
            return sign.lost_worker
        if sign is not None and sign.is_over:
            # The same joint computation failed in both processes.
            is_alike = self._own.is_failing and sign.is_failing
            is_well = not sign.words or is_alike or self._own.is_over
            return None if is_well else (index, f"has ended: {sign.words}", sign.signal)
        limit = self._patience.start if sign is None else self._patience.silence
        limit = min(limit, self._patience.blame) if self._own.is_failing else limit
        if quiet_seconds < limit:
            return None
        return index, f"gave no sign of life for {limit:.0f} s", 0

    def _give_up(self, index: int, how: str, number: int) -> None:
        """Reports a lost process, and exits if a joint computation keeps waiting for it."""
        who = self._cluster.name(index)
        if index == self._cluster.index:
            who += ", this process,"
        message = f"{who} {how}"
        self.lost_worker, self._signal = LostWorker(index, message), number
        self._report(lost_worker=(index, how, number))
        computation = self._computation
        self._service.abort(message)
        if computation is None:
            return
        deadline = time.monotonic() + self._patience.grace
        while self._computation is computation and time.monotonic() < deadline:
            time.sleep(self._patience.beat / 10)
        if self._computation is computation:
            _log.error("%s, and the computation with it does not end", message)
            os._exit(LostWorker.exit_code)


_PATIENCE = Patience()


class Group:
    """Implements `Processes` with a coordination service. A process makes only one such object."""

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
        """Returns a context for a joint computation, which a lost process may block.

        If a process is lost and the computation does not end soon, this process exits.
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

    def check(self) -> None:
        self._pulse.check()

    def blame(self, error: LingoError) -> LingoError:
        self._pulse.fail()
        return self._pulse.lost_worker or error

    def _agree(self, name: str, own: int) -> int:
        """Returns the largest `own` of all processes; the leader collects and distributes it."""
        question = self._next_question(name)
        key = self._key(name, question)
        if self.is_leader:
            others = [int(self._get(f"{key}/{index}")) for index in range(1, self.count)]
            largest = max(own, *others)
            self._put(key, str(largest))
            if question:
                # Every process asks again, so every process has read the previous answer.
                self._delete(self._key(name, question - 1))
            return largest
        self._put(f"{key}/{self.index}", str(own))
        largest = int(self._get(key))
        self._delete(f"{key}/{self.index}")
        return largest

    def _next_question(self, name: str) -> int:
        """Returns how often this process has asked a question with this name before."""
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
        """Deletes a value that all have read. After a loss only the next question raises."""
        with contextlib.suppress(LostWorker, Stop):
            self._call(lambda: self._service.delete(key))

    def _call(self, ask: Callable[[], _T]) -> _T | None:
        """Asks the service in a new thread, because a lost leader may block the call for ever."""
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
