"""Runs `lingo` and scripts in forks of a process that has imported TensorFlow, which takes longest.

`fork_server.py serve ADDRESS` is that process, and prints when it can begin. A fork has the folder,
the environment and the standard streams of who asks for it; that is `fork_server.py run ADDRESS
PROGRAM ARGUMENTS`, which ends with the command's exit code, or a `Fork` in a test. A command whose
environment TensorFlow or lingo reads when they are imported needs a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

OWN_PROCESS = ("serve", "launch")  # verbs that are stopped by signals, or import no TensorFlow
READ_AT_IMPORT = ("LINGO_PARAMS", "JAX_", "XLA_", "TF_XLA_", "TF_ENABLE_")  # beginnings of names
MAX_BYTES = 1 << 17  # of a command with its environment


# ---- the server


def serve(address: str) -> None:
    """Forks a process for each connection, and tells it the process's number and its exit code."""
    import_modules()
    gc.freeze()  # else a collection in a fork would write to, and so copy, all that is imported
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, (
        f"a fork would have one of {len(threads)} threads, and wait for others"
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who keeps a connection
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return answer(connection)
            connection.close()


def answer(connection: socket.socket) -> None:
    """Runs the command that a connection asks for in a process of its own, and waits for it."""
    message, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
    if not message:  # who connected has ended
        os._exit(0)
    child = os.fork()
    if child == 0:
        connection.close()
        return run_as(descriptors, **json.loads(message))
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(BrokenPipeError):  # who asked has ended
        connection.send(b"%d" % child)
        connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def import_modules() -> None:
    """Imports what most commands need."""
    from lingo.cli.main import VERBS
    from lingo.config.lazy import tf

    tf.__version__  # noqa: B018  # imports it
    for verb in VERBS:
        importlib.import_module(f"lingo.cli.verbs.{verb}")


def run_as(
    descriptors: list[int], *, command: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Runs a command as the process that would have been started for it."""
    import runpy

    import numpy as np

    from lingo.cli.main import program
    from lingo.storage import injection

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # though `nohup` runs the tests
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    injection._FAULTS = injection._parse(os.environ.get(injection.VARIABLE, ""))
    np.random.seed()  # not the numbers of every other fork
    sys.argv = command
    sys.path[0] = str(pathlib.Path(command[0]).parent.absolute())
    if command[0].endswith(".py"):
        runpy.run_path(command[0], run_name="__main__")
    else:
        program()


# ---- who asks


def connect(
    address: str,
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[int],
) -> tuple[socket.socket, int]:
    """Has the server run a command; returns where its exit code comes, and the process's number."""
    message = {"command": command, "folder": folder, "environment": dict(environment)}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    socket.send_fds(connection, [json.dumps(message).encode()], streams)
    return connection, int(connection.recv(MAX_BYTES))


def run(address: str, command: list[str]) -> int:
    """Has the server run a command, unless it needs a process of its own."""
    program, *arguments = command
    is_python = pathlib.Path(program).name == "python"
    first = arguments[0] if arguments else ""
    if must_import(os.environ) or first in OWN_PROCESS or (is_python and first[-3:] != ".py"):
        os.execv(program, command)
    forked = arguments if is_python else command
    connection, _ = connect(address, forked, os.getcwd(), os.environ, [0, 1, 2])
    with connection:
        code = int(connection.recv(MAX_BYTES))
    return code if code >= 0 else 128 - code


def must_import(environment: Mapping[str, str]) -> bool:
    """Returns whether variables need a process that has imported nothing yet."""
    return any(name.startswith(READ_AT_IMPORT) for name in environment)


class Fork:
    """A command that the server runs, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, address: str, command: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self._written = ("", "")
        self._streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), *self._streams]
            self._connection, self.pid = connect(address, command, folder, environment, streams)

    def poll(self) -> int | None:
        """Returns the exit code, or that of a signal below 0; None while the process runs."""
        return self._receive(0.0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns what was written. Raises subprocess.TimeoutExpired."""
        if self._receive(timeout) is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return self._written

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def _receive(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = int(self._connection.recv(MAX_BYTES))
            self._connection.close()
            out, err = map(_read, self._streams)
            self._written = (out, err)
        return self.returncode


def _read(stream: int) -> str:
    """Returns what a file in memory has, and closes it."""
    with open(stream, "rb") as file:
        file.seek(0)
        return file.read().decode()


@contextlib.contextmanager
def serving(environment: Mapping[str, str]) -> Iterator[str]:
    """Starts a server; gives its address, and ends it at last."""
    from lingo.processes.parent import prepare_die_with_parent

    die_with_parent = prepare_die_with_parent(signal.SIGKILL)
    with tempfile.TemporaryDirectory(prefix="lingo-") as folder:  # pytest's has too long a path
        address = f"{folder}/socket"
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", address],
            # threads do not survive a fork
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        with server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == "ready\n"
                yield address
            finally:
                server.kill()


if __name__ == "__main__":
    role, address, *command = sys.argv[1:]
    sys.exit(run(address, command) if role == "run" else serve(address))
