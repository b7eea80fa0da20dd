"""The metrics page is text that Prometheus reads."""

from __future__ import annotations

from lingo.serving.prometheus import Counter, Gauge, Histogram, page


def test_buckets_count_all_values_up_to_their_bound() -> None:
    times = Histogram("t", "Times.", "what", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        times.observe("a", value)
    assert page([times]).splitlines() == [
        "# HELP t Times.",
        "# TYPE t histogram",
        't_bucket{what="a",le="0.1"} 2',
        't_bucket{what="a",le="1.0"} 3',
        't_bucket{what="a",le="+Inf"} 4',
        't_sum{what="a"} 7.65',
        't_count{what="a"} 4',
    ]


def test_counters_and_gauges_have_a_line_for_each_value_of_their_labels() -> None:
    counter = Counter("n", "Numbers.", ("what", "how"))
    for labels in (("a", "x"), ("a", "y"), ("a", "x")):
        counter.add(*labels)
    gauge = Gauge("g", "Now.", "what", lambda: {'"\\\n': 2})
    assert page([counter, gauge]).splitlines() == [
        "# HELP n Numbers.",
        "# TYPE n counter",
        'n{what="a",how="x"} 2',
        'n{what="a",how="y"} 1',
        "# HELP g Now.",
        "# TYPE g gauge",
        'g{what="\\"\\\\\\n"} 2',
    ]
