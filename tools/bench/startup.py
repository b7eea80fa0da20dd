"""The cost of the verbs that only read, relative to importing TensorFlow, in the same run.

Each command runs in a process of its own; the system accounts for processor time and peak memory.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import NamedTuple

from tools.harness import Report, at_most, choose

REPEATS = choose(3, small=1)
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
    """The cost of one process: medians of several runs."""

    cpu_seconds: float
    megabytes: float


def cost(*command: str) -> Cost:
    """Returns the cost of running Python with some arguments."""
    program = [sys.executable, "-c", _MEASURE, sys.executable, *command]
    runs = [
        subprocess.run(program, capture_output=True, check=True, text=True).stdout.split()
        for _ in range(REPEATS)
    ]
    return Cost(*(statistics.median(map(float, values)) for values in zip(*runs, strict=True)))


def run(report: Report) -> None:
    """Measures every verb."""
    tensorflow = cost("-c", "import tensorflow")
    report.table("part of `import tensorflow`", "processor seconds, MB")
    report.line("import tensorflow", 1.0, note=_note(tensorflow))
    for name, arguments in VERBS.items():
        verb = cost("-m", "lingo.cli.main", *arguments)
        part = verb.cpu_seconds / tensorflow.cpu_seconds
        report.line(f"{name} / import", part, WANTED, note=_note(verb))


def _note(cost: Cost) -> str:
    return f"{cost.cpu_seconds:5.2f} {cost.megabytes:7.0f}"
