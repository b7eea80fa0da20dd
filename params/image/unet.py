"""The 3D U-Net on volumes whose rows are split over devices (Xu et al. 2021, GSPMD, sec. 5)."""

from __future__ import annotations

from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.datasets import BlobInput
from lingo.models import UNet3D
from lingo.optim import Adam, Cosine
from lingo.runtimes.mesh.mesh import Mesh
from tasks.image.segmentation import Segmentation


@experiment(minutes=1)
def blobs(num_levels: int = 2):
    """A U-Net of two levels, 60,507 weights, tells solid balls from hollow ones in 16^3 voxels.

    With seed 0, 98.4 % of the voxels of 64 held-out volumes are right after 300 steps (a minute on
    two cores); the Dice coefficient is 93.8 %.

    lingo train --exp=image.unet.blobs --logdir=runs/blobs
    """
    return _segment(size=16, batch_size=8, width=8, num_levels=num_levels, num_steps=300)


@experiment
def full(num_levels: int = 4, height: int = 16):
    """The network of Cicek et al. 2016, on volumes of 256^3, each cut into slabs for 16 devices.

    The CT scans of Xu et al. 2021 have this size. They are not included: blobs take their place.
    This experiment is for planning and compiling; it has not been trained.

    lingo show --exp=image.unet.full --weights
    """
    cfg = _segment(size=256, batch_size=1, width=32, num_levels=num_levels, num_steps=10_000)
    return cfg.set(runtime=Mesh.params(height=height))


def _segment(*, size: int, batch_size: int, width: int, num_levels: int, num_steps: int) -> Any:
    """Returns an experiment that segments blobs."""
    train = BlobInput.params(split="train", size=size, batch_size=batch_size)
    heldout = train.copy().set(split="heldout", num_volumes=64, repeat=False)
    return Experiment.params(
        task=Segmentation.params(
            model=UNet3D.params(dim=1, num_classes=3, width=width, num_levels=num_levels)
        ),
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=Adam.params(learning_rate=1e-2, schedule=Cosine.params(num_steps=num_steps)),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=num_steps // 2),
        checkpoint=Checkpointing.params(every_steps=num_steps // 2),
    )
