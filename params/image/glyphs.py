"""Shared parts of small experiments on drawn letters and digits: 47 classes, 32 x 32 pixels.

They learn in a few minutes on two cores. Held-out images are of a family of typefaces that training
has not seen, to measure generalization.
"""

from __future__ import annotations

from typing import Any

from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.datasets import GlyphInput
from lingo.layers import Chain
from lingo.optim import epochs_to_steps
from tasks.image.task import ImageClassification

NUM_CLASSES = 47
IMAGE_SHAPE = (32, 32, 1)
TRAIN_IMAGES = 47 * 480
MEAN, STD = 0.06, 0.21  # of the pixels of training images, 0 to 1


def glyph_experiment(layers: list[Any], *, batch_size: int, num_steps: int, optimizer: Any) -> Any:
    """Returns an experiment that trains layers on glyphs, with an evaluation in the middle."""
    train = GlyphInput.params(split="train", batch_size=batch_size)
    heldout = GlyphInput.params(split="heldout", images_per_class=96, batch_size=256, repeat=False)
    return Experiment.params(
        task=ImageClassification.params(
            model=Chain.params(layers=layers), mean=MEAN, std=STD, label_smoothing=0.1
        ),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=optimizer,
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=max(1, num_steps // 2)),
        checkpoint=Checkpointing.params(every_steps=max(1, num_steps // 2)),
    )


def glyph_steps(epochs: float, *, batch_size: int) -> int:
    """Returns the number of whole steps in some epochs of the training images."""
    return epochs_to_steps(epochs, num_examples=TRAIN_IMAGES, batch_size=batch_size)
