"""Runs `lingo` and scripts in forks of a process that has imported TensorFlow, which takes longest.

`fork_server.py serve SOCKET` is that process: it runs one command at a time, and says when it can.
`fork_server.py run SOCKET PROGRAM ARGUMENTS` has it run a command in the caller's folder and
environment and with its standard streams, and ends with the command's exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import socket
import sys

SIGNALLED = ("serve", "launch")  # verbs that stay processes of their own: signals end them
MAX_BYTES = 1 << 20  # of a command with its environment


def serve(place: str) -> None:
    """Answers each connection with the exit code of its command, in decimal digits."""
    import_modules()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, (
        f"a fork would have one of {len(threads)} threads, and wait for others"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(place)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
            child = os.fork()
            if child == 0:
                server.close()
                connection.close()
                take_place(descriptors, **json.loads(message))
                return
            for descriptor in descriptors:
                os.close(descriptor)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            connection.send(b"%d" % (code if code >= 0 else 128 - code))
            connection.close()


def import_modules() -> None:
    """Imports what most commands need."""
    from lingo.cli.main import VERBS
    from lingo.config.lazy import tf

    tf.__version__  # noqa: B018  # imports it
    for verb in VERBS:
        importlib.import_module(f"lingo.cli.verbs.{verb}")


def take_place(
    descriptors: list[int], *, command: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Runs a command as the process that would have been started for it."""
    import runpy

    from lingo.cli.main import program

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.path[0] = str(pathlib.Path(command[0]).parent.absolute())
    if command[0].endswith(".py"):
        runpy.run_path(command[0], run_name="__main__")
    else:
        program()


def run(place: str, command: list[str]) -> int:
    """Has the server run a command, unless it needs a process of its own."""
    program, *arguments = command
    is_python = pathlib.Path(program).name == "python"
    first = arguments[0] if arguments else ""
    if first in SIGNALLED or (is_python and not first.endswith(".py")):
        os.execv(program, command)
    message = {
        "command": arguments if is_python else command,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(place)
        socket.send_fds(connection, [json.dumps(message).encode()], [0, 1, 2])
        return int(connection.recv(MAX_BYTES))


if __name__ == "__main__":
    role, place, *command = sys.argv[1:]
    sys.exit(run(place, command) if role == "run" else serve(place))
