"""SSD with ResNet-34 as in rounds 0.6 and 0.7 of MLPerf training.

A run ends at an average precision of 23.0 % on COCO's validation images. The rules want
evaluations after epochs 40, 50, 55, 60, ...; lingo's evaluations are evenly spaced, so there is one
every five epochs from the start. Neither was run: only learning rates and sizes are checked.
"""

from __future__ import annotations

from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation
from lingo.optim import epochs_to_steps, scale_by_root
from lingo.trainer.mlperf.rules import Benchmark
from lingo.trainer.mlperf.run_log import MlperfLog
from params.image.ssd import TRAIN_IMAGES, r34, scenes

TARGET = 0.23
EPOCHS_PER_EVALUATION = 5


@experiment
def v06_pod(batch_size: int = 2048, data: int = 512, split: int = 4, folder: str | None = None):
    """SSD in batches of 2,048, with the target of round 0.6: an average precision of 23.0 %.

    The recipe is `image.ssd.r34`. On 1,024 chips of TPU v3 the result was 72.4107 seconds (Kumar et
    al. 2019).

    lingo show --exp=mlperf.ssd.v06_pod --plot_schedule
    lingo train --exp='mlperf.ssd.v06_pod(folder="coco")' --logdir=runs/ssd
    """
    cfg = r34(batch_size=batch_size, data=data, split=split, folder=folder)
    return _to_target(cfg, benchmark="ssd@0.6.0")


@experiment
def v07_pod(batch_size: int = 2048, data: int = 512, split: int = 4, folder: str | None = None):
    """Like `v06_pod`, with the same target, by the rules of round 0.7.

    Its rate drops after epochs 56 and 70, which are 1.4 times 40 and 50; the rules of this round
    allow this ratio. Google's entry with 4,096 chips had batches of 4,096 and drops after epochs 72
    and 90.

    lingo show --exp=mlperf.ssd.v07_pod --plot_schedule
    lingo train --exp='mlperf.ssd.v07_pod(folder="coco")' --logdir=runs/ssd
    """
    cfg = r34(batch_size=batch_size, data=data, split=split, folder=folder)
    return _to_target(cfg, benchmark="ssd@0.7.0")


def _to_target(cfg: Any, *, benchmark: Benchmark) -> Any:
    every_steps = epochs_to_steps(
        EPOCHS_PER_EVALUATION,
        num_examples=TRAIN_IMAGES,
        batch_size=cfg.train_input.batch_size,
    )
    return cfg.set(
        observers=[MlperfLog.params(benchmark=benchmark)],
        evaluate=Evaluation.params(
            every_steps=every_steps, metric="heldout/ap", goal="max", reach=TARGET
        ),
        checkpoint=Checkpointing.params(every_steps=every_steps),
    )


@experiment
def digit_scenes(batch_size: int = 32, num_steps: int = 600):
    """A small form: `image.ssd.scenes`, digits in drawn scenes, by the rules of SSD.

    The model has 644,484 weights. A run ends at an average precision of 40 % on 512 held-out
    scenes, evaluated after every 50 steps of 32 images. Its log says that it is a small form.

    lingo train --exp=mlperf.ssd.digit_scenes --logdir=runs/scenes
    """
    cfg = scenes(num_steps=num_steps * 32 // batch_size, batch_size=batch_size)
    every_steps = max(1, 50 * 32 // batch_size)
    cfg.optimizer.learning_rate = scale_by_root(3e-3, batch_size=batch_size, base_batch_size=32)
    return cfg.set(
        observers=[MlperfLog.params(benchmark="ssd@0.7.0")],
        evaluate=Evaluation.params(
            every_steps=every_steps, metric="heldout/ap", goal="max", reach=0.4
        ),
        checkpoint=Checkpointing.params(every_steps=every_steps),
    )
