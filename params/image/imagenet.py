"""Shared parts of experiments on ImageNet (Russakovsky et al. 2015): numbers, inputs, the task.

`folder` has ImageNet's TFRecord files as github.com/tensorflow/tpu writes them:
train-00000-of-01024 and so on, validation-00000-of-00128 and so on. Listing and checking
experiments needs no file.

ImageNet is not included. Without a folder, scikit-learn's digits take its place: ten of the
thousand classes, enlarged to the size of ImageNet's images. They show that steps can be computed,
and their cost. No accuracy on ImageNet was measured.
"""

from __future__ import annotations

from typing import Any

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data import (
    CentralView,
    ImageFileInput,
    ImageInput,
    ImageRecords,
    MixedInput,
    RandomView,
)
from lingo.datasets import Digits
from lingo.layers import Chain
from lingo.optim import epochs_to_steps
from tasks.image.augmentation import train_example
from tasks.image.task import ImageClassification

NUM_CLASSES = 1000
TRAIN_IMAGES = 1_281_167
LARGEST_EVAL_BATCH = 1024
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of pixels per colour, 0 to 1


def imagenet_experiment(
    layers: list[Any],
    *,
    batch_size: int,
    folder: str | None,
    size: int = 224,
    optimizer: Any,
    max_steps: int,
    label_smoothing: float = 0.0,
    eval_side: float = 0.875,
    num_classes: int = NUM_CLASSES,
) -> Any:
    """Returns an experiment that trains layers on images of size x size pixels.

    Evaluations see the square in the middle of an image, whose side is `eval_side` of the image's
    shorter side.
    """
    return Experiment.params(
        task=ImageClassification.params(
            model=Chain.params(layers=layers),
            num_classes=num_classes,
            mean=MEAN,
            std=STD,
            label_smoothing=label_smoothing,
        ),
        **imagenet_inputs(
            folder, batch_size=batch_size, size=size, eval_side=eval_side, num_classes=num_classes
        ),
        optimizer=optimizer,
        max_steps=max_steps,
    )


def imagenet_inputs(
    folder: str | None,
    *,
    batch_size: int,
    size: int,
    eval_side: float = 0.875,
    num_classes: int = NUM_CLASSES,
) -> dict[str, Any]:
    """Returns the inputs of an experiment, {"train_input": ..., "eval_inputs": ...}."""
    if folder is None:
        shape = (size, size, 3)
        train = ImageInput.params(source=Digits.params(split="train"), enlarged_to=shape)
        heldout = train.copy().set(source=Digits.params(split="heldout"))
    else:
        source = ImageRecords.params(pattern=f"{folder}/train-*", num_classes=num_classes)
        train = ImageFileInput.params(source=source, view=RandomView, size=size)
        source = source.copy().set(pattern=f"{folder}/validation-*")
        view = CentralView.params(side=eval_side)
        heldout = ImageFileInput.params(source=source, view=view, size=size)
    heldout.set(batch_size=min(batch_size, LARGEST_EVAL_BATCH), repeat=False)
    return {
        "train_input": train.set(batch_size=batch_size),
        "eval_inputs": {"heldout": heldout},
    }


def imagenet_steps(epochs: float, *, batch_size: int, num_images: int = TRAIN_IMAGES) -> int:
    """Returns the number of whole steps in some epochs of ImageNet."""
    return epochs_to_steps(epochs, num_examples=num_images, batch_size=batch_size)


def steps_after(warmup_steps: int, *, num_steps: int) -> int:
    """Returns the number of steps after a warm-up; raises ParamError if none is left."""
    if num_steps <= warmup_steps:
        raise ParamError(
            f"training ends after {num_steps:,} steps, and its warm-up takes {warmup_steps:,}:"
            " train for longer"
        )
    return num_steps - warmup_steps


def change_and_mix(data: Any, *, size: int, num_classes: int, magnitude: float = 10.0) -> Any:
    """Returns an input whose images are changed by two RandAugment operations, then mixed by MixUp.

    The defaults are from Beyer et al. (2022). Digits in place of ImageNet are only mixed.
    """
    if data.cls is not ImageInput:
        crop = {"size": size, "padding": 0, "flip_rate": 0.0}  # all of the image
        changes = {"num_ops": 2, "magnitude": magnitude}
        data.set(augment=train_example, augment_arguments=crop | changes)
    return MixedInput.params(
        input=data, batch_size=data.batch_size, num_classes=num_classes, mixup_alpha=0.2
    )
