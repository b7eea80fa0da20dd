"""Runs long work of compiled code, with a clock on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Result = TypeVar("Result")


def run_with_clock(what: str, work: Callable[[], Result]) -> Result:
    """Returns the result of some work; stderr shows `what` while it runs.

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
