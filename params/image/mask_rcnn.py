"""Mask R-CNN (He et al. 2017) with ResNet and BoTNet: on COCO, and a small one on drawn scenes.

COCO (Lin et al. 2014) is not included. Scenes of drawn letters and digits take its place; their
masks are exact. Scenes of the size of COCO's images show that steps can be computed, and their
cost; small scenes can be learned in minutes. No average precision on COCO was measured.
"""

from __future__ import annotations

from typing import Any, Literal

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.datasets import GlyphSceneInput
from lingo.layers import BatchNorm
from lingo.layers.vision.image_attention import Positions
from lingo.models import Backbone, MaskRcnn
from lingo.models.image.botnet import botnet
from lingo.models.image.resnet import resnet
from lingo.optim import AdamW, Cosine, Warmup
from params.image.imagenet import MEAN, STD
from tasks.detection.instance_segmentation import InstanceSegmentation

Trunk = Literal["resnet", "botnet"]


@experiment(minutes=15)
def scenes(
    trunk: Trunk = "resnet",
    positions: Positions = "relative",
    num_steps: int = 2400,
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
    heldout = train.copy().set(split="heldout", num_scenes=512, repeat=False)
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
