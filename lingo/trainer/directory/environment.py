"""Records a run's environment (versions, code, machine, devices), to explain different results."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingo.config.lazy import tf
from lingo.config.versions import find_versions

_PACKAGES = (
    *("lingo-tf", "tensorflow", "tensorflow-cpu", "tensorflow-tpu", "libtpu", "keras"),
    *("tensorboard", "fiddle", "numpy", "jax"),
)
_PATCH_CHARACTERS = 1 << 20
_VARIABLES = {
    "onednn": "TF_ENABLE_ONEDNN_OPTS",
    "onednn_instructions": "ONEDNN_MAX_CPU_ISA",
    "intra_op_threads_variable": "TF_NUM_INTRAOP_THREADS",
    "inter_op_threads_variable": "TF_NUM_INTEROP_THREADS",
    "xla_flags": "XLA_FLAGS",
    "tf_xla_flags": "TF_XLA_FLAGS",
    "deterministic_ops": "TF_DETERMINISTIC_OPS",
    "tf32": "NVIDIA_TF32_OVERRIDE",
}
_VECTOR = ("sse", "avx", "fma", "amx", "asimd", "sve", "bf16")
_KIND = re.compile("cpu|gpu|tpu|cuda", re.IGNORECASE)  # a device's kind, in its name
_VOLATILE_KEYS = ("time", "argv", "matmul_flops_per_second")


def environment(
    *, devices: Sequence[str], data: Mapping[str, Any], speed: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the content of `environment.json`; the entries of `speed` are added to it."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        "argv": list(sys.argv),
        "host": {"name": socket.gethostname(), "pid": os.getpid(), "system": platform.platform()},
        "versions": versions(),
        "numerics": numerics(),
        "git": git(Path(__file__)),
        "devices": list(devices),
        "data": dict(data),
        **speed,
    }


def count_devices(names: Sequence[str]) -> str:
    """Returns the number of devices of each kind, given their names.

    >>> count_devices(["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"])
    '1 CPU, 2 GPU'
    >>> count_devices(["TFRT_CPU_0", "cuda:0"])
    '1 CPU, 1 GPU'
    """
    kinds = [match[0].upper() if (match := _KIND.search(name)) else name for name in names]
    counts = Counter("GPU" if kind == "CUDA" else kind for kind in kinds)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def is_same(before: str, after: Mapping[str, Any]) -> bool:
    """Returns whether environment.json's text `before` and the content `after` agree.

    Time, arguments, process and speed are not compared: they differ at every start.
    """
    try:
        return _stable_part(json.loads(before)) == _stable_part(json.loads(json.dumps(after)))
    except (ValueError, TypeError, AttributeError, RecursionError):  # not an environment.json
        return False


def _stable_part(record: dict[str, Any]) -> dict[str, Any]:
    host = {key: value for key, value in record.get("host", {}).items() if key != "pid"}
    return {k: v for k, v in record.items() if k not in _VOLATILE_KEYS} | {"host": host}


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that may change results."""
    return {"python": platform.python_version(), **find_versions(_PACKAGES)}


def numerics() -> dict[str, Any]:
    """Returns settings of the machine that may change the last bits of results."""
    threading = tf.config.threading
    return {
        "processor": platform.machine(),
        "instructions": _instructions(),
        "num_processors": len(os.sched_getaffinity(0)),
        "intra_op_threads": threading.get_intra_op_parallelism_threads() or "default",
        "inter_op_threads": threading.get_inter_op_parallelism_threads() or "default",
        **{name: os.environ.get(variable, "default") for name, variable in _VARIABLES.items()},
    }


def _instructions() -> str:
    """Returns the processor's vector instructions, on which libraries' choice of code depends."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return " ".join(sorted(w for w in words.split() if w.startswith(_VECTOR)))
    return "not known"


def git(file: Path) -> dict[str, str] | None:
    """Returns `commit` and `patch` (the uncommitted changes) of a source file's checkout.

    The result is None if git does not track the file.
    """
    folder = file.resolve().parent
    if _git(folder, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    patch = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color") or ""
    return {"commit": commit.strip(), "patch": patch[:_PATCH_CHARACTERS]}


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns git's output, or None if git fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=30,
            check=True,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
