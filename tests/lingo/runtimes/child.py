"""Programs in processes of their own: engines choose their devices once a process."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[3]
TIMEOUT = 900.0  # seconds: far beyond what any machine needs, it only ends a deadlock
QUICK_TO_COMPILE = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Environment of programs that run for a few steps: XLA partitions and schedules them as ever, and
LLVM does not optimize them. Tests of meshes would spend a quarter of their time on that.
"""


def printed(*arguments: str, **options: Any) -> str:
    """Returns what Python prints."""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": TIMEOUT} | options
    done = subprocess.run([sys.executable, *arguments], check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
