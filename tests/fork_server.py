"""Runs `lingo` and scripts in forks of a process that has imported TensorFlow, which takes longest.

`fork_server.py serve ADDRESS` is that process: it runs one command after the other, and prints
when it can. `fork_server.py run ADDRESS PROGRAM ARGUMENTS` has it run a command in the caller's
folder and environment and with its standard streams, and ends with the command's exit code. So a
command must not wait for another one; and one whose environment TensorFlow or lingo reads when they
are imported stays a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import socket
import sys

OWN_PROCESS = ("serve", "launch")  # verbs that are stopped by signals
READ_AT_IMPORT = ("LINGO_", "JAX_", "XLA_", "TF_XLA_", "TF_ENABLE_")  # beginnings of names
MAX_BYTES = 1 << 17  # of a command with its environment


def serve(address: str) -> None:
    """Answers each connection with the exit code of its command, in decimal digits."""
    import_modules()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, (
        f"a fork would have one of {len(threads)} threads, and wait for others"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
            if not message:  # who connected has ended
                connection.close()
                continue
            child = os.fork()
            if child == 0:
                server.close()
                connection.close()
                run_as(descriptors, **json.loads(message))
                return
            for descriptor in descriptors:
                os.close(descriptor)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(BrokenPipeError):  # who asked has ended
                connection.send(b"%d" % (code if code >= 0 else 128 - code))
            connection.close()


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

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.update(environment)
    np.random.seed()  # not the numbers of every other fork
    sys.argv = command
    sys.path[0] = str(pathlib.Path(command[0]).parent.absolute())
    if command[0].endswith(".py"):
        runpy.run_path(command[0], run_name="__main__")
    else:
        program()


def run(address: str, command: list[str]) -> int:
    """Has the server run a command, unless it needs a process of its own."""
    program, *arguments = command
    is_python = pathlib.Path(program).name == "python"
    first = arguments[0] if arguments else ""
    is_read = any(name.startswith(READ_AT_IMPORT) for name in os.environ)
    if is_read or first in OWN_PROCESS or (is_python and not first.endswith(".py")):
        os.execv(program, command)
    message = {
        "command": arguments if is_python else command,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(message).encode()], [0, 1, 2])
        return int(connection.recv(MAX_BYTES))


if __name__ == "__main__":
    role, address, *command = sys.argv[1:]
    sys.exit(run(address, command) if role == "run" else serve(address))
