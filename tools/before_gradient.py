"""Which files of lingo take part in `lingo train` before its first gradient, and in that call.

Functions count as they are called; what runs while a module is imported does not.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

TRAIN = ["--exp=lm.source.tiny", "--set=max_steps=1", "--set=eval_inputs={}"]


class BeforeGradient(NamedTuple):
    """What ran in the main thread."""

    files: list[str]  # files with a called function, in the order of the first calls
    # `file:line: function` of the calls that the gradient is inside of, outermost first.
    stack: list[str]


def trace_training(root: Path) -> BeforeGradient:
    """Trains an experiment up to its first gradient, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        ended = subprocess.run(
            [sys.executable, "-P", __file__, result, "train", f"--logdir={folder}/run", *TRAIN],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
        )
        if not result.exists():
            raise RuntimeError(f"training has come to no gradient:\n{ended.stdout}{ended.stderr}")
        return BeforeGradient(**json.loads(result.read_text()))


def _run(result: Path, arguments: list[str]) -> None:
    """Runs `lingo`; at the first gradient it writes what it has seen and ends the process."""
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["lingo"].partition(":")
    files: dict[str, None] = {}
    inside, num_imports = f"{os.getcwd()}/lingo/", 0

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal num_imports
        del argument
        code = frame.f_code
        if code.co_name == "<module>":
            num_imports += (event == "call") - (event == "return")
        elif event == "call" and not num_imports:
            if code.co_filename.startswith(inside):
                files[os.path.relpath(code.co_filename)] = None
            elif code.co_name == "gradient" and code.co_filename.endswith("/backprop.py"):
                seen = BeforeGradient(list(files), _stack(frame, inside))
                result.write_text(json.dumps(seen._asdict()))
                os._exit(0)

    sys.argv = ["lingo", *arguments]
    sys.setprofile(look)
    getattr(importlib.import_module(module), function)()


def _stack(frame: FrameType | None, inside: str) -> list[str]:
    calls: list[str] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(inside):
            file = os.path.relpath(code.co_filename)
            calls.insert(0, f"{file}:{frame.f_lineno}: {code.co_qualname}")
        frame = frame.f_back
    return calls


if __name__ == "__main__":
    _run(Path(sys.argv[1]), sys.argv[2:])
