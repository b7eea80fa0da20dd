"""BoTNet: a ResNet whose last blocks have attention over the image (Srinivas et al. 2021)."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.layers import BatchNorm
from lingo.models.image.botnet import botnet
from lingo.optim import Cosine, Momentum, Warmup, scale_linearly
from params.image import resnet
from params.image.glyphs import IMAGE_SHAPE
from params.image.glyphs import NUM_CLASSES as NUM_GLYPHS
from params.image.imagenet import NUM_CLASSES, imagenet_experiment, imagenet_steps, steps_after


@experiment
def bot50(epochs: int = 90, batch_size: int = 4096, stride: int = 2, folder: str | None = None):
    """BoTNet-50, images of 224 x 224; 20,852,008 weights, where ResNet-50 has 25,557,032.

    `stride=1` gives BoTNet-S1-50, whose last stage does not make the image smaller. The optimizer
    is momentum with a rate of 0.1 per 256 images, 5 epochs of warm-up and a cosine decay. These are
    usual values for such networks, not tuned. The data is described in `imagenet.py`.

    lingo diff --exp=image.resnet.resnet50 --exp=image.botnet.bot50
    lingo show --exp=image.botnet.bot50 --weights
    """
    warmup_steps = imagenet_steps(5, batch_size=batch_size)
    num_steps = imagenet_steps(epochs, batch_size=batch_size)
    fall = Cosine.params(num_steps=steps_after(warmup_steps, num_steps=num_steps))
    cfg = imagenet_experiment(
        botnet(num_layers=50, num_classes=NUM_CLASSES, stride=stride),
        batch_size=batch_size,
        folder=folder,
        optimizer=Momentum.params(
            learning_rate=scale_linearly(0.1, batch_size=batch_size, base_batch_size=256),
            nesterov=True,
            weight_decay=1e-3,
            schedule=Warmup.params(num_steps=warmup_steps, then=fall),
        ),
        max_steps=num_steps,
        label_smoothing=0.1,
    )
    cfg.all(BatchNorm).set(statistics_over=32)
    return cfg


@experiment(minutes=4)
def glyphs(batch_size: int = 64, learning_rate: float | None = None, epochs: float = 5.0):
    """As image.resnet.glyphs, with attention in the last two blocks; 158,815 weights.

    The attention sees 8 x 8 positions, then 4 x 4. With seed 0, 91.6 % of 4,512 held-out letters
    are right.

    lingo train --exp=image.botnet.glyphs --logdir=runs/bot
    lingo diff --exp=image.resnet.glyphs --exp=image.botnet.glyphs
    """
    cfg = resnet.glyphs(batch_size=batch_size, learning_rate=learning_rate, epochs=epochs)
    cfg.task.model.layers = botnet(
        num_layers=14,
        num_classes=NUM_GLYPHS,
        image_shape=IMAGE_SHAPE,
        small_images=True,
        zero_init=False,
        stem_stride=2,
        width=16,
    )
    cfg.all(BatchNorm).set(statistics_over=32)
    return cfg
