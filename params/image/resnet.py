"""Residual networks on ImageNet, with the recipes of four papers, and a small one on letters.

resnet18 ... resnet152      momentum, in batches of 256 and more (Goyal et al. 2017)
resnet101_22k               the same on 256 GPUs, with ImageNet-22K's classes (Cho et al. 2017)
supercomputer, multipod     LARS, in batches of 32,768 and 65,536: MLPerf training 0.6 and 0.7
lamb                        LAMB, in batches of 32,768 (You et al. 2020)

The argument `data` of the last four is the number of devices. The last gamma of each block starts
at zero.
"""

from __future__ import annotations

from typing import Literal

from lingo.config.registry import experiment
from lingo.layers import BatchNorm, Quantized
from lingo.models.image.resnet import resnet
from lingo.optim import (
    AdamW,
    Cosine,
    EpochWarmup,
    Lamb,
    Lars,
    Momentum,
    Piecewise,
    Polynomial,
    Warmup,
    scale_by_root,
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

IMAGES_OF_22K = 7_500_000  # of ImageNet-22K, in Cho et al. 2017


@experiment
def resnet18(batch_size: int = 256, folder: str | None = None):
    """ResNet-18; 11,689,512 weights. It has the recipe and data of `resnet50`.

    lingo show --exp=image.resnet.resnet18 --weights
    """
    return _with_momentum(18, batch_size, folder)


@experiment
def resnet34(batch_size: int = 256, folder: str | None = None):
    """ResNet-34; 21,797,672 weights. It has the recipe and data of `resnet50`.

    lingo show --exp=image.resnet.resnet34 --weights
    """
    return _with_momentum(34, batch_size, folder)


@experiment
def resnet50(batch_size: int = 256, folder: str | None = None):
    """ResNet-50 v1.5; 25,557,032 weights, 8.2 GFLOPs an image of 224 x 224.

    It is the recipe of Goyal et al. (2017, sec. 5.1) for any batch size: 90 epochs, a rate of 0.1
    per 256 images with 5 epochs of warm-up, a tenth of the rate after epochs 30, 60 and 80, zeros
    in the last gamma of each block, batch norm statistics over 32 images. Weight decay is decoupled
    here. It is ten times theirs, 1e-4, which goes through their momentum of 0.9; both are equal
    while the rate is constant. The data is described in `imagenet.py`.

    lingo show --exp=image.resnet.resnet50 --weights
    """
    return _with_momentum(50, batch_size, folder)


@experiment
def resnet101(batch_size: int = 256, folder: str | None = None):
    """ResNet-101 v1.5; 44,549,160 weights. It has the recipe and data of `resnet50`.

    lingo show --exp=image.resnet.resnet101 --weights
    """
    return _with_momentum(101, batch_size, folder)


@experiment
def resnet152(batch_size: int = 256, folder: str | None = None):
    """ResNet-152 v1.5; 60,192,808 weights. It has the recipe and data of `resnet50`.

    lingo show --exp=image.resnet.resnet152 --weights
    """
    return _with_momentum(152, batch_size, folder)


@experiment
def resnet101_22k(
    batch_size: int = 5120, data: int = 256, num_classes: int = 22_000, folder: str | None = None
):
    """ResNet-101 v1.5 with the classes of ImageNet-22K on 256 GPUs; 87,578,160 weights.

    IBM's PowerAI DDL trained a ResNet-101 on 7.5 million images of these classes in about 7 hours,
    on 64 machines of four P100 each, to 33.8 % (Cho et al. 2017). The recipe is `resnet50`'s, for
    this number of images; theirs is not known here. `folder` has TFRecord files as `imagenet.py`
    describes them, with labels from 1. The experiment was not run: sizes and a plan are checked.

    lingo plan --exp=image.resnet.resnet101_22k --hardware=p100
    """
    cfg = _with_momentum(101, batch_size, folder, num_classes=num_classes, num_images=IMAGES_OF_22K)
    return cfg.set(runtime=Mesh.params(data=data))


def _with_momentum(
    num_layers: int,
    batch_size: int,
    folder: str | None,
    *,
    num_classes: int = NUM_CLASSES,
    num_images: int = TRAIN_IMAGES,
):
    def steps(epochs: float) -> int:
        return imagenet_steps(epochs, batch_size=batch_size, num_images=num_images)

    rate = scale_linearly(0.1, batch_size=batch_size, base_batch_size=256)
    ends = [steps(epoch - 5) for epoch in (30, 60, 80)]
    schedule = Warmup.params(
        num_steps=steps(5),
        start=min(1.0, 0.1 / rate),
        then=Piecewise.params(boundaries=ends, values=[1.0, 0.1, 0.01, 0.001]),
    )
    cfg = imagenet_experiment(
        resnet(num_layers=num_layers, num_classes=num_classes, zero_init=True),
        batch_size=batch_size,
        folder=folder,
        optimizer=Momentum.params(
            learning_rate=rate, nesterov=True, weight_decay=1e-3, schedule=schedule
        ),
        max_steps=steps(90),
        num_classes=num_classes,
    )
    cfg.all(BatchNorm).set(statistics_over=32)
    return cfg


@experiment
def supercomputer(
    data: int = 2048,
    momentum: Literal["scaled", "unscaled"] = "scaled",
    folder: str | None = None,
):
    """ResNet-50 in batches of 32,768, as Google's entry to MLPerf training 0.6 (Kumar et al. 2019).

    The optimizer is LARS with a rate of 31.2, 25 epochs of warm-up and a quadratic decay, for 2,983
    steps in all. MLPerf's reference has the scaled momentum, the LARS paper the unscaled one. Label
    smoothing is 0.1, weight decay 1e-4. Batch norm statistics are over 128 images, the images of 8
    of 2,048 cores. Google's run took 76.9 seconds on 1,024 chips. The data is described in
    `imagenet.py`.

    lingo show --exp=image.resnet.supercomputer --plot_schedule
    """
    return _on_pod(
        batch_size=32_768,
        optimizer=_lars(
            rate=31.2, batch_size=32_768, warmup_epochs=25, num_steps=2983, momentum=momentum
        ),
        num_steps=2983,
        statistics_over=128,
        data=data,
        folder=folder,
    )


@experiment
def multipod(data: int = 8192, folder: str | None = None):
    """ResNet-50 in batches of 65,536, as Google's entry to MLPerf training 0.7 (Kumar et al. 2021).

    It is like `supercomputer`, but with a rate of 24.699, 31 epochs of warm-up (606 steps), an
    unscaled momentum of 0.951807, an epsilon of 0, and 1,738 steps in all. Batch norm statistics
    are over 64 images, the images of 8 of 8,192 cores. Google's run took 28.9 seconds on 4,096
    chips. The data is described in `imagenet.py`.

    lingo show --exp=image.resnet.multipod --plot_schedule
    """
    optimizer = _lars(
        rate=24.699, batch_size=65_536, warmup_epochs=31, num_steps=1738, momentum="unscaled"
    )
    return _on_pod(
        batch_size=65_536,
        optimizer=optimizer.set(momentum=0.951807, epsilon=0.0),
        num_steps=1738,
        statistics_over=64,
        data=data,
        folder=folder,
    )


@experiment
def lamb(data: int = 256, folder: str | None = None):
    """ResNet-50 in batches of 32,768 with LAMB (You et al. 2020), on 128 chips of two cores.

    The rate is 0.04, with 20 of 90 epochs of warm-up and a linear decay, for 3,519 steps in all.
    Weight decay is 1.5, label smoothing 0.1. Batch norm statistics are over a core's 128 images;
    the original number is not published. Published: 76.3 % of ImageNet. The data is described in
    `imagenet.py`.

    lingo show --exp=image.resnet.lamb --plot_schedule
    """
    num_steps, warmup_steps = 3519, 782
    fall = Polynomial.params(num_steps=num_steps - warmup_steps, power=1.0)
    return _on_pod(
        batch_size=32_768,
        optimizer=Lamb.params(
            learning_rate=0.04,
            weight_decay=1.5,
            schedule=Warmup.params(num_steps=warmup_steps, then=fall),
        ),
        num_steps=num_steps,
        statistics_over=128,
        data=data,
        folder=folder,
    )


def _on_pod(
    *,
    batch_size: int,
    optimizer,
    num_steps: int,
    statistics_over: int,
    data: int,
    folder: str | None,
):
    """Returns ResNet-50 in bfloat16 on a mesh that splits the batch and the update."""
    cfg = imagenet_experiment(
        resnet(num_layers=50, num_classes=NUM_CLASSES, zero_init=True),
        batch_size=batch_size,
        folder=folder,
        optimizer=optimizer,
        max_steps=num_steps,
        label_smoothing=0.1,
    )
    cfg.task.dtype = "bfloat16"
    cfg.all(BatchNorm).set(statistics_over=statistics_over)
    return cfg.set(runtime=Mesh.params(data=data, shard_update=True))


def _lars(*, rate: float, batch_size: int, warmup_epochs: float, num_steps: int, momentum: str):
    """Returns LARS with the schedule of MLPerf's reference, which ends at a rate of 1e-4."""
    warmup_steps = imagenet_steps(warmup_epochs, batch_size=batch_size)
    fall = Polynomial.params(num_steps=num_steps - warmup_steps + 1, end=1e-4 / rate)
    return Lars.params(
        learning_rate=rate,
        weight_decay=1e-4,
        epsilon=1e-5,
        accumulate="gradients" if momentum == "scaled" else "updates",
        schedule=EpochWarmup.params(
            epochs=warmup_epochs,
            examples_per_epoch=TRAIN_IMAGES,
            batch_size=batch_size,
            then=fall,
        ),
    )


Rule = Literal["momentum", "adam", "lars", "lamb"]

RATES = {"momentum": 0.1, "adam": 2e-3, "lars": 0.5, "lamb": 0.01}  # in batches of 64
SCALES = {"momentum": scale_linearly, "lars": scale_linearly}  # the other rules scale by the root


@experiment(minutes=8)
def glyphs(
    optimizer: Rule = "momentum",
    batch_size: int = 64,
    learning_rate: float | None = None,
    epochs: float = 5.0,
    statistics_over: int = 32,
):
    """A ResNet of 14 layers on drawn letters; 207,263 weights.

    It is for studies of large batches. Every run sees 5 epochs of 22,560 images, so that batches of
    1,024 have 110 steps instead of 1,762. The default `learning_rate` is scaled from batches of 64:
    with the batch size for momentum and LARS, with its root for Adam and LAMB. Warm-up takes a
    tenth of the steps, then a cosine decay follows. With seed 0, 91.0 % of 4,512 held-out letters
    are right; in batches of 1,024, 91.5 % with LAMB, 88.9 % with LARS, 87.2 % with Adam.

    lingo train --exp=image.resnet.glyphs --logdir=runs/glyphs
    lingo train --exp='image.resnet.glyphs(optimizer="lars", batch_size=1024)' --logdir=runs/lars
    """
    num_steps = glyph_steps(epochs, batch_size=batch_size)
    layers = resnet(
        num_layers=14,
        num_classes=NUM_GLYPHS,
        channels=IMAGE_SHAPE[2],
        small_images=True,
        stem_stride=2,
        width=16,
    )
    cfg = glyph_experiment(
        layers,
        batch_size=batch_size,
        num_steps=num_steps,
        optimizer=glyph_optimizer(optimizer, learning_rate, batch_size, num_steps),
    )
    cfg.all(BatchNorm).set(statistics_over=statistics_over)
    return cfg


@experiment(minutes=2)
def glyphs_int8(epochs: float = 2.0):
    """Like glyphs, trained for 8 bits, for two epochs: all 17 products are quantized.

    With seed 0, 88.6 % of 4,512 held-out letters are right, and 88.7 % with the exported file of
    244,832 bytes. After two epochs of `glyphs`, 89.4 % are right, with a file of 838,916 bytes.

    lingo train --exp=image.resnet.glyphs_int8 --logdir=runs/glyphs_int8
    lingo export --run=runs/glyphs_int8 --format=tflite --quantize=int8 --output=glyphs
    """
    cfg = glyphs(epochs=epochs)
    cfg.task.model = Quantized.params(layer=cfg.task.model)
    return cfg


def glyph_optimizer(rule: Rule, learning_rate: float | None, batch_size: int, num_steps: int):
    """Returns an optimizer for a number of steps; a tenth of them is warm-up."""
    if learning_rate is None:
        scale = SCALES.get(rule, scale_by_root)
        learning_rate = scale(RATES[rule], batch_size=batch_size, base_batch_size=64)
    warmup_steps = num_steps // 10
    fall = Cosine.params(num_steps=num_steps - warmup_steps)
    schedule = Warmup.params(num_steps=warmup_steps, start=0.05, then=fall)
    optimizers = {
        "momentum": Momentum.params(nesterov=True, weight_decay=1e-3),
        "adam": AdamW.params(weight_decay=0.05),
        "lars": Lars.params(weight_decay=1e-4),
        "lamb": Lamb.params(weight_decay=0.01),
    }
    return optimizers[rule].set(learning_rate=learning_rate, schedule=schedule)
