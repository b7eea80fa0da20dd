"""Heartbeats: every process of a run sends one per second, and detects lost processes.

The leader listens to all processes and reports which is lost; the others listen to the leader. One
thread sends and one listens, because either may wait long for a service that is gone. A process
that is suspended, or holds Python's lock in C code, sends no heartbeats.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from lingo.processes.processes import LEADER, Cluster, LostWorker
from lingo.processes.signals import Stop

_log = logging.getLogger(__name__)


class KeyValues(Protocol):
    """The coordination service of an engine, hosted by the leader; callable from any thread."""

    def put(self, key: str, value: str) -> None:
        """Sets a value, and replaces an earlier one.

        Raises:
            ConnectionError: if the service does not answer.
        """
        ...

    def get(self, key: str, *, timeout_seconds: float) -> str | None:
        """Returns a value as soon as it is set; None if it is not set in time.

        Raises:
            ConnectionError: if the service does not answer.
        """
        ...

    def delete(self, key: str) -> None:
        """Removes a value.

        Raises:
            ConnectionError: if the service does not answer.
        """
        ...

    def abort(self, reason: str) -> None:
        """Makes joint computations of this process fail, if the engine can do that."""
        ...


class Patience(NamedTuple):
    """How long a process waits, in seconds.

    Attributes:
        beat: time from one heartbeat to the next.
        start: how long it waits for the first heartbeat of another process.
        silence: a process without heartbeats for so long is lost.
        blame: the same, once a joint computation has failed here.
        stuck: how long a joint computation may run on when a process is lost; then this one exits.
        leave: how long an ending process waits until the others know that it has ended.
    """

    beat: float = 1.0
    start: float = 300.0
    silence: float = 30.0
    blame: float = 10.0
    stuck: float = 15.0
    leave: float = 5.0


class Sign(NamedTuple):
    """A heartbeat: what a process reports of itself.

    Attributes:
        beat: changes with every heartbeat.
        is_failing: whether a joint computation has failed.
        is_over: whether the process has ended.
        words: why it has ended; "" if it ended normally.
        signal: number of the signal that has ended it, or 0.
        lost: index of a lost process, a description, and its signal or 0; the leader reports it.
    """

    beat: int = 0
    is_failing: bool = False
    is_over: bool = False
    words: str = ""
    signal: int = 0
    lost: tuple[int, str, int] | None = None


class _Heard(NamedTuple):
    """The last heartbeat of a process, and the seconds of silence since."""

    sign: Sign | None = None
    quiet_seconds: float = 0.0


class Pulse:
    """Sends the heartbeats of a process, and listens to those of others."""

    def __init__(
        self, cluster: Cluster, service: KeyValues, *, prefix: str, patience: Patience
    ) -> None:
        """Sends nothing yet.

        Args:
            cluster: addresses of the processes.
            service: key-value store for the heartbeats.
            prefix: of its keys.
            patience: how long to wait.
        """
        self._cluster, self._service, self._patience = cluster, service, patience
        self._prefix = prefix
        others = range(1, len(cluster.workers))
        self._heard = {i: _Heard() for i in (others if cluster.index == LEADER else [LEADER])}
        self._own, self._changing = Sign(), threading.Lock()
        self._lost: LostWorker | None = None
        self._signal = 0  # signal that has ended the lost process
        self._together: object | None = None  # a new object for each entry of `together`
        self._is_closed, self._has_said_end = threading.Event(), threading.Event()
        self._news = threading.Event()

    def start(self) -> None:
        """Starts to send and to listen."""
        for work in (self._speak, self._listen):
            threading.Thread(target=work, name="pulse", daemon=True).start()

    def check(self) -> None:
        """Raises LostWorker if a process is lost, and Stop if a signal has ended one."""
        if self._signal:
            raise Stop(self._signal)
        if self._lost is not None:
            raise self._lost

    @property
    def lost(self) -> LostWorker | None:
        """The error for the lost process, whatever has ended it; None if no process is lost."""
        return self._lost

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Marks a joint computation: if a process is lost and it does not end, this one exits."""
        before, self._together = self._together, object()
        try:
            yield
        finally:
            self._together = before

    def fail(self) -> None:
        """Reports that a joint computation has failed here; waits until the cause is known."""
        self._say(is_failing=True)
        while self._lost is None and not self._is_settled():
            time.sleep(self._patience.beat / 10)

    def end(self, words: str = "", signal: int = 0) -> None:
        """Reports that this process has ended, and stops; the leader first waits for the others.

        Args:
            words: why it has ended; "" if it ended normally.
            signal: number of the signal that has ended it, or 0.
        """
        self._say(is_over=True, words=words, signal=signal)
        deadline = time.monotonic() + self._patience.leave
        self._has_said_end.wait(self._patience.leave)
        while self._leads() and not self._are_over() and time.monotonic() < deadline:
            time.sleep(self._patience.beat / 10)
        self._is_closed.set()

    def _is_settled(self) -> bool:
        """Returns whether no process is to blame, because all have failed or ended."""
        if self._leads():
            signs = [one.sign for one in self._heard.values()]
            return all(sign is not None and (sign.is_failing or sign.is_over) for sign in signs)
        return self._are_over()

    def _leads(self) -> bool:
        return self._cluster.index == LEADER

    def _are_over(self) -> bool:
        return all(one.sign is not None and one.sign.is_over for one in self._heard.values())

    # ---- sending

    def _say(self, **changed: Any) -> None:
        self._change(**changed)
        self._news.set()

    def _change(self, **changed: Any) -> Sign:
        with self._changing:
            self._own = self._own._replace(**changed)
            return self._own

    def _speak(self) -> None:
        while not self._is_closed.is_set():
            sign = self._change(beat=self._own.beat + 1)
            with contextlib.suppress(ConnectionError):
                self._service.put(self._key(self._cluster.index), json.dumps(sign))
                if sign.is_over:
                    self._has_said_end.set()
            self._news.wait(self._patience.beat)
            self._news.clear()

    def _key(self, index: int) -> str:
        return f"{self._prefix}/pulse/{index}"

    # ---- listening

    def _listen(self) -> None:
        last = time.monotonic()
        while not self._is_closed.wait(self._patience.beat / 2):
            seconds, last = time.monotonic() - last, time.monotonic()
            for index in self._heard:
                # Count a few beats at most: after a suspension of this process, silence is its own.
                self._hear(index, min(seconds, 5 * self._patience.beat))
                if self._lost is None and (found := self._judge(index)) is not None:
                    self._give_up(*found)

    def _hear(self, index: int, seconds: float) -> None:
        sign, (before, quiet_seconds) = None, self._heard[index]
        with contextlib.suppress(ConnectionError):
            text = self._service.get(self._key(index), timeout_seconds=self._patience.beat)
            sign = Sign(*json.loads(text)) if text is not None else None
        if sign is None or sign == before:
            self._heard[index] = _Heard(before, quiet_seconds + seconds)
        else:
            self._heard[index] = _Heard(sign)

    def _judge(self, index: int) -> tuple[int, str, int] | None:
        """Returns the lost process, how it was lost, and its signal, as one process shows it."""
        sign, quiet_seconds = self._heard[index]
        if sign is not None and sign.lost is not None:
            return sign.lost
        if sign is not None and sign.is_over:
            is_alike = self._own.is_failing and sign.is_failing  # the same has failed in both
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
        said = f"{who} {how}"
        self._lost, self._signal = LostWorker(index, said), number
        self._say(lost=(index, how, number))
        stuck = self._together
        self._service.abort(said)
        deadline = time.monotonic() + self._patience.stuck
        while stuck is not None and self._together is stuck and time.monotonic() < deadline:
            time.sleep(self._patience.beat / 10)
        if stuck is not None and self._together is stuck:
            _log.error("%s, and what was computed with it does not end", said)
            os._exit(LostWorker.exit_code)
