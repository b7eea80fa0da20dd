"""What the verbs that only read cost, against importing TensorFlow, in the same run.

Each command runs in a process of its own; processor time and peak memory are the system's account.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import NamedTuple

from tools.bounds import Bounds, at_most

REPEATS = 3
WANTED = at_most(1 / 3)
VERBS = {
    "list": ["list"],
    "show": ["show", "--exp=lm.source.tiny"],
    "diff": ["diff", "--exp=lm.source.tiny", "--exp=lm.source.small"],
    "why": ["why", "optimizer.learning_rate", "--exp=lm.source.tiny"],
    "describe": ["describe", "FeedForward"],
    "dense_1t": ["show", "--exp=lm.lingvo_dense.dense_1t", "--weights", "--format=json"],
}

# A child begins with its parent's peak memory: it is measured as the grandchild of this process.
_MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


class Cost(NamedTuple):
    """Of one process: medians of several runs."""

    cpu_seconds: float
    megabytes: float


def cost(*command: str) -> Cost:
    """Returns what running Python with some arguments costs."""
    measured = [_once(command) for _ in range(REPEATS)]
    return Cost(*(statistics.median(values) for values in zip(*measured, strict=True)))


def _once(command: tuple[str, ...]) -> tuple[float, ...]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, sys.executable, *command],
        capture_output=True,
        check=True,
        text=True,
    )
    return tuple(map(float, done.stdout.split()))


def main() -> int:
    """Prints the costs; returns the exit code."""
    bounds = Bounds()
    tensorflow = cost("-c", "import tensorflow")
    print(f"{'':20} cpu s      MB   part of `import tensorflow` (wanted: {WANTED})")
    print(f"{'import tensorflow':20} {tensorflow.cpu_seconds:5.2f} {tensorflow.megabytes:7.0f}")
    for name, arguments in VERBS.items():
        taken = cost("-m", "lingo.cli.main", *arguments)
        part = taken.cpu_seconds / tensorflow.cpu_seconds
        print(f"{name:20} {taken.cpu_seconds:5.2f} {taken.megabytes:7.0f}   {part:.3f}")
        bounds.hold(f"{name} / import", part, WANTED)
    return bounds.exit_code()
