"""Mask R-CNN as in rounds 0.6 and 0.7 of MLPerf training: the reference, and Google's entries.

A run ends when both average precisions on COCO's validation images, evaluated after each epoch, are
at their targets: 37.7 % of boxes and 33.9 % of masks. None was run: only learning rates and sizes
are checked. MLPerf's runs begin with a ResNet-50 trained on ImageNet. Images are scaled to a short
side of 800 pixels, or to a long one of 1,333 if that is smaller, and padded to 800 x 1344 for the
reference and to 832 x 1344 for Google's entries. An image that is higher than wide is scaled to 800
rows here; theirs get a canvas of their own, with rows and columns exchanged.
"""

from __future__ import annotations

from typing import Any

from lingo.config.params import ParamError
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation
from lingo.models.image.resnet import resnet
from lingo.optim import Frozen, Piecewise, Warmup, epochs_to_steps
from lingo.trainer.mlperf.rules import Benchmark
from lingo.trainer.mlperf.run_log import MlperfLog
from params.image.mask_rcnn import FIRST_LAYERS, TRAIN_IMAGES, r50, scenes

TARGETS = (0.377, 0.339)  # average precisions of boxes and masks
REFERENCE_BATCH = 16
FIT_SIZE = (800, 1333)  # rows and columns into which an image is scaled
FROZEN = f"{FIRST_LAYERS}|model/trunk/.*/(gamma|beta)"
MAX_EPOCHS = 20


@experiment
def reference(batch_size: int = 16, data: int = 1, split: int = 1, folder: str | None = None):
    """MLPerf's reference in batches of 16: a rate of 0.02, 12.17 epochs; 44,400,693 weights.

    The rate drops to a tenth after 60,000 and 80,000 of 90,000 steps. Stem, first stage and all
    batch norms of the trunk are frozen, and strides are in 1x1 convolutions. Regions are cut from
    four maps, with 2 x 2 points for each bin. Warm-up is free by the rules. For K times 16 images,
    the rate is 0.02 K, and the steps are (1 + K / 10) / K times as many.

    lingo show --exp=mlperf.mask_rcnn.reference --plot_schedule
    """
    times = batch_size / REFERENCE_BATCH
    length = 1.0 if times == 1 else (1 + times / 10) / times
    drops = [round(steps * length) for steps in (60_000, 80_000)]
    cfg = _recipe(batch_size, data, split, folder, 0.02 * times, 500, drops)
    for images in _image_inputs(cfg):
        images.size = 800
    cfg.task.model.trunk.layers = resnet(num_layers=50, num_classes=1, version="v1")[:-1]
    cfg.task.model.set(num_region_maps=4, crop_samples=2, crop_form="legacy")
    cfg.task.dtype = "float32"
    rule = cfg.optimizer.groups[f"(?!{FIRST_LAYERS}).*"]
    cfg.optimizer.groups = {FROZEN: Frozen, f"(?!{FROZEN}).*": rule}
    cfg.max_steps = round(90_000 * length)
    return _to_target(cfg, benchmark="maskrcnn@0.7.0")


@experiment
def v06_pod(data: int = 128, split: int = 1, folder: str | None = None):
    """Google's entry to round 0.6: batches of 128, a rate of 0.16, 11,250 steps.

    The rate rises for 1,000 steps, and drops to a tenth after 7,500 and 10,000 steps.

    lingo show --exp=mlperf.mask_rcnn.v06_pod --plot_schedule
    """
    cfg = _recipe(128, data, split, folder, 0.16, 1000, [7500, 10_000])
    cfg.max_steps = 11_250
    return _to_target(cfg, benchmark="maskrcnn@0.6.0")


@experiment
def v07_pod(batch_size: int = 256, data: int = 256, split: int = 2, folder: str | None = None):
    """Google's entry to round 0.7: batches of 256, a rate of 0.24; the fastest took 8.13 minutes.

    The rate rises for 2,000 steps, and drops to a tenth after 6,000 and 8,000 steps; with
    `batch_size=128` it is 0.16, with drops after 9,750 and 13,000 steps. A run that misses its
    targets ends after 20 epochs.

    lingo show --exp=mlperf.mask_rcnn.v07_pod --plot_schedule
    lingo train --exp='mlperf.mask_rcnn.v07_pod(folder="coco")' --logdir=runs/mask_rcnn
    """
    recipes = {256: (0.24, [6000, 8000]), 128: (0.16, [9750, 13_000])}
    if batch_size not in recipes:
        raise ParamError(f"{batch_size=}: Google's entries have batches of 128 and 256: take one")
    rate, drops = recipes[batch_size]
    cfg = _recipe(batch_size, data, split, folder, rate, 2000, drops)
    cfg.max_steps = _steps(MAX_EPOCHS, batch_size)
    return _to_target(cfg, benchmark="maskrcnn@0.7.0")


@experiment
def digit_scenes(batch_size: int = 16, num_steps: int = 4800):
    """A small form: `image.mask_rcnn.scenes`, digits in drawn scenes, by the rules of Mask R-CNN.

    The model has 318,049 weights. A run ends at the benchmark's average precisions on 512 held-out
    scenes, evaluated after every 400 steps of 16 images. Its log says that it is a small form.

    lingo train --exp=mlperf.mask_rcnn.digit_scenes --logdir=runs/mask_digits
    """
    cfg = scenes(num_steps=num_steps * 16 // batch_size, batch_size=batch_size)
    return _to_target(cfg, benchmark="maskrcnn@0.7.0", every_steps=max(1, 400 * 16 // batch_size))


def _recipe(
    batch_size: int,
    data: int,
    split: int,
    folder: str | None,
    rate: float,
    warmup_steps: int,
    drops: list[int],
) -> Any:
    """Returns Mask R-CNN with ResNet-50 and a schedule of two drops, in steps from the start."""
    cfg = r50(batch_size, size=832, width=1344, data=data, split=split, folder=folder)
    if folder is not None:
        for images in _image_inputs(cfg):
            images.fit_size = FIT_SIZE
    cfg.optimizer.learning_rate = rate
    cfg.optimizer.schedule = Warmup.params(
        num_steps=warmup_steps,
        start=1 / 3,
        then=Piecewise.params(
            boundaries=[step - warmup_steps for step in drops], values=[1.0, 0.1, 0.01]
        ),
    )
    return cfg


def _image_inputs(cfg: Any) -> list[Any]:
    return [cfg.train_input, *cfg.eval_inputs.values()]


def _steps(epochs: float, batch_size: int) -> int:
    return epochs_to_steps(epochs, num_examples=TRAIN_IMAGES, batch_size=batch_size)


def _to_target(cfg: Any, *, benchmark: Benchmark, every_steps: int | None = None) -> Any:
    every_steps = every_steps or _steps(1, cfg.train_input.batch_size)
    cfg.task.targets = TARGETS
    return cfg.set(
        observers=[MlperfLog.params(benchmark=benchmark)],
        evaluate=Evaluation.params(
            every_steps=every_steps, metric="heldout/target_share", goal="max", reach=1.0
        ),
        checkpoint=Checkpointing.params(every_steps=every_steps),
    )
