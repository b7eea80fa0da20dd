"""Transfer from drawn letters to handwritten digits."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers.vision.image_head import ImageHead
from lingo.optim import Cosine, Momentum, Warmup
from params.image import resnet
from params.image.glyphs import IMAGE_SHAPE, MEAN, STD
from params.image.imagenet import steps_after

WARMUP_STEPS = 5


@experiment(minutes=1)
def digits(num_steps: int = 60):
    """The network of image.resnet.glyphs for scikit-learn's digits, enlarged to 32 x 32 pixels.

    The second command starts from the weights of the first, except for the head, which has 10
    classes instead of 47.

    lingo train --exp=image.resnet.glyphs --logdir=runs/glyphs
    lingo train --exp=image.transfer.digits --logdir=runs/digits \\
        --set='init_from=WarmStart(path=runs/glyphs, skip=[".*/linear/.*"])'
    """
    cfg = resnet.glyphs()
    cfg.task.set(mean=MEAN, std=STD)
    cfg.all(ImageHead).set(num_classes=Digits.num_classes)
    data = ImageInput.params(
        source=Digits.params(split="train"), batch_size=64, enlarged_to=IMAGE_SHAPE
    )
    heldout = data.copy().set(source=Digits.params(split="heldout"), repeat=False)
    fall = Cosine.params(num_steps=steps_after(WARMUP_STEPS, num_steps=num_steps))
    return cfg.set(
        train_input=data,
        eval_inputs={"heldout": heldout},
        optimizer=Momentum.params(
            learning_rate=0.05,
            nesterov=True,
            weight_decay=1e-3,
            schedule=Warmup.params(num_steps=WARMUP_STEPS, then=fall),
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=num_steps),
        checkpoint=Checkpointing.params(every_steps=num_steps),
    )
