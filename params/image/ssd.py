"""SSD, the single-shot detector (Liu et al. 2016): MLPerf's on COCO, and a small one on glyphs.

COCO (Lin et al. 2014) is not included. Scenes of drawn letters and digits take its place. Scenes of
the size of COCO's images show that steps can be computed, and their cost; small scenes can be
learned in minutes on two cores. No average precision on COCO was measured.
"""

from __future__ import annotations

import math
from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import CocoInput
from lingo.datasets import GlyphSceneInput
from lingo.layers import BatchNorm, Chain, ConvNorm
from lingo.models import BasicBlock, Ssd
from lingo.models.detection.ssd import SSD300, resnet34_trunk, ssd300_extras
from lingo.optim import (
    AdamW,
    Cosine,
    Momentum,
    Piecewise,
    Warmup,
    epochs_to_steps,
    scale_linearly,
)
from lingo.runtimes.mesh.mesh import Mesh
from params.image.imagenet import MEAN, STD
from tasks.detection.task import ObjectDetection

NUM_CLASSES = 80  # of COCO
TRAIN_IMAGES = 117_266  # COCO 2017's images with a box
EVAL_IMAGES = 5000


@experiment
def r34(batch_size: int = 2048, data: int = 512, split: int = 4, folder: str | None = None):
    """SSD300 with ResNet-34; 19,972,534 weights, 8,732 anchors, 31.7 GFLOPs an image of 300 x 300.

    It is Google's entry to MLPerf training 0.6 (Kumar et al. 2019), on 512 times 4 cores: each
    image is split into four along its height. The optimizer is momentum with a rate of 2.5e-3 per
    32 images, 20 epochs of warm-up, and a tenth of the rate after epochs 56 and 70, for 80 epochs
    in bfloat16. Batch norm statistics are over the 64 images of 16 times 4 cores. Weight decay is
    decoupled here. It is ten times theirs, 5e-4, which goes through their momentum. Their run began
    with a ResNet-34 trained on ImageNet, which the second command reads. It took 72.4 seconds to an
    average precision of 23.0 %.

    `folder` has COCO's train2017, val2017 and annotations. Without a folder, the data are scenes of
    300 x 300 pixels, with 47 of the 80 classes.

    lingo show --exp=image.ssd.r34 --plot_schedule
    lingo train --exp='image.ssd.r34(batch_size=32, data=1, split=1)' --logdir=runs/r34 \\
        --set='init_from=WarmStart(path=runs/resnet34, skip=["model/(?!trunk).*"])' \\
        --set='init_from.rename={model/trunk/(.*): model/\\1}'
    """
    model = Ssd.params(trunk=resnet34_trunk(), extras=ssd300_extras(), **SSD300)
    model.all(BatchNorm).set(statistics_over=math.gcd(64, batch_size))
    cfg = Experiment.params(
        task=ObjectDetection.params(
            model=model,
            num_classes=NUM_CLASSES,
            mean=MEAN,
            std=STD,
            num_eval_images=EVAL_IMAGES,
            dtype="bfloat16",
        ),
        **_inputs(folder, batch_size),
        optimizer=Momentum.params(
            learning_rate=scale_linearly(2.5e-3, batch_size=batch_size, base_batch_size=32),
            weight_decay=5e-3,
            schedule=Warmup.params(
                num_steps=_steps(20, batch_size),
                then=Piecewise.params(
                    boundaries=[_steps(epoch - 20, batch_size) for epoch in (56, 70)],
                    values=[1.0, 0.1, 0.01],
                ),
            ),
        ),
        max_steps=_steps(80, batch_size),
    )
    mesh = Mesh.params(data=data, height=split, shard_update=True)
    return cfg.set(runtime=mesh) if data * split > 1 else cfg


def _inputs(folder: str | None, batch_size: int) -> dict[str, Any]:
    """Returns the inputs of an experiment, {"train_input": ..., "eval_inputs": ...}."""
    if folder is None:
        train = GlyphSceneInput.params(split="train", size=300, num_classes=47)
        heldout = train.copy().set(split="heldout", num_scenes=EVAL_IMAGES)
        train.set(num_scenes=TRAIN_IMAGES)
    else:
        coco = CocoInput.params(num_classes=NUM_CLASSES)
        train, heldout = (
            coco.copy().set(
                annotations=f"{folder}/annotations/instances_{part}.json", folder=f"{folder}/{part}"
            )
            for part in ("train2017", "val2017")
        )
        train.set(random_crop=True, flip_rate=0.5, skips_empty=True)
    heldout.set(batch_size=batch_size, repeat=False)
    return {"train_input": train.set(batch_size=batch_size), "eval_inputs": {"heldout": heldout}}


def _steps(epochs: float, batch_size: int) -> int:
    return epochs_to_steps(epochs, num_examples=TRAIN_IMAGES, batch_size=batch_size)


@experiment(minutes=4)
def scenes(num_steps: int = 600, batch_size: int = 32):
    """A small SSD that finds ten digits in images of 96 x 96 pixels; 644,484 weights.

    After 600 steps of 32 images, the average precision on 512 held-out scenes (`ap`) is 61.3 %, and
    88.4 % at an overlap of 0.5 (`ap50`); both are means of three seeds. Held-out scenes have
    typefaces and parts of the photographs that training has not seen.

    lingo train --exp=image.ssd.scenes --logdir=runs/scenes
    """
    train = GlyphSceneInput.params(split="train", size=96, num_scenes=16_384, batch_size=batch_size)
    heldout = train.copy().set(split="heldout", num_scenes=512, repeat=False)
    trunk = [
        ConvNorm.params(dim=3, output_dim=16, stride=2),
        BasicBlock.params(dim=16, output_dim=32, stride=2),
        BasicBlock.params(dim=32, output_dim=64),
    ]
    model = Ssd.params(
        trunk=Chain.params(layers=trunk),
        extras=[
            BasicBlock.params(dim=64, output_dim=96, stride=2),
            BasicBlock.params(dim=96, output_dim=128, stride=2),
        ],
        scales=(12.0, 20.0, 34.0, 56.0),
        ratios=((2.0,), (2.0,), (2.0,)),
    )
    model.all(BatchNorm).set(statistics_over=batch_size)
    warmup_steps = num_steps // 10
    fall = Cosine.params(num_steps=num_steps - warmup_steps)
    return Experiment.params(
        task=ObjectDetection.params(
            model=model,
            mean=MEAN,
            std=STD,
            max_per_class=20,
            max_detections=20,
            num_eval_images=512,
        ),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=AdamW.params(
            learning_rate=3e-3,
            weight_decay=0.05,
            schedule=Warmup.params(num_steps=warmup_steps, then=fall),
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=max(1, num_steps // 3)),
        checkpoint=Checkpointing.params(every_steps=max(1, num_steps // 3)),
    )
