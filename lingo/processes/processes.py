"""A run of several processes: their addresses, how they agree, and what happens after a loss.

`TF_CONFIG`, which `lingo launch` and every scheduler for TensorFlow sets, lists the processes:

    {"cluster": {"worker": ["10.0.0.1:4000", "10.0.0.2:4000"]},
     "task": {"type": "worker", "index": 0}}

Every process runs the same command and makes the same decisions. The first worker, the leader,
writes the run directory; the other workers read it. `Group` implements their communication.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from lingo.config.base.errors import LingoError
from lingo.config.params import ParamError
from lingo.processes.signals import Signals, Stop

_T = TypeVar("_T")

VARIABLE = "TF_CONFIG"
LEADER = 0  # index of the leader

_MAX_WORKERS = 65_536
_MAX_PORT = 65_535


class LostWorker(LingoError):
    """Another process of the run has ended or does not answer, so the run cannot continue."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class Processes(Protocol):
    """One process's means to agree with the other processes of its run.

    The processes act as one run inside `with runtime.join() as processes`. An error that leaves the
    block also ends the other processes. All processes must call `any`, `max`, `barrier` and `share`
    equally often; these methods raise LostWorker if a process does not answer. `index` is this
    process's index, 0 for the leader; `count` is the number of processes.
    """

    index: int
    count: int

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader, which writes the run directory."""
        ...

    def any(self, flag: bool) -> bool:
        """Returns whether `flag` is true in any process. Call it in the main thread only."""
        ...

    def max(self, number: int) -> int:
        """Returns the largest `number` of all processes (0 or more). In the main thread only."""
        ...

    def barrier(self, name: str) -> None:
        """Waits until all processes have called this, in any thread; names may be used again."""
        ...

    def share(self, name: str, value: str | None) -> str:
        """Returns the leader's value in all processes, in any thread; non-leaders pass None."""
        ...

    def check(self) -> None:
        """Raises LostWorker if another process is known to be lost; asks no other process."""
        ...

    def blame(self, error: LingoError) -> LingoError:
        """Returns LostWorker if a lost process caused the error, else the error.

        This takes some seconds, because a process counts as lost only after seconds of silence.
        """
        ...


class _Alone:
    """Implements `Processes` for a single process."""

    index = 0
    count = 1
    is_leader = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def any(self, flag: bool) -> bool:
        return flag

    def max(self, number: int) -> int:
        return number

    def barrier(self, name: str) -> None: ...

    def share(self, name: str, value: str | None) -> str:
        if value is None:
            raise ValueError(f"the leader has no value for {name!r}")
        return value

    def check(self) -> None: ...

    def blame(self, error: LingoError) -> LingoError:
        return error


ALONE: Processes = _Alone()


class AgreedSignals(Signals):
    """Signals of all processes: if a process receives a signal, all stop at the same step.

    Processes compute steps together, so if a process stopped alone, the other processes would wait
    for it. Where `Signals` may raise Stop, all processes first share the signals that they have
    received; so all must come to such points equally often.
    """

    def __init__(
        self, own: Signals, processes: Processes, pause: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Installs no handlers: `own` has them. In `pause` the watchdog allows long waits."""
        super().__init__()
        self._own, self._processes, self._pause = own, processes, pause

    @contextlib.contextmanager
    def stop_at_once(self) -> Iterator[None]:
        """Lets a signal end the body; then raises Stop if any process has received a signal."""
        with contextlib.suppress(Stop), self._own.stop_at_once():
            yield
        self.check()

    def check(self) -> None:
        """Raises Stop if any process has received a signal; all processes must call this."""
        with self._pause():
            number = self._processes.max(self._own.received or 0)
        if number:
            self.received = number
            raise Stop(number)

    def iterate(self, items: Iterable[_T], *, joint: bool = True) -> Iterator[_T]:
        return super().iterate(items) if joint else iter(items)


# ---- TF_CONFIG ---------------------------------------------------------------------------------


class Cluster(NamedTuple):
    """A run's workers: their addresses (host:port, the leader first), and this process's index."""

    workers: tuple[str, ...]
    index: int

    def name(self, index: int) -> str:
        """Returns a worker's name with its address, for messages."""
        return f"worker {index} ({self.workers[index]})"


def cluster(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the workers that `TF_CONFIG` names, or None if it names fewer than two.

    A `chief` counts as the first worker, as in TensorFlow. Raises ParamError if `TF_CONFIG` is not
    valid.
    """
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParamError(f"{VARIABLE} is not JSON: {error}: {text!r:.80}") from None
    chiefs, workers = (_addresses(config, kind) for kind in ("chief", "worker"))
    addresses = (*chiefs, *workers)
    if not addresses:
        if not _table(config, "cluster"):
            return None  # for TensorFlow, too, {} means a single process
        raise ParamError(f"{VARIABLE} names no worker: cluster.worker is a list of host:port")
    if len(chiefs) > 1 or len(addresses) > _MAX_WORKERS:
        raise ParamError(
            f"{VARIABLE} has {len(chiefs)} chiefs and {len(workers)} workers: at most one chief and"
            f" {_MAX_WORKERS:,} processes are possible"
        )
    if twice := sorted({a for a in addresses if addresses.count(a) > 1}):
        raise ParamError(f"{VARIABLE}: two workers have the address {twice[0]}")
    found = Cluster(addresses, _index(_table(config, "task"), chiefs, workers))
    return found if len(addresses) > 1 else None


def _table(config: Any, name: str) -> Mapping[str, Any]:
    value = config.get(name, {}) if isinstance(config, dict) else config
    if not isinstance(value, dict):
        raise ParamError(f"{VARIABLE}: {name} is {value!r:.80}, not a table: {{...}}")
    return value


def _addresses(config: Any, kind: str) -> tuple[str, ...]:
    found = _table(config, "cluster").get(kind, [])
    if not isinstance(found, list) or not all(map(_is_address, found)):
        raise ParamError(
            f"{VARIABLE}: cluster.{kind} is {found!r:.80}, not a list of host:port, such as"
            " ['10.0.0.1:4000', '10.0.0.2:4000']"
        )
    return tuple(found)


def _is_address(value: Any) -> bool:
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        return False
    host, _, port = value.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _MAX_PORT


def _index(task: Mapping[str, Any], chiefs: tuple[str, ...], workers: tuple[str, ...]) -> int:
    """Returns the index of this process in the list of chief and workers."""
    kind, index = task.get("type", "worker"), task.get("index")
    known = {"chief": chiefs, "worker": workers}
    if kind not in known:
        raise ParamError(
            f"{VARIABLE}: task.type is {kind!r:.80}: processes are workers, or the chief among"
            " them. To evaluate during training: lingo eval --run=DIR --watch"
        )
    if type(index) is not int or not 0 <= index < len(known[kind]):
        raise ParamError(
            f"{VARIABLE}: task.index is {index!r:.80}, but there are {len(known[kind])} of type"
            f" {kind!r}: 0 to {len(known[kind]) - 1}"
        )
    return index + (len(chiefs) if kind == "worker" else 0)
