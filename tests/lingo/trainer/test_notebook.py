"""What a notebook shows of a run."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from lingo.trainer.notebook import MAX_POINTS, NotebookView, open_view


class Screen:
    """Keeps what a view shows, and its clock."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.seconds = 0.0
        self.view = NotebookView(self.shown.append, clock=lambda: self.seconds)

    def report(self, step: int, loss: float | None) -> None:
        self.seconds += 1
        self.view.add_report(step, loss, f"step {step} <b>", max_steps=1000)


def points(html: str) -> list[tuple[float, float]]:
    (found,) = re.findall(r'points="([^"]*)"', html)
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.split())]


def test_one_output_has_bar_line_curve_and_messages() -> None:
    screen = Screen()
    screen.view.add_message("data: <x>")
    screen.report(100, 4.0)
    assert "polyline" not in screen.shown[-1]  # a point is no curve
    screen.report(500, 2.0)
    html = screen.shown[-1]
    assert 'max="1000" value="500"' in html
    assert "step 500 &lt;b&gt;" in html
    assert "data: &lt;x&gt;" in html
    assert "loss: 4 at first, 2 now, 2 at least" in html
    (left, top), (right, bottom) = points(html)
    assert (left, right) == (48, 240)
    assert top < bottom  # a loss that falls goes down


def test_a_browser_is_spared_updates_that_follow_at_once() -> None:
    screen = Screen()
    screen.report(1, 1.0)
    screen.view.add_report(2, 1.0, "step 2", max_steps=1000)
    assert "step 2" not in screen.shown[-1]
    screen.view.update(now=True)
    assert "step 2" in screen.shown[-1]


def test_a_long_curve_keeps_both_ends_and_few_points() -> None:
    screen = Screen()
    for step in range(1, 1001):
        screen.report(step, 1000.0 - step)
    found = points(screen.shown[-1])
    assert MAX_POINTS / 2 <= len(found) <= MAX_POINTS
    assert found[0][0] == pytest.approx(0.5, abs=0.1)
    assert found[-1][0] > 470
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(found)]
    assert max(gaps) == pytest.approx(min(gaps), abs=0.11)


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_a_loss_that_is_no_number_is_left_out(loss: float | None) -> None:
    screen = Screen()
    for step, value in ((1, 2.0), (2, loss), (3, 2.0)):
        screen.report(step, value)
    assert len(points(screen.shown[-1])) == 2


def test_outside_of_a_notebook_there_is_none() -> None:
    assert open_view() is None
