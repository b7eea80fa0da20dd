"""Experiments with the settings that benchmarks log, and runs of them in which nothing trains."""

import itertools
import pathlib

import pytest

from lingo.config import registry
from lingo.data import TsvPairs
from lingo.optim import (
    ConstantRate,
    EpochWarmup,
    Lamb,
    Lars,
    LinearRate,
    Momentum,
    Piecewise,
    Polynomial,
    SequentialSchedule,
    Warmup,
)
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.mlperf.rules import RULES
from lingo.trainer.mlperf.run_log import RunLog

PAIRS = pathlib.Path(__file__).parent / "logs/pairs.tsv"

MADE = "made for a test: nothing was trained, the accuracies are those of the rules"


def digits(optimizer):
    """A log of a benchmark needs evaluations with a target, and batch norms have a span."""
    params = registry.get("mlperf.resnet.digits", ["train_input.batch_size=128"]).params
    return params.set(optimizer=optimizer)


def resnet():
    then = Polynomial.params(num_steps=100, end=1e-4 / 31.2)
    rise = EpochWarmup.params(epochs=2.5, examples_per_epoch=1463, batch_size=128, then=then)
    return digits(Lars.params(learning_rate=31.2, weight_decay=1e-4, schedule=rise))


def sgd():
    fall = Piecewise.params(boundaries=[22, 45], values=[1.0, 0.1, 0.01])
    return digits(
        Momentum.params(
            learning_rate=0.1, weight_decay=1e-3, schedule=Warmup.params(num_steps=11, then=fall)
        )
    )


def ssd():
    # epochs 48 and 60 of 11.43 steps: the rise has 57 steps, for 5 epochs
    fall = Piecewise.params(boundaries=[491, 628], values=[1.0, 0.1, 0.01])
    return digits(
        Momentum.params(
            learning_rate=0.16, weight_decay=5e-3, schedule=Warmup.params(num_steps=57, then=fall)
        )
    )


def bert():
    fall = LinearRate.params(num_steps=560)
    return digits(
        Lamb.params(
            learning_rate=2.9e-3,
            beta1=0.88,
            beta2=0.88,
            weight_decay=0.0167,
            schedule=Warmup.params(num_steps=287, then=fall),
        )
    ).set(max_steps=560)


def dlrm():
    parts = [
        (Warmup.params(num_steps=2750), 49_315),
        (Polynomial.params(num_steps=27_772), 27_772),
    ]
    return digits(
        Momentum.params(learning_rate=0.887, schedule=SequentialSchedule.params(parts=parts))
    )


def pairs(overrides, schedule):
    params = registry.get("seq2seq.source.signatures", overrides).params
    params.evaluate.set(metric="heldout/accuracy", goal="max", reach=0.25, every_steps=10)
    params.optimizer.set(learning_rate=1.3, schedule=schedule)
    source = TsvPairs.params(pattern=str(PAIRS))
    for data in (params.train_input, *params.eval_inputs.values()):
        data.set(source=source, packing="none")  # 20 pairs: 2.5 steps in an epoch
    return params


def transformer():
    rise = Warmup.params(num_steps=550, then=ConstantRate)
    betas = ["optimizer.beta1=0.86", "optimizer.beta2=0.92", "optimizer.epsilon=1e-9"]
    return pairs(betas, rise)


def gnmt():
    fall = Piecewise.params(boundaries=[100, 150, 200], values=[1.0, 0.5, 0.25, 0.125])
    return pairs([], Warmup.params(num_steps=200, then=fall))


MAKERS = {
    "resnet": resnet,
    "ssd": ssd,
    "transformer": transformer,
    "gnmt": gnmt,
    "bert": bert,
    "dlrm": dlrm,
}


@pytest.fixture
def settings():
    """Makes the experiment of a benchmark, by name, or `sgd`, ResNet's with steps of the rate."""

    def settings(name):
        params = (MAKERS | {"sgd": sgd})[name]()
        rules = RULES[f"{'resnet' if name == 'sgd' else name}@0.7.0"]
        params.evaluate.set(metric=f"heldout/{rules.metric}", reach=rules.target * rules.whole)
        return params.set(benchmark=str(rules))

    return settings


class Ticks:
    """A clock that is a quarter of a second later each time."""

    def __init__(self):
        self._count = itertools.count(4 * 1_600_000_000)

    def __call__(self):
        return next(self._count) / 4


@pytest.fixture
def write(tmp_path):
    """Writes the log of a run in which nothing trains, and returns its file."""

    def write(params, text, *, accuracies, until=None):
        experiment, rules = params.set(benchmark=text).build(), RULES[text]
        path = RunDirectory(tmp_path / "run").path / "mllog.txt"
        path.parent.mkdir(exist_ok=True)
        log = RunLog(path, experiment, rules, clock=Ticks())
        log.start(0, is_evaluated=False)
        experiment.train_input.prepare()
        log.describe(MADE, ["/device:CPU:0"])
        every, p = params.evaluate.every_steps, experiment.p.evaluate
        tags = p.metric.partition("/")
        for number in range(until or every * len(accuracies)):
            log.start_steps(number)
            log.end_steps(number + 1)
            if (number + 1) % every == 0:
                accuracy = accuracies[number // every] * rules.whole
                log.start_evaluation(number + 1)
                log.end_evaluation({tags[0]: {f"eval/{tags[2]}": accuracy}})
        if until is None:
            log.end_run(has_reached=max(accuracies) * rules.whole >= p.reach)
        return path

    return write
