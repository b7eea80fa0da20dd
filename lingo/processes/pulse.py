"""Signs of life: every process of a run gives one a second, and finds out whether another is lost.

The leader listens to all, and says who is lost; the others listen to the leader. Two threads do it,
one to speak and one to listen, for either may wait long for a service that is gone. A process that
is stopped, or holds Python's lock in C code, gives no signs of life.
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
    """The coordination service of an engine, which lives in the leader; for any thread."""

    def put(self, key: str, value: str) -> None:
        """Sets a value, in the place of the one before.

        Raises:
            ConnectionError: if the service does not answer.
        """
        ...

    def get(self, key: str, *, timeout_seconds: float) -> str | None:
        """Returns a value as soon as it is set; None if it is not for so long.

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
        """Makes what this process computes together with others fail, if the engine can do that."""
        ...


class Patience(NamedTuple):
    """How long a process waits, in seconds.

    Attributes:
        beat: from one sign of life to the next.
        start: for the first one.
        silence: who gives none for so long is lost.
        blame: the same, once something has failed here that needs all processes.
        stuck: for what is computed together to end, when a process is lost; then this one ends.
        leave: for the others to hear that this one has ended.
    """

    beat: float = 1.0
    start: float = 300.0
    silence: float = 30.0
    blame: float = 10.0
    stuck: float = 15.0
    leave: float = 5.0


class Sign(NamedTuple):
    """What a process says of itself.

    Attributes:
        beat: changes with every sign.
        is_failing: whether something has failed that needs all processes.
        is_over: whether it has ended.
        words: why it has, if that was no good end.
        signal: that has ended it, or 0.
        lost: who is, in what way, and by which signal or 0; the leader knows.
    """

    beat: int = 0
    is_failing: bool = False
    is_over: bool = False
    words: str = ""
    signal: int = 0
    lost: tuple[int, str, int] | None = None


class _Heard(NamedTuple):
    """What was heard last of a process, and for how many seconds nothing since."""

    sign: Sign | None = None
    quiet_seconds: float = 0.0


class Pulse:
    """The signs of life that a process gives, and those that it listens to."""

    def __init__(
        self, cluster: Cluster, service: KeyValues, *, prefix: str, patience: Patience
    ) -> None:
        """Says nothing yet.

        Args:
            cluster: whose.
            service: where signs are given.
            prefix: of its keys.
            patience: how long to wait.
        """
        self._cluster, self._service, self._patience = cluster, service, patience
        self._prefix = prefix
        others = range(1, len(cluster.workers))
        self._heard = {i: _Heard() for i in (others if cluster.index == LEADER else [LEADER])}
        self._own, self._changing = Sign(), threading.Lock()
        self._lost: LostWorker | None = None
        self._signal = 0  # that has ended it
        self._together: object | None = None  # another one for each stay in `together`
        self._is_closed, self._has_said_end = threading.Event(), threading.Event()
        self._news = threading.Event()

    def start(self) -> None:
        """Begins to speak and to listen."""
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
        """The process that is lost, whatever has ended it."""
        return self._lost

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Computes what needs all processes: this one ends if one is lost and that does not end."""
        before, self._together = self._together, object()
        try:
            yield
        finally:
            self._together = before

    def fail(self) -> None:
        """Says that something has failed here that needs all processes; waits for who is lost."""
        self._say(is_failing=True)
        while self._lost is None and not self._is_settled():
            time.sleep(self._patience.beat / 10)

    def end(self, words: str = "", signal: int = 0) -> None:
        """Says that this process has ended, and stops; the leader waits for the others to hear it.

        Args:
            words: why, if that was no good end.
            signal: that has ended it, or 0.
        """
        self._say(is_over=True, words=words, signal=signal)
        deadline = time.monotonic() + self._patience.leave
        self._has_said_end.wait(self._patience.leave)
        while self._leads() and not self._are_over() and time.monotonic() < deadline:
            time.sleep(self._patience.beat / 10)
        self._is_closed.set()

    def _is_settled(self) -> bool:
        """Returns whether nobody is to blame: it failed in all, as far as the leader knows."""
        if self._leads():
            signs = [one.sign for one in self._heard.values()]
            return all(sign is not None and (sign.is_failing or sign.is_over) for sign in signs)
        return self._are_over()

    def _leads(self) -> bool:
        return self._cluster.index == LEADER

    def _are_over(self) -> bool:
        return all(one.sign is not None and one.sign.is_over for one in self._heard.values())

    # ---- speaking

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
                # at most some beats: if this process was stopped for long, the others were not
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
        """Returns who is lost, how, and by which signal, as far as a process shows."""
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
        """Says who is lost, and sees to it that this process does not wait for it."""
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
