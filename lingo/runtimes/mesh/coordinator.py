"""The coordination service of several processes, as a process of its own beside the leader.

    python -m lingo.runtimes.mesh.coordinator ADDRESS COUNT < a pipe that the leader holds

JAX ends every process that loses this service, at once and by `abort`. Here it outlives a leader
that is killed for long enough that the others can save what they have.
"""

from __future__ import annotations

import pathlib
import signal
import sys
import time

READY = "ready"

NEVER_SECONDS = 10**6  # JAX's own heartbeats: lingo has signs of life that name who is lost
_SAVE_SECONDS = 90  # the others may need after the leader has ended
_LOOK_SECONDS = 0.5
_ESTABLISHED = "01"


def main(address: str, count: int) -> None:
    """Serves until the leader has ended, and as long as others are there that save what they have.

    Args:
        address: host:port.
        count: how many processes there are.
    """
    from jaxlib import _jax

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the leader
    service = _jax.get_distributed_runtime_service(
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
    """Returns how many connections to a port of this machine are open; Linux only."""
    tables = (pathlib.Path("/proc/net") / name for name in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return sum(
        state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
        for _, local, _, state, *_ in lines
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
