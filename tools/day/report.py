"""The Markdown report of a day, from its lines."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingo.inspection.memory import size
from lingo.inspection.plan.hardware import HARDWARE
from lingo.runtimes.mesh.tpu_compiler import GENERATIONS
from lingo.trainer.directory.environment import versions
from tools.day.items import Item
from tools.source_tree import current_commit
from tools.studies.page import table


def list_gpus() -> list[str]:
    """Returns name, driver and memory of each GPU of the machine; [] without NVIDIA's driver."""
    if not shutil.which("nvidia-smi"):
        return []
    query = "--query-gpu=name,driver_version,memory.total"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def data_sheet_flops(dtype: str) -> float:
    """Returns the FLOP/s of one of this machine's devices by its data sheet, 0 if unknown."""
    words = list_gpus()[0].lower().replace("-", " ").split() if list_gpus() else []
    for name, hardware in HARDWARE.items():
        if name in words:
            return hardware.rate(dtype)
    kind = os.environ.get("TPU_ACCELERATOR_TYPE", "").partition("-")[0]
    found = GENERATIONS.get({"v5litepod": "v5e"}.get(kind, kind))
    return found.flops_per_second if found else 0.0


def write_report(path: Path, kind: str, items: Sequence[Item], lines: Mapping[str, Any]) -> None:
    """Writes the report of those items that have a line, and names the others."""
    commit = current_commit()
    gpus = list_gpus() or ["no GPU"]
    head = [
        f"# A day on a {kind.upper()}",
        "",
        f"- commit: {commit}",
        f"- machine: {platform.platform()}, {os.cpu_count()} processors",
        f"- accelerators (name, driver, memory): {'; '.join(gpus)};"
        f" {os.environ.get('TPU_ACCELERATOR_TYPE', 'no TPU named')}",
        f"- versions: {', '.join(f'{k} {v}' for k, v in versions().items())}",
        "",
    ]
    names = ["item", "question", "answer", "rate", "MFU", "peak memory", "input"]
    rows = [row for item in items if (line := lines.get(item.name)) for row in _rows(item, line)]
    left = [f"- {item.name}: {item.question}" for item in items if item.name not in lines]
    tail = ["", "Not run:", "", *left] if left else []
    path.write_text("\n".join([*head, *table(names, rows), *tail]) + "\n")


def _rows(item: Item, line: Mapping[str, Any]) -> list[list[str]]:
    answer = line["answer"].replace("|", "/")
    runs = line["runs"] or {"": {}}
    rows = []
    for run, found in runs.items():
        name = item.name if run in ("", "run") else f"{item.name}: {run}"
        mfu, peak, wait = (found.get(key) for key in ("mfu", "peak_bytes", "input_wait"))
        rows.append(
            [
                *(name, item.question, answer),
                f"{found['rate']:.4g} {found['unit']}/s" if "rate" in found else "",
                f"{mfu:.1%}" if mfu else "",
                size(peak) if peak else "",
                "" if wait is None else f"waits {wait:.0%}",
            ]
        )
    return rows
