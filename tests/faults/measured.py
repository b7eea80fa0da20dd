"""Runs `lingo`, and writes its exit code, seconds and most memory: `measured.py FILE ARGUMENTS`."""

import json
import os
import pathlib
import resource
import sys
import time

from lingo.cli.main import main

MOST_BYTES = 12 << 30  # of addresses, so that a failure does not stop the machine


def measure(file: str, arguments: list[str]) -> None:
    """Runs a command, writes what it took, and ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    start = time.monotonic()
    code = main(arguments)
    taken = {
        "code": code,
        "seconds": time.monotonic() - start,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.flush()
    pathlib.Path(file).write_text(json.dumps(taken))
    os._exit(code)


if __name__ == "__main__":
    measure(sys.argv[1], sys.argv[2:])
