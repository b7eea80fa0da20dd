"""A Vision Transformer trained on small images goes on with large ones and other classes."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.checkpoints.warm_start import WarmStart
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data import Digits, ImageInput
from lingo.layers import Chain, LayerNorm, context
from lingo.layers.vision.image_positions import LearnedImagePositions
from lingo.layers.vision.patch_embedding import PatchEmbedding
from lingo.layers.vision.patch_head import PatchHead
from lingo.layers.vision.vit import Encoder, encoder_stack
from lingo.optim import AdamW
from lingo.trainer.request import Request
from lingo.trainer.run import run
from tasks.image.task import ImageClassification

D = 8
SMALL, LARGE = (4, 4), (8, 6)  # patches of 2 x 2 pixels
POSITIONS = "model/layers/1/vectors"


def experiment(grid: tuple[int, int], *, num_classes: int, **fields: Any) -> Params:
    """Returns the experiment of a network that sees digits, enlarged if the grid is."""
    layers = [
        PatchEmbedding.params(dim=1, output_dim=D, patch=2),
        LearnedImagePositions.params(dim=D, grid=grid),
        encoder_stack(Encoder(D, 1, 2)),
        LayerNorm.params(dim=D),
        PatchHead.params(dim=D, num_classes=num_classes),
    ]
    height, width = (8 * -(-2 * n // 8) for n in grid)
    data = ImageInput.params(source=Digits, batch_size=8, enlarged_to=(height, width, 1))
    return Experiment.params(
        task=ImageClassification.params(model=Chain.params(layers=layers), num_classes=num_classes),
        train_input=data,
        optimizer=AdamW.params(learning_rate=1e-2),
        max_steps=2,
        **fields,
    )
