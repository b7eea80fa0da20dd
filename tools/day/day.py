"""A day: runs items as processes, keeps what came of each as a line, and writes their report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingo.inspection.memory import size
from lingo.inspection.plan.hardware import HARDWARE
from lingo.runtimes.mesh.tpu_compiler import GENERATIONS
from lingo.trainer.directory.environment import versions
from tools.day.items import Item
from tools.source_tree import ROOT, current_commit
from tools.studies.page import table

_UNTIMED = 2  # reports with rates at the beginning of a run that do not count


def run_day(
    kind: str, items: Sequence[Item], out: Path, *, minutes: float, has_virtual_devices: bool
) -> bool:
    """Runs the items that have no line in `out`; returns whether all of them have one now.

    No item begins whose limit does not fit into the minutes. The report is written after each.
    """
    out.mkdir(parents=True, exist_ok=True)
    lines_path, deadline = out / "lines.jsonl", time.monotonic() + 60 * minutes
    lines = read_lines(lines_path)
    num_gpus = len(list_gpus())
    for item in items:
        wants_gpus = (item.num_devices or 0) if kind == "gpu" and not has_virtual_devices else 0
        fits = time.monotonic() + 60 * item.minutes <= deadline
        if item.name in lines or not fits or wants_gpus > num_gpus:
            continue
        print(f"{item.name}: {item.question}", flush=True)
        line = run_item(item, out / "runs" / item.name, num_cores=_num_cores(lines))
        with lines_path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            os.fsync(file.fileno())
        lines[item.name] = line
        print(f"    {line['answer']}", flush=True)
        write_report(out / "report.md", kind, items, lines)
    write_report(out / "report.md", kind, items, lines)
    return all(item.name in lines for item in items)


def read_lines(path: Path) -> dict[str, Any]:
    """Returns the lines of a day by the names of their items; one cut short is left out."""
    lines: dict[str, Any] = {}
    for text in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if text.endswith("}\n"):
            line = json.loads(text)
            lines[line["item"]] = line
    return lines


def _num_cores(lines: dict[str, Any]) -> int:
    first = lines.get("connect", {}).get("answer", "").partition(" ")[0]
    return int(first) if first.isdigit() else 8


def run_item(item: Item, folder: Path, *, num_cores: int) -> dict[str, Any]:
    """Runs the commands of an item in its folder until one fails; returns its line."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began, error, num_devices = time.monotonic(), "", item.num_devices or num_cores
    for command in item.commands:
        values = {"{dir}": str(folder), "{cores}": str(num_cores)}
        arguments = list(command)
        for name, value in values.items():
            arguments = [one.replace(name, value) for one in arguments]
        left = 60 * item.minutes - (time.monotonic() - began)
        if error := _run(arguments, folder / "log.txt", left, num_devices):
            break
    runs = {
        path.parent.name: _measure(path, num_devices)
        for path in sorted(folder.glob("*/metrics.jsonl"))
    }
    state, answer = ("broken", error) if error else _answer(item, folder)
    return {
        "item": item.name,
        "state": state,
        "answer": answer,
        "seconds": round(time.monotonic() - began, 1),
        "runs": runs,
        "commit": current_commit(),
    }


def _run(arguments: Sequence[str], log: Path, seconds: float, num_gpus: int) -> str:
    """Runs Python with limited time and GPUs; returns "", or the last line of the error."""
    here = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = here.split(",") if here else [str(number) for number in range(num_gpus)]
    with log.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus[:num_gpus])},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=max(seconds, 0))
        except subprocess.TimeoutExpired:
            return f"not done within its limit: {_last_line(log)}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code < 0:
        return f"ended by signal {-code}: {_last_line(log)}"
    return (_last_line(log) or f"exit code {code}") if code else ""


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")


def _answer(item: Item, folder: Path) -> tuple[str, str]:
    if item.same is None:
        is_train = any("--logdir" in argument for c in item.commands for argument in c)
        return "done", "yes" if is_train else _last_line(folder / "log.txt")
    ours, theirs = (
        {row["step"]: row["loss/total"] for row in _rows(folder / run / "metrics.jsonl")}
        for run in item.same[:2]
    )
    if not ours or ours.keys() != theirs.keys():
        return "broken", "the runs have other steps"
    difference = max(abs(ours[step] / theirs[step] - 1) for step in ours)
    found = f"losses differ by up to {difference:.2g}, wanted {item.same.tolerance:g}"
    return ("done" if difference <= item.same.tolerance else "broken"), found


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, path.read_text().splitlines())
    return [row for row in rows if "loss/total" in row]


def _measure(path: Path, num_devices: int) -> dict[str, Any]:
    """Returns the medians of what a run reported: rate, MFU by data sheet, memory, input."""
    rows = [row for row in _rows(path) if "perf/steps_per_sec" in row]
    rows = rows[_UNTIMED:] or rows
    found: dict[str, Any] = {}

    def median(tag: str) -> float | None:
        values = [row[tag] for row in rows if tag in row]
        return statistics.median(values) if values else None

    for unit in ("examples", "tokens"):
        if (rate := median(f"perf/{unit}_per_sec")) is not None:
            found |= {"rate": rate, "unit": unit}
    environment = json.loads((path.parent / "environment.json").read_text())
    measured = environment.get("matmul_flops_per_second", 0.0)
    peak = data_sheet_flops(environment.get("matmul_dtype", "float32"))
    utilization = median("perf/model_flops_utilization")
    if utilization is not None and peak:
        found["mfu"] = utilization * measured / (peak * num_devices)
    if memory := max((row.get("perf/peak_memory_bytes", 0.0) for row in rows), default=0.0):
        found["peak_bytes"] = memory
    if (wait := median("perf/input_wait_fraction")) is not None:
        found["input_wait"] = wait
    return found


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
    rows = [
        row for item in items if (line := lines.get(item.name)) for row in _report_rows(item, line)
    ]
    left = [f"- {item.name}: {item.question}" for item in items if item.name not in lines]
    tail = ["", "Not run:", "", *left] if left else []
    path.write_text("\n".join([*head, *table(names, rows), *tail]) + "\n")


def _report_rows(item: Item, line: Mapping[str, Any]) -> list[list[str]]:
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
