"""The rules' targets and numbers of runs."""

import pytest

from lingo.config.params import ParamError
from lingo.trainer.mlperf.benchmark import find_benchmark


@pytest.mark.parametrize(
    ("text", "target", "num_runs"),
    [
        ("resnet@0.6.0", 0.759, 5),
        ("ssd@0.6.0", 0.23, 5),
        ("ssd@0.7.0", 0.23, 5),
        ("transformer@0.6.0", 0.25, 10),
        ("gnmt@0.6.0", 0.24, 10),
        ("gnmt@0.7.0", 0.24, 10),
        ("bert@0.7.0", 0.712, 10),
        ("dlrm@0.7.0", 0.8025, 5),
    ],
)
def test_targets_and_runs_are_those_of_the_rules(text, target, num_runs):
    found = find_benchmark(text)
    assert (found.target, found.num_runs, str(found)) == (target, num_runs, text)


def test_what_is_not_a_benchmark_is_refused_with_those_there_are():
    with pytest.raises(ParamError, match=r"'bert@0\.6\.0' is not .* Did you mean 'bert@0\.7\.0'"):
        find_benchmark("bert@0.6.0")
