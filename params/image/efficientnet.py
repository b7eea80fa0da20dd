"""EfficientNet on ImageNet, B0 to B7 (Tan and Le 2019), and a small one on letters.

Recipes follow Wongpanich et al. (2020) and github.com/tensorflow/tpu. RMSProp has a rate of 0.016
per 256 images. The rate falls by a factor of 0.97 every 2.4 epochs, counted from step 0. During the
first 5 epochs, it rises linearly instead. LARS is for batches of 16,384 and more. After the
warm-up, its rate falls to 0.1 with the square of the remaining steps:

    images a batch   rate per 256 images   epochs of warm-up
    16,384                         0.236                  50
    32,768                         0.118                  50
    65,536                         0.081                  43

Other batches have the rate of 16,384 images, 15.1. Networks are evaluated with the moving average
of their weights. The data is described in `imagenet.py`. RMSProp's weight decay is decoupled here,
and 1e-5 shrinks weights much less than in the published recipe, where it is a part of the loss.

`b2_pod` and `b5_pod` are the same networks on a pod: in bfloat16, with the batch and the update
split over `data` devices. A step of B5 computes its batch in 8 parts (`accumulation_steps`), or
else the tensors that gradients need would not fit into 16 GiB a core. Recomputing blocks would not
help: outside a loop over equal layers, XLA merges the second pass with the first. AutoAugment
changes the images of a folder, in these two experiments only.
"""

from __future__ import annotations

from typing import Literal

from lingo.config.registry import experiment
from lingo.layers import BatchNorm
from lingo.models.image.efficientnet import SCALINGS, Scaling, efficientnet
from lingo.optim import (
    Cosine,
    Exponential,
    Lars,
    Polynomial,
    RmsProp,
    SwitchedWarmup,
    Warmup,
    scale_linearly,
)
from lingo.runtimes.mesh.mesh import Mesh
from params.image.glyphs import IMAGE_SHAPE, glyph_experiment, glyph_steps
from params.image.glyphs import NUM_CLASSES as NUM_GLYPHS
from params.image.imagenet import (
    NUM_CLASSES,
    TRAIN_IMAGES,
    imagenet_experiment,
    imagenet_steps,
)
from tasks.image.augmentation import train_example

Recipe = Literal["rmsprop", "lars"]

EPOCHS = 350
LARS_RATES = {16_384: (0.236, 50), 32_768: (0.118, 50), 65_536: (0.081, 43)}
"""Images a batch -> (LARS's rate per 256 images, epochs of warm-up)."""
CROP_PADDING = 32  # pixels at an image's borders that evaluations crop


@experiment
def b0(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B0, images of 224 x 224; 5,288,548 weights, 0.77 GFLOPs an image.

    lingo show --exp=image.efficientnet.b0 --weights
    """
    return _efficientnet("b0", batch_size, optimizer, folder)


@experiment
def b1(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B1, images of 240 x 240; 7,794,184 weights, 1.37 GFLOPs an image.

    lingo show --exp=image.efficientnet.b1 --weights
    """
    return _efficientnet("b1", batch_size, optimizer, folder)


@experiment
def b2(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B2, images of 260 x 260; 9,109,994 weights, 1.99 GFLOPs an image.

    lingo show --exp=image.efficientnet.b2 --weights
    """
    return _efficientnet("b2", batch_size, optimizer, folder)


@experiment
def b3(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B3, images of 300 x 300; 12,233,232 weights, 3.65 GFLOPs an image.

    lingo show --exp=image.efficientnet.b3 --weights
    """
    return _efficientnet("b3", batch_size, optimizer, folder)


@experiment
def b4(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B4, images of 380 x 380; 19,341,616 weights, 8.79 GFLOPs an image.

    lingo show --exp=image.efficientnet.b4 --weights
    """
    return _efficientnet("b4", batch_size, optimizer, folder)


@experiment
def b5(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B5, images of 456 x 456; 30,389,784 weights, 20.53 GFLOPs an image.

    Published: 83 % of ImageNet in 64 minutes, in batches of 65,536 on 1,024 cores with LARS.

    `b5_pod` is this form.

    lingo show --exp=image.efficientnet.b5 --weights
    """
    return _efficientnet("b5", batch_size, optimizer, folder)


@experiment
def b6(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B6, images of 528 x 528; 43,040,704 weights.

    lingo show --exp=image.efficientnet.b6 --weights
    """
    return _efficientnet("b6", batch_size, optimizer, folder)


@experiment
def b7(batch_size: int = 4096, optimizer: Recipe = "rmsprop", folder: str | None = None):
    """EfficientNet-B7, images of 600 x 600; 66,347,960 weights.

    lingo show --exp=image.efficientnet.b7 --weights
    """
    return _efficientnet("b7", batch_size, optimizer, folder)


@experiment
def b2_pod(
    batch_size: int = 32_768,
    optimizer: Recipe = "lars",
    data: int = 1024,
    statistics_over: int = 64,
    folder: str | None = None,
):
    """EfficientNet-B2 in batches of 32,768 on 1,024 cores (Wongpanich et al. 2020).

    Batch norms have statistics over `statistics_over` images. It was not run: only rates, sizes and
    a plan of it are checked.

    lingo show --exp=image.efficientnet.b2_pod --plot_schedule
    lingo plan --exp=image.efficientnet.b2_pod --hardware=tpu_v3
    """
    return _on_pod("b2", batch_size, optimizer, data, statistics_over, folder, accumulation_steps=1)


@experiment
def b5_pod(
    batch_size: int = 65_536,
    optimizer: Recipe = "lars",
    data: int = 1024,
    statistics_over: int = 64,
    folder: str | None = None,
):
    """EfficientNet-B5 in batches of 65,536 on 1,024 cores (Wongpanich et al. 2020).

    Published: 83 % of ImageNet in 64 minutes. Batch norms have statistics over `statistics_over`
    images. It was not run: only rates, sizes and a plan of it are checked.

    lingo show --exp=image.efficientnet.b5_pod --plot_schedule
    lingo plan --exp=image.efficientnet.b5_pod --hardware=tpu_v3
    """
    return _on_pod("b5", batch_size, optimizer, data, statistics_over, folder, accumulation_steps=8)


def _on_pod(
    name: str,
    batch_size: int,
    optimizer: Recipe,
    data: int,
    statistics_over: int,
    folder: str | None,
    *,
    accumulation_steps: int,
):
    cfg = _efficientnet(name, batch_size, optimizer, folder)
    cfg.task.dtype = "bfloat16"
    cfg.all(BatchNorm).set(statistics_over=statistics_over)
    if folder is not None:
        crop = {"size": SCALINGS[name].image_size, "padding": 0, "flip_rate": 0.0}  # all of it
        cfg.train_input.set(
            augment=train_example, augment_arguments=crop | {"uses_auto_augment": True}
        )
    return cfg.set(
        accumulation_steps=accumulation_steps,
        runtime=Mesh.params(data=data, shard_update=True),
    )


def _efficientnet(name: str, batch_size: int, optimizer: Recipe, folder: str | None):
    scaling = SCALINGS[name]
    cfg = imagenet_experiment(
        efficientnet(scaling, num_classes=NUM_CLASSES),
        batch_size=batch_size,
        folder=folder,
        size=scaling.image_size,
        eval_side=scaling.image_size / (scaling.image_size + CROP_PADDING),
        optimizer=_rmsprop(batch_size) if optimizer == "rmsprop" else _lars(batch_size),
        max_steps=imagenet_steps(EPOCHS, batch_size=batch_size),
        label_smoothing=0.1,
    )
    cfg.optimizer.set(weight_decay=1e-5, ema_decay=0.9999, ema_warmup=True)
    cfg.evaluate.weights = "ema"
    cfg.all(BatchNorm).set(statistics_over=64)
    return cfg


def _rmsprop(batch_size: int):
    fall = Exponential.params(
        num_steps=2.4 * TRAIN_IMAGES / batch_size, decay_rate=0.97, staircase=True
    )
    warmup_steps = imagenet_steps(5, batch_size=batch_size)
    return RmsProp.params(
        learning_rate=scale_linearly(0.016, batch_size=batch_size, base_batch_size=256),
        rho=0.9,
        momentum=0.9,
        epsilon=1e-3,
        initial_mean_square=1.0,
        schedule=SwitchedWarmup.params(num_steps=warmup_steps, then=fall),
    )


def _lars(batch_size: int):
    per_256, warmup_epochs = LARS_RATES.get(batch_size, (0.236 * 16_384 / batch_size, 50))
    rate = scale_linearly(per_256, batch_size=batch_size, base_batch_size=256)
    warmup_steps = imagenet_steps(warmup_epochs, batch_size=batch_size)
    num_steps = imagenet_steps(EPOCHS, batch_size=batch_size)
    fall = Polynomial.params(num_steps=num_steps - warmup_steps + 1, end=0.1 / rate)
    return Lars.params(
        learning_rate=rate, schedule=Warmup.params(num_steps=warmup_steps, then=fall)
    )


SMALL = Scaling(width=0.25, depth=0.3, image_size=32, dropout_rate=0.1)


@experiment(minutes=2)
def glyphs(
    optimizer: Recipe = "rmsprop",
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    epochs: float = 5.0,
    statistics_over: int = 32,
):
    """An EfficientNet of a quarter of B0's width and a third of its depth, on drawn letters.

    It has 181,863 weights. Warm-up takes a tenth of the steps, then a cosine decay follows. With
    seed 0, 88.4 % of 4,512 held-out letters are right.

    lingo train --exp=image.efficientnet.glyphs --logdir=runs/efficient
    """
    num_steps = glyph_steps(epochs, batch_size=batch_size)
    layers = efficientnet(
        SMALL, num_classes=NUM_GLYPHS, channels=IMAGE_SHAPE[2], drop_path_rate=0.0
    )
    rule = RmsProp.params(momentum=0.9, epsilon=1e-3) if optimizer == "rmsprop" else Lars.params()
    fall = Cosine.params(num_steps=num_steps - num_steps // 10)
    schedule = Warmup.params(num_steps=num_steps // 10, then=fall)
    cfg = glyph_experiment(
        layers,
        batch_size=batch_size,
        num_steps=num_steps,
        optimizer=rule.set(learning_rate=learning_rate, schedule=schedule, weight_decay=1e-5),
    )
    cfg.all(BatchNorm).set(statistics_over=statistics_over, decay=0.9)
    return cfg
