"""A run's view in a notebook: an output, updated in place, with a bar, a curve and last lines."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable
from typing import Any

from lingo.config.cells import find_shell

Show = Callable[[str], None]
"""Shows some HTML in the place of the last one."""

MAX_POINTS = 200
"""Points of a curve; beyond, every second one is left out."""

_UPDATE_SECONDS = 0.5  # from one update to the next: a browser draws each update
_MAX_LINES = 12  # how many of the last messages are shown
_WIDTH, _HEIGHT = 480, 80  # of the curve, pixels


class NotebookView:
    """The output of a run: the latest report, the losses so far, and the last messages."""

    def __init__(self, show: Show, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._step, self._max_steps, self._line, self._messages = 0, 1, "", list[str]()
        self._points, self._stride, self._num_reports = list[tuple[int, float]](), 1, 0
        self._shown_at = -math.inf

    def add_message(self, text: str) -> None:
        """Shows a line below the curve."""
        self._messages = [*self._messages, text][-_MAX_LINES:]
        self.update(now=True)

    def add_report(self, step: int, loss: float | None, line: str, *, max_steps: int) -> None:
        """Shows a report: moves the bar, continues the curve, and replaces the line above it."""
        self._step, self._max_steps, self._line = step, max_steps, line
        if loss is not None and math.isfinite(loss):
            if self._num_reports % self._stride == 0:
                self._points.append((step, loss))
            self._num_reports += 1
            if len(self._points) > MAX_POINTS:
                self._points, self._stride = self._points[::2], 2 * self._stride
        self.update()

    def add_work(self, line: str) -> None:
        """Shows a line about long work, such as indexing, in place of the latest report."""
        self._line = line
        self.update()

    def update(self, *, now: bool = False) -> None:
        """Redraws the output, unless it was drawn a moment ago; with `now` in any case."""
        if now or self._clock() - self._shown_at >= _UPDATE_SECONDS:
            self._shown_at = self._clock()
            self._show(self.html())

    def html(self) -> str:
        """Returns the view as HTML without scripts."""
        bar = (
            f'<progress max="{self._max_steps}" value="{self._step}"'
            f' style="width: {_WIDTH}px"></progress>'
        )
        lines = html.escape("\n".join(self._messages))
        return (
            f"<div>{bar}<pre>{html.escape(self._line)}</pre>{self._curve()}<pre>{lines}</pre></div>"
        )

    def _curve(self) -> str:
        """Returns the curve of the losses as SVG; the largest loss is at the top."""
        if len(self._points) < 2:
            return ""
        losses = [loss for _, loss in self._points]
        low, high = min(losses), max(losses)
        scale = (_HEIGHT - 2) / ((high - low) or 1.0)
        places = " ".join(
            f"{_WIDTH * step / self._max_steps:.1f},{1 + (high - loss) * scale:.1f}"
            for step, loss in self._points
        )
        label = f"loss: {losses[0]:.4g} at first, {losses[-1]:.4g} now, {low:.4g} at least"
        return (
            f'<svg width="{_WIDTH}" height="{_HEIGHT}" style="background: #8881">'
            f'<polyline points="{places}" fill="none" stroke="#f57c00" stroke-width="1.5"/></svg>'
            f"<div>{label}</div>"
        )


def open_view() -> NotebookView | None:
    """Returns the view of a run in this cell's output; None outside of a notebook."""
    shell = find_shell()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import HTML, display  # a notebook always has IPython installed

    handle: Any = display(HTML(""), display_id=True)
    return NotebookView(lambda text: handle.update(HTML(text)))
