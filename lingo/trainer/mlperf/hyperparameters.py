"""The hyper-parameters that MLPerf's rules require in a log, read from an experiment.

Keys and meanings follow the compliance checker's files `training_0.6.0/*.yaml`,
`training_0.7.0/closed_*.yaml` and `training_1.0.0/closed_bert.yaml`. A key for which an experiment
has no value is left out; the checker reports it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from lingo.config.node.tree import nodes
from lingo.contract import Experiment
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.optim.adam import Adam
from lingo.optim.compound_schedule import (
    EpochWarmup,
    ProductSchedule,
    SequentialSchedule,
    SwitchedWarmup,
    Warmup,
)
from lingo.optim.schedule import Piecewise, Polynomial, Schedule, Transformer
from lingo.optim.sgd import Sgd

_DIGITS = 12  # digits to which values are rounded: 31.2 * (1e-4 / 31.2) then is 1e-4
_LEAST_STEPS = 4  # least steps in an epoch for which steps are rounded to whole epochs
_TOLERANCE = 1 / 8  # largest change by this rounding, in epochs
_CROP_TRIES = 50  # of `min_iou_crop`


class Entry(NamedTuple):
    """The value of a hyper-parameter's key in a log."""

    value: Any
    metadata: Mapping[str, Any] = MappingProxyType({})


def hyperparameters(experiment: Experiment, benchmark: str, ruleset: str) -> dict[str, Entry]:
    """Returns key -> entry of a benchmark's hyper-parameters; the train input must be open."""
    reader = _Reader(experiment)
    found: dict[str, Any] = {"global_batch_size": reader.batch_size}
    match benchmark:
        case "resnet":
            found |= _resnet(reader, ruleset)
        case "ssd":
            found |= _ssd(reader)
        case "maskrcnn":
            found |= _maskrcnn(reader)
        case "transformer":
            found |= _transformer(reader)
        case "gnmt":
            found |= _gnmt(reader)
        case "bert":
            found |= _bert(reader)
        case "dlrm":
            found |= _dlrm(reader)
    entries = {k: v if isinstance(v, Entry) else Entry(v) for k, v in found.items()}
    return {key: entry for key, entry in entries.items() if entry.value is not None}


class _Reader:
    """Reads hyper-parameters from an experiment; a value that the experiment lacks is None."""

    def __init__(self, experiment: Experiment) -> None:
        self.params, self.optimizer = experiment.p, experiment.p.optimizer
        self.batch_size: int = experiment.train_input.specs()["rows"][0][0]
        self.num_steps = experiment.length.steps
        self.image_shape = experiment.train_input.offers().get("image_shape", (0, 0, 0))
        self._steps_per_epoch = experiment.length.steps_per_epoch

    @property
    def name(self) -> str:
        """The optimizer's name in logs."""
        for cls, name in ((Sgd, "sgd"), (Adam, "adam")):
            if issubclass(self.optimizer.cls, cls):
                return name
        return self.optimizer.cls.__name__.lower()

    @property
    def rate(self) -> float | None:
        """The peak of the learning rate."""
        return self.optimizer.learning_rate

    def setting(self, name: str) -> Any:
        """Returns a field of the optimizer, or None if there is no such field."""
        return getattr(self.optimizer, name, None)

    @property
    def weight_decay(self) -> Entry:
        """The weight decay in the form that MLPerf logs: as a term of the gradient.

        lingo's Sgd has decoupled decay, which is 1 / (1 - momentum) times the logged value.
        """
        decay = self.optimizer.weight_decay
        if self.name != "sgd":
            return Entry(decay)
        return Entry(_round(decay * (1 - self.optimizer.momentum)), {"decoupled": decay})

    @property
    def end_rate(self) -> float | None:
        """The learning rate at the end of a polynomial decay."""
        fall = self.find(Polynomial)
        return None if fall is None else _round(self.optimizer.learning_rate * fall.end)

    @property
    def warmup_steps(self) -> int | None:
        """The number of warm-up steps, in which the learning rate rises."""
        for cls in (Warmup, SwitchedWarmup):
            if (found := self.find(cls)) is not None:
                return found.num_steps
        if (found := self.find(EpochWarmup)) is not None:
            return math.floor(_length(found))
        found = self.find(Transformer)
        return None if found is None else found.warmup_steps

    @property
    def warmup_epochs(self) -> float | None:
        """The number of warm-up epochs, in which the learning rate rises."""
        if (found := self.find(EpochWarmup)) is not None:
            return found.epochs
        return None if self.warmup_steps is None else self.epochs(self.warmup_steps)

    @property
    def boundaries(self) -> list[int] | None:
        """The steps at which the learning rate drops, counted from the first step of the run."""
        found, start = self.find(Piecewise), self.start_of(Piecewise)
        return None if found is None else [(start or 0) + step for step in found.boundaries]

    @property
    def decay_factor(self) -> float | None:
        """The factor of the learning rate's first drop; None without a drop."""
        first, *later = self.field(Piecewise, "values") or [0.0]
        return _round(later[0] / first) if first and later else None

    @property
    def boundary_epochs(self) -> list[float] | None:
        """The epochs at which the learning rate drops."""
        steps = self.boundaries
        return None if steps is None else [self.epochs(step) for step in steps]

    @functools.cached_property
    def norm_span(self) -> int | None:
        """The number of examples whose statistics a batch norm averages."""
        norms = [node for node in nodes(self.params) if issubclass(node.cls, BatchNorm)]
        spans = {norm.statistics_over or self.batch_size for norm in norms}
        return min(spans, default=None)

    def field(self, cls: type[Schedule], name: str) -> Any:
        """Returns a field of the first `cls` in the schedule, or None if it has no such class."""
        found = self.find(cls)
        return None if found is None else getattr(found, name)

    def find(self, cls: type[Schedule]) -> Any:
        """Returns the first Params of class `cls` in the schedule, or None."""
        schedule = self.setting("schedule")
        found = nodes(schedule) if schedule is not None else []
        return next((node for node in found if issubclass(node.cls, cls)), None)

    def start_of(self, cls: type[Schedule]) -> int | None:
        """Returns the step at which the schedule's part of class `cls` begins, or None."""
        return _find_start(self.setting("schedule"), cls)

    def epochs(self, steps: int) -> float:
        """Returns steps in epochs; a whole number if it differs only by rounding to whole steps."""
        epochs = steps / self._steps_per_epoch
        whole = round(epochs)
        off = abs(steps - whole * self._steps_per_epoch)
        # rounding adds at most a step in each of two parts of the schedule
        limit = min(2, _TOLERANCE * self._steps_per_epoch)
        is_whole = whole > 0 and self._steps_per_epoch >= _LEAST_STEPS and off < limit
        return float(whole) if is_whole else _round(epochs)


def _find_start(schedule: Any, cls: type[Schedule]) -> int | None:
    if schedule is None or issubclass(schedule.cls, cls):
        return None if schedule is None else 0
    if issubclass(schedule.cls, SequentialSchedule):
        before = 0
        for part, num_steps in schedule.parts:
            if (inner := _find_start(part, cls)) is not None:
                return before + inner
            before += num_steps
    elif issubclass(schedule.cls, ProductSchedule):
        starts = (_find_start(factor, cls) for factor in schedule.schedules)
        return next((start for start in starts if start is not None), None)
    elif issubclass(schedule.cls, Warmup | EpochWarmup):
        is_plain = issubclass(schedule.cls, Warmup)
        rise = schedule.num_steps if is_plain else math.floor(_length(schedule))
        inner = _find_start(schedule.then, cls)
        return None if inner is None else rise + inner
    return None


def _length(warmup: Any) -> float:
    return warmup.epochs * warmup.examples_per_epoch / warmup.batch_size


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# ---- benchmarks ----------------------------------------------------------------------------------


def _resnet(reader: _Reader, ruleset: str) -> dict[str, Any]:
    shared = {
        "opt_name": reader.name,
        "opt_base_learning_rate": reader.rate,
        "opt_learning_rate_warmup_epochs": reader.warmup_epochs,
        "model_bn_span": reader.norm_span,
    }
    prefix = f"{reader.name}_opt"
    fall = {
        f"{prefix}_learning_rate_decay_steps": reader.field(Polynomial, "num_steps"),
        f"{prefix}_learning_rate_decay_poly_power": reader.field(Polynomial, "power"),
        f"{prefix}_weight_decay": reader.weight_decay,
    }
    own: dict[str, Any] = {"lars_epsilon": reader.setting("epsilon")} | fall
    if reader.name != "lars":
        own = fall | {"opt_learning_rate_decay_boundary_epochs": reader.boundary_epochs}
    if ruleset == "0.6.0":
        return shared | own
    return (
        shared
        | own
        | {
            f"{prefix}_base_learning_rate": reader.rate,
            f"{prefix}_end_learning_rate": reader.end_rate,
            f"{prefix}_learning_rate_warmup_epochs": reader.warmup_epochs,
            f"{prefix}_momentum": reader.setting("momentum"),
        }
    )


def _ssd(reader: _Reader) -> dict[str, Any]:
    is_cropped = getattr(reader.params.train_input, "random_crop", False)
    return {
        "opt_name": reader.name,
        "opt_base_learning_rate": reader.rate,
        "opt_weight_decay": reader.weight_decay,
        "opt_learning_rate_warmup_steps": reader.warmup_steps,
        "opt_learning_rate_warmup_factor": reader.field(Warmup, "start"),
        "opt_learning_rate_decay_boundary_epochs": reader.boundary_epochs,
        "max_samples": Entry(_CROP_TRIES if is_cropped else 1, {"random_crop": is_cropped}),
        "model_bn_span": reader.norm_span,
    }


def _maskrcnn(reader: _Reader) -> dict[str, Any]:
    task = reader.params.task
    # an image is as large as fits: into `fit_size`, or on its canvas, whose short side bounds the
    # image's short side, and its long side the long one, as both sizes do in the reference
    fit_size = getattr(reader.params.train_input, "fit_size", None)
    height, width = fit_size or reader.image_shape[:2]
    return {
        "opt_base_learning_rate": reader.rate,
        "opt_learning_rate_warmup_steps": reader.warmup_steps,
        "opt_learning_rate_warmup_factor": reader.field(Warmup, "start"),
        "opt_learning_rate_decay_factor": reader.decay_factor,
        "opt_learning_rate_decay_steps": reader.boundaries,
        "num_image_candidates": task.num_proposals,
        "min_image_size": min(height, width),
        "max_image_size": max(height, width),
    }


def _transformer(reader: _Reader) -> dict[str, Any]:
    return {
        "opt_name": reader.name,
        "opt_base_learning_rate": reader.rate,
        "opt_learning_rate_warmup_steps": reader.warmup_steps,
        "opt_adam_beta_1": reader.setting("beta1"),
        "opt_adam_beta_2": reader.setting("beta2"),
        "opt_adam_epsilon": reader.setting("epsilon"),
        "max_sequence_length": _max_length(reader),
    }


def _gnmt(reader: _Reader) -> dict[str, Any]:
    boundaries = reader.boundaries
    found = {
        "opt_base_learning_rate": reader.rate,
        "opt_learning_rate_alt_decay_func": False,
        "opt_learning_rate_alt_warmup_func": False,
        "opt_learning_rate_warmup_steps": reader.warmup_steps,
        "max_sequence_length": _max_length(reader),
    }
    if not boundaries:
        return found
    intervals = {later - earlier for earlier, later in pairwise(boundaries)}
    return found | {
        "opt_learning_rate_remain_steps": boundaries[0] + 1,  # the first step of the lower rate
        "opt_learning_rate_decay_interval": intervals.pop() if len(intervals) == 1 else None,
        "opt_learning_rate_decay_factor": reader.decay_factor,
        "opt_learning_rate_decay_steps": len(boundaries),
    }


def _bert(reader: _Reader) -> dict[str, Any]:
    return {
        "opt_name": reader.name,
        "opt_base_learning_rate": reader.rate,
        "opt_epsilon": reader.setting("epsilon"),
        "opt_learning_rate_training_steps": reader.num_steps,
        "opt_learning_rate_warmup_steps": reader.warmup_steps,
        "num_warmup_steps": reader.warmup_steps,
        "start_warmup_step": reader.field(SwitchedWarmup, "start_step") or 0,
        "opt_lamb_beta_1": reader.setting("beta1"),
        "opt_lamb_beta_2": reader.setting("beta2"),
        "opt_lamb_weight_decay_rate": reader.optimizer.weight_decay,
    }


def _dlrm(reader: _Reader) -> dict[str, Any]:
    return {
        "opt_base_learning_rate": reader.rate,
        "opt_learning_rate_warmup_steps": reader.warmup_steps,
        "lr_decay_start_steps": reader.start_of(Polynomial),
        "sgd_opt_base_learning_rate": reader.rate,
        "sgd_opt_learning_rate_decay_poly_power": reader.field(Polynomial, "power"),
        "sgd_opt_learning_rate_decay_steps": reader.field(Polynomial, "num_steps"),
    }


def _max_length(reader: _Reader) -> Entry:
    """Returns the entry of the largest target length, with what happens to longer pairs."""
    data = reader.params.train_input
    method = "truncate" if getattr(data, "too_long", None) == "cut" else "discard"
    return Entry(getattr(data, "target_length", None), {"method": method})
