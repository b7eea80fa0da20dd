"""Launches the workers of one run as processes of this machine, and waits for them.

Every worker runs the same command, and gets its index from `TF_CONFIG`, as under a cluster's
scheduler. Each line that a worker prints is shown with the worker's index in front. Signals to this
process are forwarded to all workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from lingo.processes.parent import prepare_die_with_parent
from lingo.processes.processes import VARIABLE, Cluster, LostWorker
from lingo.processes.signals import Signals
from lingo.storage.files import explain_write_errors

HOST = "127.0.0.1"
LOG = "worker_{}.log"

_POLL_SECONDS = 0.05
_MAX_PIECE_BYTES = 2**16  # maximum length of a printed line; longer lines are split


class Patience(NamedTuple):
    """How many seconds to wait for the other workers after one worker has ended."""

    grace: float = 90.0  # seconds until SIGTERM, in which they notice, save what they can, and end
    kill: float = 15.0  # seconds from SIGTERM until SIGKILL


PATIENCE = Patience()


class Ending(NamedTuple):
    """How a worker ended."""

    index: int  # the worker's index
    code: int  # the worker's exit code, or the negative number of the signal that killed it

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def words(self) -> str:
        if self.code >= 0:
            return f"ended with code {self.code}"
        return f"was killed by {signal.Signals(-self.code).name}"


def run(
    program: Sequence[str],
    cluster: Sequence[str],
    *,
    signals: Signals,
    logs: Path | None = None,
    patience: Patience = PATIENCE,
) -> list[Ending]:
    """Starts the workers of a run and waits for all; returns their endings in order of time.

    When a worker has ended, the other workers get some time to end. Then they are terminated, and
    finally killed. At the second Ctrl+C, the workers are interrupted and then killed, and
    KeyboardInterrupt is raised.

    Args:
        program: the command that every worker runs.
        cluster: an address per worker.
        signals: the signals that this process has received, which are forwarded.
        logs: a directory for a file with each worker's lines; None: no files.
        patience: how long to wait for the other workers.

    Raises StorageError if a file in `logs` cannot be written.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_log(logs, index)) for index in range(len(cluster))]
        readers: list[threading.Thread] = []
        stack.callback(_join, readers)
        workers = stack.enter_context(_start_workers(program, cluster))
        for index, (worker, file) in enumerate(zip(workers, files, strict=True)):
            readers.append(_reader(index, worker.stdout, sys.stdout, file))
            readers.append(_reader(index, worker.stderr, sys.stderr, file))
        stack.enter_context(_suspend_together(workers))
        return _wait_for_workers(workers, signals, patience)


def first_failed(endings: Sequence[Ending]) -> Ending | None:
    """Returns how the first worker that failed has ended, or None if no worker failed.

    A worker that failed because it lost another worker counts only if no worker failed by itself.
    """
    failed = [ending for ending in endings if ending.code != 0]
    own = [ending for ending in failed if ending.code != LostWorker.exit_code]
    return next(iter([*own, *failed]), None)


def free_addresses(number: int) -> list[str]:
    """Returns `number` different unused addresses `host:port` on this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for unbound in sockets:
            unbound.bind((HOST, 0))
        return [f"{HOST}:{bound.getsockname()[1]}" for bound in sockets]


# ---- processes ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _start_workers(program: Sequence[str], cluster: Sequence[str]) -> Iterator[list[Any]]:
    """A context that starts a process per worker, and at its end kills those that still run."""
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(len(cluster)):
            workers.append(_start(program, Cluster(tuple(cluster), index)))
        yield workers
    finally:
        _end(workers, signal.SIGKILL)
        for worker in workers:
            worker.wait()


def _start(program: Sequence[str], cluster: Cluster) -> subprocess.Popen[bytes]:
    config = {
        "cluster": {"worker": cluster.workers},
        "task": {"type": "worker", "index": cluster.index},
    }
    return subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {VARIABLE: json.dumps(config), "PYTHONUNBUFFERED": "1"},
        process_group=0,  # a signal of the terminal reaches a worker once, through this process
        preexec_fn=prepare_die_with_parent(signal.SIGKILL),
    )


def _end(workers: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for worker in workers:
        worker.send_signal(number)  # does nothing if `poll` has seen that the worker ended


def _wait_for_workers(
    workers: Sequence[subprocess.Popen[bytes]], signals: Signals, patience: Patience
) -> list[Ending]:
    """Waits for all workers, forwards signals meanwhile, and returns how they ended."""
    endings: dict[int, Ending] = {}
    forwarded, first_end = False, 0.0
    deadlines = [(signal.SIGTERM, patience.grace), (signal.SIGKILL, patience.grace + patience.kill)]
    try:
        while True:
            codes = {index: worker.poll() for index, worker in enumerate(workers)}
            for index, code in codes.items():
                if code is not None and index not in endings:
                    endings[index] = Ending(index, code)
            if len(endings) == len(workers):
                return list(endings.values())
            if signals.received is not None and not forwarded:
                _end(workers, signals.received)
                forwarded = True
            if endings:
                first_end = first_end or time.monotonic()
                _end([w for w in workers if _is_stopped(w)], signal.SIGKILL)  # would never end
                if deadlines and time.monotonic() - first_end >= deadlines[0][1]:
                    _end(workers, deadlines.pop(0)[0])
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        _end(workers, signal.SIGINT)
        deadline = time.monotonic() + patience.kill
        while time.monotonic() < deadline and any(worker.poll() is None for worker in workers):
            time.sleep(_POLL_SECONDS)
        raise


def _is_stopped(worker: subprocess.Popen[bytes]) -> bool:
    """Returns whether a process is suspended, as by SIGSTOP."""
    if worker.returncode is not None:
        return False
    text = Path(f"/proc/{worker.pid}/stat").read_text()  # exists until `poll` sees its end
    return text.rpartition(")")[2].split()[0] == "T"


@contextlib.contextmanager
def _suspend_together(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """A context in which Ctrl+Z suspends the workers with this process, and `fg` continues them.

    The workers are in other process groups, which the terminal's signals do not reach.
    """

    def suspend(*_: Any) -> None:
        _end(workers, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when it is continued
        _end(workers, signal.SIGCONT)

    if threading.current_thread() is not threading.main_thread():  # such threads get no signals
        yield
        return
    before = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


# ---- output ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _log(folder: Path | None, index: int) -> Iterator[IO[bytes] | None]:
    """Opens a worker's log in `folder` for appending; yields None if there is no folder."""
    if folder is None:
        yield None
        return
    path = folder / LOG.format(index)
    with contextlib.ExitStack() as stack:
        with explain_write_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "ab", buffering=0))
        yield file


def _reader(
    index: int, stream: IO[bytes], shown: TextIO, log: IO[bytes] | None
) -> threading.Thread:
    """Starts a thread that copies a worker's lines to `shown` and to `log`.

    In `shown`, the worker's index stands before each line.
    """

    def read() -> None:
        with stream:
            while line := stream.readline(_MAX_PIECE_BYTES):
                line = line.removesuffix(b"\n") + b"\n"
                _write(shown.buffer, b"[%d] %b" % (index, line))
                if log is not None:
                    _write(log, line)

    thread = threading.Thread(target=read, name=f"worker {index}", daemon=True)
    thread.start()
    return thread


def _write(file: IO[bytes], line: bytes) -> None:
    """Writes a line in one call, so that lines of two workers do not mix."""
    with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the disk is full
        file.write(line)
        file.flush()


def _join(readers: list[threading.Thread]) -> None:
    """Waits up to 1 s for each reader thread: a worker's child may keep the stream open."""
    for reader in readers:
        reader.join(timeout=1)
