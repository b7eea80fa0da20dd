"""Experiments with the settings that benchmarks log, and runs of them in which nothing trains."""

import itertools
import pathlib

import pytest

from lingo.config import registry
from lingo.contract import EvaluationReport, ObservedRun
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
from lingo.trainer.mlperf import run_log
from lingo.trainer.mlperf.rules import RULES
from lingo.trainer.mlperf.run_log import MLLOG, MlperfLog

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
    fall = Piecewise.params(boundaries=[99, 149, 199], values=[1.0, 0.5, 0.25, 0.125])
    return pairs([], Warmup.params(num_steps=200, then=fall))


def maskrcnn():
    """K = 8 of the rules: drops after (60,000, 80,000) (1 + K / 10) / K steps."""
    overrides = ["train_input.batch_size=128", "train_input.num_scenes=1280"]  # 10 steps an epoch
    params = registry.get("mlperf.mask_rcnn.digit_scenes", overrides).params
    fall = Piecewise.params(boundaries=[13_000, 17_500], values=[1.0, 0.1, 0.01])
    schedule = Warmup.params(num_steps=500, start=1 / 3, then=fall)
    params.evaluate.every_steps, params.task.num_proposals = 10, 1000
    return params.set(optimizer=Momentum.params(learning_rate=0.16, schedule=schedule))


MAKERS = {
    "resnet": resnet,
    "ssd": ssd,
    "maskrcnn": maskrcnn,
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
        return params.set(observers=[MlperfLog.params(benchmark=str(rules))])

    return settings


class Ticks:
    """A clock that is a quarter of a second later each time."""

    def __init__(self):
        self._count = itertools.count(4 * 1_600_000_000)

    def __call__(self):
        return next(self._count) / 4


@pytest.fixture
def observed(tmp_path):
    """Returns a run of an experiment, as its observers get it."""

    def observed(experiment):
        directory = tmp_path / "run"
        return ObservedRun(
            experiment=experiment, directory=directory, name=MADE, parameters={}, stop=print
        )

    return observed


@pytest.fixture
def resume(observed):
    """Continues the log that `write` has written, and returns it with its run."""

    def resume(params, step):
        experiment = params.build()
        run, log = observed(experiment), experiment.observers[0]
        log.on_begin(run, step)
        experiment.train_input.prepare()
        log.on_start(run, step)
        return log, run

    return resume


@pytest.fixture
def write(observed, monkeypatch):
    """Writes the log of a run in which nothing trains, and returns its file."""

    def write(params, text, *, accuracies, until=None):
        with monkeypatch.context() as patch:
            patch.setattr(run_log, "clock", Ticks())
            return _write(params, text, accuracies=accuracies, until=until)

    def _write(params, text, *, accuracies, until):
        experiment = params.set(observers=[MlperfLog.params(benchmark=text)]).build()
        run, log = observed(experiment), experiment.observers[0]
        run.directory.mkdir(exist_ok=True)
        log.on_begin(run, 0)
        experiment.train_input.prepare()
        log.on_start(run, 0)
        every, p = params.evaluate.every_steps, experiment.p.evaluate
        name, _, metric = p.metric.partition("/")
        for number in range(until or every * len(accuracies)):
            log.on_steps_start(run, number)
            log.on_steps_end(run, number + 1)
            if (number + 1) % every == 0:
                share, rules = accuracies[number // every], RULES[text]
                found = {part.metric: share * part.target for part in rules.parts.values()}
                is_last = until is None and number + 1 == every * len(accuracies)
                log.on_evaluation_start(run, number + 1)
                results = {name: found | {metric: share * rules.whole}}
                log.on_evaluation_end(run, EvaluationReport(number + 1, results, is_last))
        return run.directory / MLLOG

    return write
