"""The benchmarks of MLPerf training that lingo can log, by the rules of rounds 0.6 and 0.7.

    find_benchmark("resnet@0.7.0")

Targets and numbers of runs are those of the two rounds' training_policies/training_rules.adoc,
sections "Quality targets" and "Benchmark results", with the correction of May 2020: round 0.6 had
the targets of 0.23 for SSD and 0.24 for GNMT. BERT's is that of the compliance checker.
"""

from __future__ import annotations

from typing import NamedTuple

from lingo.config.params import ParamError, suggest


class FullForm(NamedTuple):
    """What tells a benchmark's own model and data from a small form of it."""

    input: str  # class of the training data
    train_samples: int
    eval_samples: int
    num_weights: int


class Benchmark(NamedTuple):
    """A benchmark by the rules of one round."""

    name: str  # as logs name it
    ruleset: str  # the version of the rules, as MLCommons' compliance checker names it
    target: float  # that `eval_accuracy` has to reach, a fraction
    num_runs: int  # that a result needs
    full_form: FullForm | None = None  # None: no experiment here has it

    def __str__(self) -> str:
        return f"{self.name}@{self.ruleset}"


_NUM_RUNS = {"resnet": 5, "ssd": 5, "transformer": 10, "gnmt": 10, "bert": 10, "dlrm": 5}
_TARGETS = {
    "0.6.0": {"resnet": 0.759, "ssd": 0.23, "transformer": 0.25, "gnmt": 0.24},
    "0.7.0": {
        "resnet": 0.759,
        "ssd": 0.23,
        "transformer": 0.25,
        "gnmt": 0.24,
        "bert": 0.712,
        "dlrm": 0.8025,
    },
}
_FULL_FORMS = {
    "resnet": FullForm("ImageFileInput", 1_281_167, 50_000, 25_557_032),
    "ssd": FullForm("CocoInput", 117_266, 5000, 19_972_534),
}

BENCHMARKS = {
    f"{name}@{ruleset}": Benchmark(name, ruleset, target, _NUM_RUNS[name], _FULL_FORMS.get(name))
    for ruleset, targets in _TARGETS.items()
    for name, target in targets.items()
}
"""All benchmarks, by their texts."""


def find_benchmark(text: str) -> Benchmark:
    """Returns the benchmark of a text such as "resnet@0.7.0"; ParamError if there is none."""
    if text not in BENCHMARKS:
        raise ParamError(
            f"{text!r:.80} is not a benchmark of MLPerf.{suggest(text, BENCHMARKS)}"
            f" There are {', '.join(BENCHMARKS)}."
        )
    return BENCHMARKS[text]
