"""Work that takes a while and says nothing: a clock beside it, and Ctrl+C at any time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Result = TypeVar("Result")


def run_with_clock(what: str, work: Callable[[], Result]) -> Result:
    """Returns what some work comes to; on stderr it says meanwhile what is done.

    The work is done in a thread: compiled code in this one would hear no signal.

    Args:
        what: is done, in words.
        work: is called once.
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
