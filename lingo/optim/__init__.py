"""Optimizers and schedules of their learning rates: pure functions of tensors."""

from __future__ import annotations

from lingo.optim.adadelta import AdaDelta
from lingo.optim.adafactor import Adafactor
from lingo.optim.adagrad import Adagrad
from lingo.optim.adam import Adam, AdamW
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.compound_schedule import (
    Cooldown,
    EpochWarmup,
    InEpochs,
    ProductSchedule,
    SequentialSchedule,
    SwitchedWarmup,
    Warmup,
    WarmupStableDecay,
)
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.lion import Lion
from lingo.optim.matrix import MatrixOptimizer
from lingo.optim.muon import Muon
from lingo.optim.optimizer import Optimizer
from lingo.optim.plateau import Plateau
from lingo.optim.rmsprop import RmsProp
from lingo.optim.run_length import KnownLength
from lingo.optim.scaling import epochs_to_steps, scale_by_root, scale_linearly
from lingo.optim.schedule import (
    ConstantRate,
    Cosine,
    Cyclic,
    Exponential,
    InverseSqrt,
    LinearRate,
    Piecewise,
    Polynomial,
    Schedule,
    Transformer,
)
from lingo.optim.sgd import Momentum, Sgd
from lingo.optim.shampoo import Shampoo

__all__ = [
    "AdaDelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "ByPath",
    "ConstantRate",
    "Cooldown",
    "Cosine",
    "Cyclic",
    "EpochWarmup",
    "Exponential",
    "Frozen",
    "InEpochs",
    "InverseSqrt",
    "KnownLength",
    "Lamb",
    "Lars",
    "LinearRate",
    "Lion",
    "MatrixOptimizer",
    "Momentum",
    "Muon",
    "Optimizer",
    "Piecewise",
    "Plateau",
    "Polynomial",
    "ProductSchedule",
    "RmsProp",
    "Schedule",
    "SequentialSchedule",
    "Sgd",
    "Shampoo",
    "SwitchedWarmup",
    "Transformer",
    "Warmup",
    "WarmupStableDecay",
    "epochs_to_steps",
    "scale_by_root",
    "scale_linearly",
]
