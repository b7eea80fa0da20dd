"""Checks that a run fits into memory: if not, the kernel would kill the process without a message.

Only what is certain counts: the state that is kept between steps, and one batch. The memory of
activations is not known beforehand.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(experiment: Experiment) -> None:
    """Raises ParamError if a run cannot fit into this machine's memory."""
    available = memory_bytes()
    if (state := experiment.runtime.host_bytes(experiment.learner)) > available:
        raise ParamError(
            f"task: weights, and what the optimizer keeps for each, take {size(state)}, and this"
            f" machine has {size(available)} of memory"
        )
    specs = experiment.train_input.specs().values()
    batch = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in specs)
    if batch > available:
        raise ParamError(
            f"train_input: a batch takes {size(batch)}, and this machine has {size(available)} of"
            " memory: a smaller batch_size or length"
        )


def memory_bytes() -> int:
    """Returns the memory limit of this process: of the machine, a container, or `ulimit`."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_container_limits(_LIMITS)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(limits if soft == resource.RLIM_INFINITY else [*limits, soft])


def _container_limits(files: Iterable[str]) -> list[int]:
    """Returns the limits in files of the kernel, without files that are missing or "max"."""
    limits: list[int] = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return limits


def size(num_bytes: float) -> str:
    """Returns a number of bytes as text with a unit, "1.5 MiB", with three or four digits."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if num_bytes < 1024 or unit == "PiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} {unit}" if num_bytes >= 1000 else f"{num_bytes:.3g} {unit}"
