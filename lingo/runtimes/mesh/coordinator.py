"""The coordination service of several processes, in a separate process next to the leader.

    python -m lingo.runtimes.mesh.coordinator ADDRESS COUNT < a pipe that the leader keeps open

JAX calls `abort` in every process that loses this service. In a separate process, the service
outlives a killed leader long enough for the other processes to save their parts of the state.
"""

from __future__ import annotations

import importlib
import pathlib
import signal
import sys
import time
from typing import Any

READY = "ready"

NEVER_SECONDS = 10**6  # disables JAX's heartbeats: lingo's own (`Pulse`) name the lost process
_SAVE_SECONDS = 90  # how long the other processes may need to save after the leader has ended
_LOOK_SECONDS = 0.5
_ESTABLISHED = "01"  # state of an open connection in /proc/net/tcp


def main(address: str, count: int) -> None:
    """Serves at host:port until the leader has ended and all others have saved and disconnected."""
    private: Any = importlib.import_module("jaxlib._jax")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the leader handles these
    service = private.get_distributed_runtime_service(
        address, count, heartbeat_timeout=NEVER_SECONDS, shutdown_timeout=1, recoverable=True
    )
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    sys.stdin.read()
    deadline = time.monotonic() + _SAVE_SECONDS
    while num_connections(int(address.rpartition(":")[2])) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    del service


def num_connections(port: int) -> int:
    """Returns the number of open connections to a port of this machine; Linux only."""
    tables = (pathlib.Path("/proc/net") / name for name in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return sum(
        state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
        for _, local, _, state, *_ in lines
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
