"""ResNet-50 as in rounds 0.6 and 0.7 of MLPerf training, and a small form of it on digits.

v06_pod, v07_multipod       LARS in batches of 32,768 and 65,536: Google's largest entries
digits                      a ResNet of 14 layers, in seconds

A run ends when 75.9 % of ImageNet's validation images are right, evaluated every four epochs. The
full forms were not run: only learning rates and sizes are checked.
"""

from __future__ import annotations

from typing import Any, Literal

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers import BatchNorm, Chain
from lingo.models.image.resnet import resnet
from lingo.optim import EpochWarmup, Lars, Polynomial, epochs_to_steps
from lingo.trainer.mlperf.rules import Benchmark
from lingo.trainer.mlperf.run_log import MlperfLog
from params.image.imagenet import imagenet_steps
from params.image.resnet import multipod, supercomputer
from tasks.image.task import ImageClassification

TARGET = 0.759  # of both rounds
EPOCHS_PER_EVALUATION = 4
DIGITS = 1463  # training digits of scikit-learn


@experiment
def v06_pod(
    data: int = 2048,
    momentum: Literal["scaled", "unscaled"] = "scaled",
    folder: str | None = None,
):
    """ResNet-50 in batches of 32,768, with the target and evaluations of round 0.6.

    The recipe is `image.resnet.supercomputer`: LARS with a rate of 31.2, 25 epochs of warm-up, at
    most 2,983 steps. On 1,024 chips of TPU v3 the result was 76.9467 seconds (Kumar et al. 2019).

    lingo show --exp=mlperf.resnet.v06_pod --plot_schedule
    lingo train --exp='mlperf.resnet.v06_pod(folder="imagenet")' --logdir=runs/v06_pod
    """
    cfg = supercomputer(data=data, momentum=momentum, folder=folder)
    return _to_target(cfg, benchmark="resnet@0.6.0")


@experiment
def v07_multipod(data: int = 8192, folder: str | None = None):
    """ResNet-50 in batches of 65,536, with the target and evaluations of round 0.7.

    The recipe is `image.resnet.multipod`: LARS with a rate of 24.699, 31 epochs of warm-up, an
    unscaled momentum of 0.951807, at most 1,738 steps; and an epsilon of 0, which the rules of this
    round fix. On 4,096 chips of TPU v3 the result was 28.885 seconds (Kumar et al. 2021).

    lingo show --exp=mlperf.resnet.v07_multipod --plot_schedule
    lingo train --exp='mlperf.resnet.v07_multipod(folder="imagenet")' \\
        --logdir=runs/v07_multipod
    """
    return _to_target(multipod(data=data, folder=folder), benchmark="resnet@0.7.0")


def _to_target(cfg: Any, *, benchmark: Benchmark) -> Any:
    """Returns an experiment that ends at the target, evaluated every four epochs."""
    every_steps = imagenet_steps(EPOCHS_PER_EVALUATION, batch_size=cfg.train_input.batch_size)
    return cfg.set(
        observers=[MlperfLog.params(benchmark=benchmark)],
        evaluate=Evaluation.params(
            every_steps=every_steps, metric="heldout/accuracy", goal="max", reach=TARGET
        ),
        checkpoint=Checkpointing.params(every_steps=every_steps),
    )


@experiment
def digits(epochs: int = 12, batch_size: int = 32):
    """A small form: a ResNet of 14 layers on scikit-learn's digits, by the rules of ResNet-50.

    The model has 50,882 weights. The optimizer is LARS with a rate of 4, two epochs of warm-up and
    a quadratic decay. An evaluation follows each epoch. A run ends when 97 % of 334 held-out digits
    are right, after five to eight epochs. Its log says that it is a small form; its time is not the
    benchmark's.

    lingo train --exp=mlperf.resnet.digits --logdir=runs/digits
    lingo benchmark --exp=mlperf.resnet.digits --logdir=runs/benchmark --runs=5
    """
    rate, warmup_epochs = 4.0, 2.0
    epoch, rise, num_steps = (
        epochs_to_steps(n, num_examples=DIGITS, batch_size=batch_size)
        for n in (1, warmup_epochs, epochs)
    )
    data = ImageInput.params(source=Digits.params(split="train"), batch_size=batch_size)
    heldout = data.copy().set(source=Digits.params(split="heldout"), batch_size=167, repeat=False)
    layers = resnet(num_layers=14, num_classes=10, channels=1, small_images=True, width=8)
    cfg = Experiment.params(
        task=ImageClassification.params(model=Chain.params(layers=layers), label_smoothing=0.1),
        train_input=data,
        eval_inputs={"heldout": heldout},
        optimizer=Lars.params(
            learning_rate=rate,
            weight_decay=1e-4,
            accumulate="gradients",
            schedule=EpochWarmup.params(
                epochs=warmup_epochs,
                examples_per_epoch=DIGITS,
                batch_size=batch_size,
                then=Polynomial.params(num_steps=num_steps - rise + 1, end=1e-4 / rate),
            ),
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(
            every_steps=epoch, metric="heldout/accuracy", goal="max", reach=0.97
        ),
        checkpoint=Checkpointing.params(every_steps=num_steps),
        observers=[MlperfLog.params(benchmark="resnet@0.7.0")],
    )
    cfg.all(BatchNorm).set(statistics_over=batch_size)
    return cfg
