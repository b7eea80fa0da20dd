"""Runs slow work in compiled code, while the terminal shows the time that has passed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Result = TypeVar("Result")


def run_with_clock(what: str, work: Callable[[], Result]) -> Result:
    """Calls `work` and returns its result; while it runs, stderr shows `what` and a clock.

    The work runs in another thread, because compiled code in the main thread would delay signals.
    """
    console = Console(file=sys.stderr, highlight=False)
    thread = ThreadPoolExecutor(max_workers=1)
    result = thread.submit(work)
    thread.shutdown(wait=False)
    if not console.is_terminal:
        print(what, file=sys.stderr, flush=True)
        return result.result()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        return result.result()
