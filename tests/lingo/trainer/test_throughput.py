"""Throughput: what was done, by the time it took."""

import pytest

from lingo.trainer.throughput import Throughput, advise_loop


def test_pace_is_what_was_done_by_the_time_it_took(clock):
    throughput = Throughput(clock=clock)
    with throughput.count_wait():
        clock.now += 1
    clock.now += 3
    throughput.add(steps=2, examples=8, tokens=400)
    assert throughput.read() == {
        "perf/steps_per_sec": 0.5,
        "perf/examples_per_sec": 2.0,
        "perf/tokens_per_sec": 100.0,
        "perf/step_time_ms": 2000.0,
        "perf/input_wait_fraction": 0.25,
    }


def test_pauses_do_not_count_and_every_reading_starts_anew(clock):
    throughput = Throughput(clock=clock)
    throughput.add(steps=5, examples=5)
    clock.now += 7
    throughput.read()
    clock.now += 1
    with throughput.pause():
        clock.now += 100
    throughput.add(steps=1, examples=4)
    assert throughput.read()["perf/examples_per_sec"] == 4.0


def test_utilization_is_the_time_at_the_peak_by_the_time_it_took(clock):
    throughput = Throughput(peak_flops_per_second=100.0, clock=clock)
    throughput.add(steps=3, examples=3, flops=150.0)
    clock.now += 6
    assert throughput.read()["perf/model_flops_utilization"] == 0.25
    throughput.add(steps=1, examples=1, flops=50.0)
    clock.now += 1
    assert throughput.read()["perf/model_flops_utilization"] == 0.5


def test_no_steps_have_no_pace(clock):
    assert Throughput(clock=clock).read() == {}


@pytest.mark.parametrize(
    ("milliseconds", "steps_per_loop", "steps_left", "is_advised"),
    [(9.9, 1, 1000, True), (10.0, 1, 1000, False), (9.9, 10, 1000, False), (9.9, 1, 999, False)],
)
def test_many_short_steps_are_advised_to_share_a_call(
    milliseconds, steps_per_loop, steps_left, is_advised
):
    rates = {"perf/step_time_ms": milliseconds}
    advice = advise_loop(rates, steps_per_loop=steps_per_loop, steps_left=steps_left)
    assert ("takes 9.9 ms" in advice and "--set=steps_per_loop=10" in advice) == is_advised
    assert advise_loop({}, steps_per_loop=1, steps_left=1000) == ""
