"""LeNet-5, the first convolutional network that read digits (LeCun et al. 1998)."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers import Chain, Quantized
from lingo.models.image.lenet import lenet5 as lenet5_layers
from lingo.optim import Adam, ConstantRate, Cosine, Exponential, SequentialSchedule, Warmup
from tasks.image.task import ImageClassification

IMAGE_SHAPE = (28, 28, 1)  # of MNIST


@experiment
def lenet5():
    """Lingvo's image.mnist.LeNet5; 763,810 weights.

    It has Lingvo's Adam: 100 steps of warm-up to 1e-4, and an exponential fall to a tenth of it
    from step 100,000 to 1,000,000. MNIST is not included. The input is scikit-learn's 1,797 digits,
    enlarged from 8 x 8 to 28 x 28 pixels, in place of MNIST's 70,000. `digits` trains in a minute.

    lingo train --exp=image.lenet.lenet5 --logdir=runs/lenet5
    """
    data = ImageInput.params(
        source=Digits.params(split="train"), batch_size=256, enlarged_to=IMAGE_SHAPE
    )
    fall = Exponential.params(num_steps=900_000, decay_rate=0.1)
    parts = [
        (Warmup.params(num_steps=100), 100_000),
        (fall, 900_000),
        (ConstantRate.params(value=0.1), 1),
    ]
    return Experiment.params(
        task=ImageClassification.params(
            model=Chain.params(layers=lenet5_layers(num_classes=10, image_shape=IMAGE_SHAPE))
        ),
        train_input=data,
        eval_inputs={
            "heldout": data.copy().set(source=Digits.params(split="heldout"), repeat=False)
        },
        optimizer=Adam.params(learning_rate=1e-4, schedule=SequentialSchedule.params(parts=parts)),
        max_steps=1_000_000,
    )


@experiment(minutes=1)
def digits():
    """LeNet-5 in a minute: the same network and data, a learning rate of 1e-3, batches of 64.

    After 600 steps, 98.5 % of 334 held-out digits are right, with seed 0.

    lingo train --exp=image.lenet.digits --logdir=runs/digits
    """
    cfg = lenet5()
    cfg.all(ImageInput).set(batch_size=64)
    cfg.optimizer = Adam.params(learning_rate=1e-3, schedule=Cosine.params(num_steps=600))
    return cfg.set(
        max_steps=600,
        evaluate=Evaluation.params(every_steps=300),
        checkpoint=Checkpointing.params(every_steps=300),
    )


@experiment(minutes=1)
def digits_int8():
    """Like digits, trained for 8 bits: every product is quantized.

    With seed 0, 97.9 % of 334 held-out digits are right, and 97.6 % with the exported file of
    778,048 bytes. The float32 file of `digits` has 3,058,724 bytes, and 98.5 % are right.

    lingo train --exp=image.lenet.digits_int8 --logdir=runs/digits_int8
    lingo export --run=runs/digits_int8 --format=tflite --quantize=int8 --output=digits
    """
    cfg = digits()
    cfg.task.model = Quantized.params(layer=cfg.task.model)
    return cfg
