"""What experiments on ImageNet (Russakovsky et al. 2015) share: numbers, inputs, the task.

ImageNet is not here. In its place are scikit-learn's digits, enlarged to the size of its images,
ten of the thousand classes: they show that steps can be computed, and what they cost. No accuracy
on ImageNet can be claimed. `imagenet_inputs` is the one function that names the data.
"""

from __future__ import annotations

from typing import Any

from lingo.contract import Experiment
from lingo.data import Digits, ImageInput
from lingo.layers import Chain
from lingo.optim import epochs_to_steps
from tasks.image.task import ImageClassification

NUM_CLASSES = 1000
TRAIN_IMAGES = 1_281_167
LARGEST_EVAL_BATCH = 1024


def imagenet_experiment(
    layers: list[Any],
    *,
    batch_size: int,
    size: int = 224,
    optimizer: Any,
    max_steps: int,
    label_smoothing: float = 0.0,
) -> Any:
    """Returns an experiment that trains layers on images of size x size pixels."""
    return Experiment.params(
        task=ImageClassification.params(
            model=Chain.params(layers=layers),
            num_classes=NUM_CLASSES,
            label_smoothing=label_smoothing,
        ),
        **imagenet_inputs(batch_size=batch_size, size=size),
        optimizer=optimizer,
        max_steps=max_steps,
    )


def imagenet_inputs(*, batch_size: int, size: int) -> dict[str, Any]:
    """Returns the inputs of an experiment, {"train_input": ..., "eval_inputs": ...}."""
    data = ImageInput.params(
        source=Digits.params(split="train"), batch_size=batch_size, enlarged_to=(size, size, 3)
    )
    heldout = data.copy().set(source=Digits.params(split="heldout"), repeat=False)
    heldout.batch_size = min(batch_size, LARGEST_EVAL_BATCH)
    return {"train_input": data, "eval_inputs": {"heldout": heldout}}


def imagenet_steps(epochs: float, *, batch_size: int, num_images: int = TRAIN_IMAGES) -> int:
    """Returns the number of whole steps in some epochs of ImageNet."""
    return epochs_to_steps(epochs, num_examples=num_images, batch_size=batch_size)
