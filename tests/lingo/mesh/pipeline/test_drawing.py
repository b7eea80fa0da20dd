"""Drawings of schedules: every step where it belongs, of any size."""

import itertools
import re

import numpy as np
import pytest

from lingo.mesh.pipeline import drawing
from lingo.mesh.pipeline.drawing import pixels, text
from lingo.mesh.pipeline.schedule import circular, fill_drain, one_forward_one_backward

SCHEDULES = [fill_drain(1, 1), one_forward_one_backward(3, 12, 3), circular(2, 3, 2)]


def rows(schedule):
    """Returns the rows of the stages, without their labels."""
    lines = text(schedule).splitlines()
    return [re.sub(r"^stage +\d+  ", "", x) for x in lines if re.match(r"stage +\d+  ", x)]


def test_gpipes_figure_in_characters():
    assert text(fill_drain(2, 3)).splitlines() == [
        "stage 0  0 1 2 . . . 2<<<1<<<0<<<",
        "stage 1  . 0 1 2 2<<<1<<<0<<<. .",
        "0 forward, 0< backward of micro-batch 0, . idle; 2 characters are 1 unit of time",
        "makespan 12, bubble fraction 0.2500, idle 6 of 24",
    ]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_text_can_be_read_back(schedule, monkeypatch):
    monkeypatch.setattr(drawing, "_LINE", 10_000)
    cell = len(str(schedule.num_micro_batches - 1)) + 1
    for works, row in zip(schedule.stages, rows(schedule), strict=True):
        cells = [
            (m.start() // cell, int(m[1]), m[2].startswith("<"))
            for m in re.finditer(r"(\d+)(<*)", row)
        ]
        assert cells == [(w.start, w.step.micro_batch, w.step.backward) for w in works]
        assert row.count(".") == schedule.makespan - sum(w.end - w.start for w in works)
        assert row.count("<") == sum(
            (w.end - w.start) * cell - len(str(w.step.micro_batch))
            for w in works
            if w.step.backward
        )


def test_of_a_wide_schedule_the_beginning_and_the_end_are_shown(monkeypatch):
    schedule = one_forward_one_backward(12, 100)
    cut = rows(schedule)
    assert "// leaves out 305" in text(schedule)
    columns = len(cut[0].replace(" // ", "")) // 3
    assert columns + 305 == schedule.makespan
    monkeypatch.setattr(drawing, "_LINE", 10_000)
    for whole, row in zip(rows(schedule), cut, strict=True):
        begin, end = row.split(" // ")
        assert whole.startswith(begin)
        assert whole.endswith(end)
        assert min(len(begin), len(end)) > 30


@pytest.mark.parametrize(
    "schedule",
    [*SCHEDULES, fill_drain(30, 200), fill_drain(3, 4, 2001)],
    ids=lambda s: f"{s.num_stages}_{s.num_micro_batches}",
)
def test_no_line_is_wider_than_100_and_totals_stay_exact(schedule):
    lines = text(schedule).splitlines()
    assert max(map(len, lines)) <= 100
    total = schedule.num_stages * schedule.makespan
    assert lines[-1].startswith(f"makespan {schedule.makespan}, ")
    assert lines[-1].endswith(f"idle {schedule.idle} of {total}")


def test_a_picture_has_a_cell_for_each_unit_of_time_of_each_stage():
    schedule = one_forward_one_backward(4, 8)
    picture = pixels(schedule)
    assert picture.dtype == np.uint8
    tall, wide = picture.shape[0] // 4, picture.shape[1] // int(schedule.makespan)
    cells = picture[::tall, ::wide]
    np.testing.assert_array_equal(picture, cells.repeat(tall, axis=0).repeat(wide, axis=1))
    colours = {}
    idle = np.ones(cells.shape[:2], bool)
    for w in itertools.chain(*schedule.stages):
        span = slice(int(w.start), int(w.end))
        seen = set(map(tuple, cells[w.step.stage, span].tolist()))
        colours.setdefault((w.step.backward, w.step.micro_batch), set()).update(seen)
        idle[w.step.stage, span] = False
    grey = set(map(tuple, cells[idle].tolist()))
    assert all(len(seen) == 1 for seen in [*colours.values(), grey])  # one colour each
    assert len(set.union(grey, *colours.values())) == 2 * 8 + 1  # and no two the same
    assert idle.mean() == schedule.bubble_fraction


def test_forward_is_blue_backward_orange_idle_grey_and_later_is_darker():
    picture = pixels(fill_drain(1, 5)).astype(int)[0]
    wide = len(picture) // 15
    forward, backward = picture[: 5 * wide : wide], picture[5 * wide :: 2 * wide]
    assert (forward[:, 2] > forward[:, 0]).all()
    assert (backward[:, 0] > backward[:, 2]).all()
    assert (np.diff(forward.sum(axis=1)) < 0).all()
    assert (np.diff(backward.sum(axis=1)) > 0).all()  # the last goes back first
    corner = pixels(fill_drain(2, 2))[-1, 0]
    assert len(set(corner.tolist())) == 1


@pytest.mark.parametrize(
    "schedule", [one_forward_one_backward(8, 900), fill_drain(700, 2), fill_drain(513, 1)]
)
def test_what_does_not_fit_keeps_its_mean_colour(schedule):
    # One stage with two micro-batches shows the ends of both scales, a corner what is idle.
    two = pixels(fill_drain(1, 2, 1))[0].astype(float)
    first, last, last_back, first_back = two[:: len(two) // 4]
    idle = pixels(fill_drain(2, 2))[-1, 0].astype(float)
    bubble = schedule.bubble_fraction
    forward, backward = (first + last) / 2, (first_back + last_back) / 2  # means of even scales
    expected = (1 - bubble) * (forward + 2 * backward) / 3 + bubble * idle
    picture = pixels(schedule)
    assert (picture.shape[0] <= 512, picture.shape[1] <= 1024) == (True, True)
    np.testing.assert_allclose(picture.mean(axis=(0, 1)), expected, atol=0.5)
