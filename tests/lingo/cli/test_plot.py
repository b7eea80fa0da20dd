"""Curves as text."""

from __future__ import annotations

import numpy as np

from lingo.cli import plot


def dots(text: str) -> np.ndarray:
    """Returns the canvas of a plot as ones and zeros, [4 * height, 2 * width], top first."""
    rows = [line[max(line.find("┤"), line.find("│")) + 1 :] for line in text.splitlines()[:-2]]
    rows = [row.replace(" ", chr(plot.BRAILLE)) for row in rows]
    width = max(map(len, rows))
    canvas = np.zeros((4 * len(rows), 2 * width), int)
    places = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1)]
    for i, row in enumerate(rows):
        for j, char in enumerate(row.ljust(width, chr(plot.BRAILLE))):
            for bit, (down, right) in enumerate(places):  # the numbering of Unicode's braille block
                canvas[4 * i + down, 2 * j + right] = (ord(char) - plot.BRAILLE) >> bit & 1
    return canvas


def draw(x, y, height=4):
    return plot.curve(np.asarray(x, float), np.asarray(y, float), names=("x", "y"), height=height)


def test_a_rising_line_rises_from_the_lower_left_to_the_upper_right():
    canvas = dots(draw(range(101), range(101)))
    assert canvas[-1, 0] == canvas[0, -1] == 1
    assert canvas[0, 0] == canvas[-1, -1] == 0
    height = [np.flatnonzero(column)[0] for column in canvas.T]
    assert height == sorted(height, reverse=True)


def test_a_curve_is_drawn_without_gaps_from_few_points():
    canvas = dots(draw([0, 1, 2], [0.0, 1.0, 0.0]))
    assert canvas.any(axis=0).all()
    np.testing.assert_array_equal(canvas, canvas[:, ::-1])


def test_a_curve_of_zeros_is_a_line_at_the_bottom():
    canvas = dots(draw([0, 10], [0.0, 0.0]))
    assert canvas[-1].all()
    assert not canvas[:-1].any()


def test_the_axis_has_the_highest_value_and_values_stand_below_their_places():
    *_, xs, ys = text = draw(range(17), np.arange(17) / 16).splitlines()
    assert text[0].split()[0] == "1"
    assert text[-3].split()[0] == "0"
    assert xs.split() == ["x", "0", "2", "4", "6", "8", "10", "12", "14", "16"]
    assert ys.split()[:4] == ["y", "0", "0.125", "0.25"]
    assert xs.index("8") == ys.index("0.5")


def test_places_that_coincide_are_written_once():
    assert draw([0, 1], [1.0, 0.5]).splitlines()[-2].split() == ["x", "0", "1"]
