"""The rules of MLPerf training, rounds 0.6, 0.7 and 1.0, for the benchmarks that lingo can log.

    RULES["resnet@0.7.0"]
    check_target(rules, experiment)

Targets and numbers of runs of rounds 0.6 and 0.7 are from training_policies/training_rules.adoc,
sections "Quality targets" and "Benchmark results", with the correction of May 2020: round 0.6 had
the targets of 0.23 for SSD and 0.24 for GNMT. BERT's targets are from the compliance checker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from lingo.config.params import ParamError
from lingo.contract import Experiment

Benchmark = Literal[
    "resnet@0.6.0",
    "ssd@0.6.0",
    "maskrcnn@0.6.0",
    "transformer@0.6.0",
    "gnmt@0.6.0",
    "resnet@0.7.0",
    "ssd@0.7.0",
    "maskrcnn@0.7.0",
    "transformer@0.7.0",
    "gnmt@0.7.0",
    "bert@0.7.0",
    "bert@1.0.0",
    "dlrm@0.7.0",
]
"""A benchmark of MLPerf training by the rules of one round."""


class FullForm(NamedTuple):
    """Properties of a benchmark's own model and data; a run that lacks them is a small form."""

    input: str  # class name of the training input
    train_samples: int
    eval_samples: int
    num_weights: int


class PartialTarget(NamedTuple):
    """One of several metrics that have to reach their targets in the same evaluation."""

    metric: str  # the evaluation's metric
    target: float  # the value that it has to reach, a fraction


class Rules(NamedTuple):
    """The rules of one round for one benchmark."""

    name: str  # the benchmark's name in logs
    ruleset: str  # the version of the rules, as MLCommons' compliance checker names it
    metric: str  # the evaluation's metric that logs name `eval_accuracy`
    target: float  # the value that the metric has to reach, a fraction
    num_runs: int  # number of runs that a result needs
    full_form: FullForm | None = None  # None: lingo has no experiment in the full form
    # name in logs -> a metric; if there are some, `eval_accuracy` has all of them, and `metric` is
    # the smallest of their values, each divided by its target
    parts: Mapping[str, PartialTarget] = {}

    def log_value(self, results: Mapping[str, float]) -> Any:
        """Returns the value of `eval_accuracy` for an evaluation's results."""
        if self.parts:
            return {name: results[part.metric] for name, part in self.parts.items()}
        return results[self.metric] / self.whole

    def accuracy(self, value: Any) -> Any:
        """Returns the number of a value of `eval_accuracy` that is compared with `target`.

        Of several metrics it is the smallest share of a target, at most 1, or NaN if one of them is
        no finite number. Any other value stays as it is.
        """
        if not self.parts or not isinstance(value, Mapping):
            return value
        try:
            shares = [float(value.get(name, 0)) / part.target for name, part in self.parts.items()]
        except (TypeError, ValueError):  # a log may have anything
            return math.nan
        return min(1.0, *shares) if all(map(math.isfinite, shares)) else math.nan

    def __str__(self) -> str:
        return f"{self.name}@{self.ruleset}"

    @property
    def whole(self) -> float:
        """The metric's value that logs write as 1: 100 for BLEU, which is in percent, else 1."""
        return 100.0 if self.metric == "bleu_uncased" else 1.0


_NUM_RUNS = {
    "resnet": 5,
    "ssd": 5,
    "maskrcnn": 5,
    "transformer": 10,
    "gnmt": 10,
    "bert": 10,
    "dlrm": 5,
}
_TARGETS = {
    "0.6.0": {"resnet": 0.759, "ssd": 0.23, "maskrcnn": 1.0, "transformer": 0.25, "gnmt": 0.24},
    "0.7.0": {
        "resnet": 0.759,
        "ssd": 0.23,
        "maskrcnn": 1.0,  # of both targets in `_PARTS`
        "transformer": 0.25,
        "gnmt": 0.24,
        "bert": 0.712,
        "dlrm": 0.8025,
    },
    "1.0.0": {"bert": 0.72},
}
_FULL_FORMS = {
    "resnet": FullForm("ImageFileInput", 1_281_167, 50_000, 25_557_032),
    "ssd": FullForm("CocoInput", 117_266, 5000, 19_972_534),
    "maskrcnn": FullForm("CocoInput", 117_266, 5000, 44_400_693),
}
_PARTS = {"maskrcnn": {"BBOX": PartialTarget("ap", 0.377), "SEGM": PartialTarget("mask_ap", 0.339)}}

_METRICS = {
    "resnet": "accuracy",
    "ssd": "ap",
    "maskrcnn": "target_share",
    "transformer": "bleu_uncased",
    "gnmt": "bleu_uncased",
    "bert": "masked_accuracy",
    "dlrm": "auc",
}

RULES: dict[str, Rules] = {
    f"{name}@{ruleset}": Rules(
        name=name,
        ruleset=ruleset,
        metric=_METRICS[name],
        target=target,
        num_runs=_NUM_RUNS[name],
        full_form=_FULL_FORMS.get(name),
        parts=_PARTS.get(name, {}),
    )
    for ruleset, targets in _TARGETS.items()
    for name, target in targets.items()
}
"""All rules, by `Benchmark`."""


def check_target(rules: Rules, experiment: Experiment) -> None:
    """Raises ParamError if an experiment's metric or target does not fit the rules."""
    p = experiment.p.evaluate
    metric = (p.metric or "").partition("/")[2]
    if p.reach is None or p.goal != "max" or metric != rules.metric:
        raise ParamError(
            f"a log of {rules} needs the value of {rules.metric!r} that ends a run, and the"
            f" experiment has evaluate.metric={p.metric!r}, goal={p.goal!r}, reach={p.reach}: use"
            f" --set=evaluate.metric=heldout/{rules.metric} --set=evaluate.goal=max"
            f" --set=evaluate.reach={rules.target * rules.whole:g}"
        )
