"""Mask R-CNN (He et al. 2017) with ResNet and BoTNet: on COCO, and a small one on drawn scenes.

COCO (Lin et al. 2014) is not included. Scenes of drawn letters and digits take its place; their
masks are exact. Scenes of the size of COCO's images show that steps can be computed, and their
cost; small scenes can be learned in minutes. No average precision on COCO was measured.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import CocoInput
from lingo.datasets import GlyphSceneInput
from lingo.layers import BatchNorm
from lingo.layers.vision.image_attention import Positions
from lingo.models import Backbone, MaskRcnn
from lingo.models.image.botnet import botnet
from lingo.models.image.resnet import resnet
from lingo.optim import (
    AdamW,
    ByPath,
    Cosine,
    Frozen,
    Momentum,
    Piecewise,
    Warmup,
    scale_linearly,
)
from lingo.runtimes.mesh.mesh import Mesh
from params.image.imagenet import MEAN, STD
from tasks.detection.instance_segmentation import InstanceSegmentation

Trunk = Literal["resnet", "botnet"]

NUM_CLASSES = 80  # of COCO
TRAIN_IMAGES, EVAL_IMAGES = 118_287, 5000  # of COCO 2017
MASK_SIZE = 112  # bins of a true mask along each side of its box
MAX_RUNS = 2000  # of a true mask
FIRST_LAYERS = "model/trunk/layers/[0-4]/.*"  # stem, pool and the three blocks of the first stage


@experiment
def r50(
    batch_size: int = 64,
    num_steps: int = 22_500,
    jitter: tuple[float, float] = (1.0, 1.0),
    size: int = 1024,
    width: int | None = None,
    data: int = 64,
    split: int = 1,
    folder: str | None = None,
):
    """Mask R-CNN with ResNet-50; 44,400,693 weights, 261,888 anchors in images of 1024 x 1024.

    The setting is of Google's detection code for TPUs: momentum with a rate of 0.08 for 64 images,
    500 steps of warm-up from 0.0067, a tenth of the rate after 15,000 and 20,000 of 22,500 steps.
    Stem and first stage of the trunk are frozen. Batch norms are over 8 images. Weight decay is
    decoupled and 1e-3 here; theirs is 1e-4, and their momentum of 0.9 sums it up tenfold. Their run
    began with a ResNet-50 trained on ImageNet, which the second command reads. `jitter` is the
    least and largest factor by which images are scaled in training.

    `folder` has COCO's train2017, val2017 and annotations. Without a folder, the data are scenes
    with 47 of the 80 classes. Images have `size` rows and `width` columns, `size` by default.

    lingo show --exp=image.mask_rcnn.r50 --plot_schedule
    lingo train --exp='image.mask_rcnn.r50(batch_size=2, data=1)' --logdir=runs/mask_r50 \\
        --set='init_from=WarmStart(path=runs/resnet50, skip=["model/(?!trunk).*"])' \\
        --set='init_from.rename={model/trunk/(.*): model/\\1}'
    """
    layers = resnet(num_layers=50, num_classes=1)
    model = MaskRcnn.params(trunk=Backbone.params(layers=layers[:-1]))
    _set_norms(model, batch_size)
    rate = scale_linearly(0.08, batch_size=batch_size, base_batch_size=64)
    first = 500 * num_steps // 22_500
    drops = [num_steps * part // 9 - first for part in (6, 8)]
    schedule = Warmup.params(
        num_steps=first,
        start=0.0067 / 0.08,
        then=Piecewise.params(boundaries=drops, values=[1.0, 0.1, 0.01]),
    )
    rule = Momentum.params(weight_decay=1e-3)
    cfg = Experiment.params(
        task=InstanceSegmentation.params(
            model=model,
            num_classes=NUM_CLASSES,
            mean=MEAN,
            std=STD,
            num_eval_images=EVAL_IMAGES,
            dtype="bfloat16",
        ),
        **_inputs(folder, batch_size, (size, width), jitter),
        optimizer=ByPath.params(
            learning_rate=rate,
            schedule=schedule,
            groups={FIRST_LAYERS: Frozen, f"(?!{FIRST_LAYERS}).*": rule},
        ),
        max_steps=num_steps,
    )
    mesh = Mesh.params(data=data, height=split, shard_update=True)
    return cfg.set(runtime=mesh) if data * split > 1 else cfg


@experiment
def bot50(
    batch_size: int = 64,
    num_steps: int = 133_073,
    jitter: tuple[float, float] = (0.1, 2.0),
    size: int = 1024,
    data: int = 64,
    split: int = 1,
    folder: str | None = None,
):
    """As r50, with attention in the last three blocks; 39,746,869 weights (Srinivas et al. 2021).

    It trains for 72 epochs, with images scaled by factors from 0.1 to 2. The rate drops after the
    same shares of the steps as in `r50`. The attention sees 64 x 64 positions, then 32 x 32.

    lingo diff --exp=image.mask_rcnn.r50 --exp=image.mask_rcnn.bot50
    lingo show --exp=image.mask_rcnn.bot50 --weights
    """
    cfg = r50(batch_size, num_steps, jitter, size, data=data, split=split, folder=folder)
    layers = botnet(num_layers=50, num_classes=1, image_shape=(size, size, 3))
    cfg.task.model.trunk.layers = layers[:-1]
    _set_norms(cfg.task.model, batch_size)
    return cfg


def _set_norms(model: Any, batch_size: int) -> None:
    model.all(BatchNorm).set(statistics_over=math.gcd(8, batch_size), decay=0.997, epsilon=1e-4)


def _inputs(
    folder: str | None, batch_size: int, size: tuple[int, int | None], jitter: tuple[float, float]
) -> dict[str, Any]:
    """Returns the inputs of an experiment, {"train_input": ..., "eval_inputs": ...}."""
    if folder is None:
        train = GlyphSceneInput.params(
            split="train", num_classes=47, mask_size=MASK_SIZE, num_scenes=TRAIN_IMAGES
        )
        heldout = train.copy().set(split="heldout", num_scenes=EVAL_IMAGES)
    else:
        coco = CocoInput.params(num_classes=NUM_CLASSES, mask_size=MASK_SIZE)
        train, heldout = (
            coco.copy().set(
                annotations=f"{folder}/annotations/instances_{part}.json", folder=f"{folder}/{part}"
            )
            for part in ("train2017", "val2017")
        )
        train.set(flip_rate=0.5, skips_empty=True, scale_jitter=jitter)
        heldout.scale_jitter = (1.0, 1.0)
    for data in (train, heldout):
        data.set(batch_size=batch_size, size=size[0], width=size[1])
    heldout.set(repeat=False, max_runs=MAX_RUNS)
    return {"train_input": train, "eval_inputs": {"heldout": heldout}}


@experiment
def scenes(
    trunk: Trunk = "resnet",
    positions: Positions = "relative",
    num_steps: int = 2000,
    batch_size: int = 16,
):
    """A small Mask R-CNN that finds and cuts out ten digits in images of 96 x 96 pixels.

    The trunk is a ResNet of 14 layers or the BoTNet of the same size, whose last two blocks attend
    with `positions`: relative, absolute or none.

    lingo train --exp=image.mask_rcnn.scenes --logdir=runs/masks
    lingo train --exp='image.mask_rcnn.scenes(trunk="botnet")' --logdir=runs/bot_masks
    """
    train = GlyphSceneInput.params(
        split="train", size=96, num_scenes=16_384, mask_size=48, batch_size=batch_size
    )
    heldout = train.copy().set(split="heldout", num_scenes=512, max_runs=400, repeat=False)
    model = _small_model(trunk, positions)
    model.all(BatchNorm).set(statistics_over=batch_size)
    warmup_steps = num_steps // 10
    fall = Cosine.params(num_steps=num_steps - warmup_steps)
    return Experiment.params(
        task=InstanceSegmentation.params(
            model=model,
            mean=MEAN,
            std=STD,
            num_anchors=64,
            max_per_level=64,
            num_proposals=64,
            eval_max_per_level=64,
            eval_num_proposals=64,
            num_regions=32,
            max_per_class=20,
            max_detections=20,
            num_eval_images=512,
        ),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=AdamW.params(
            learning_rate=2e-3,
            weight_decay=0.05,
            schedule=Warmup.params(num_steps=warmup_steps, then=fall),
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=max(1, num_steps // 3)),
        checkpoint=Checkpointing.params(every_steps=max(1, num_steps // 3)),
    )


def _small_model(trunk: Trunk, positions: Positions) -> Any:
    """Returns a Mask R-CNN with maps of 24, 12 and 6 rows for images of 96 x 96 pixels."""
    shape = {"num_layers": 14, "num_classes": 1, "small_images": True, "stem_stride": 2}
    if trunk == "resnet":
        layers = resnet(width=16, **shape)
    else:
        image = {"image_shape": (96, 96, 3), "positions": positions, "zero_init": False}
        layers = botnet(width=16, **image, **shape)
    model = MaskRcnn.params(
        trunk=Backbone.params(layers=layers[:-1]), anchor_scale=4.0, base_side=96.0
    )
    model.pyramid.output_dim = 32
    model.region_head.hidden_dim = 32
    model.box_head.set(hidden_dim=64, size=5)
    model.mask_head.set(hidden_dim=32, num_convs=2)
    return model
