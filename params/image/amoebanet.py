"""AmoebaNet-D and AmoebaNet-B, the convolutional networks of GPipe's measurements."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers import BatchNorm, Chain
from lingo.models import AuxiliaryHead
from lingo.models.image.amoebanet import amoebanet
from lingo.optim import Cosine, Exponential, Momentum, RmsProp, Warmup
from params.image.imagenet import imagenet_experiment, imagenet_inputs, imagenet_steps
from tasks.image.task import ImageClassification

IMAGENET = (224, 224, 3)
NUM_CLASSES = 1000


@experiment
def amoebanet_d(num_layers: int = 18, num_filters: int = 208, folder: str | None = None):
    """AmoebaNet-D (L, D) for ImageNet (Huang et al. 2019, table 1); 81,505,540 weights, 20 GFLOPs.

    The paper has (18, 208) on one accelerator of 8 GB, and (18, 416), (18, 544), (36, 544) and
    (72, 512) as pipelines of 1, 2, 4 and 8 accelerators. ImageNet is not included: see
    `params/image/imagenet.py`. Optimizer and learning rate are usual for this network, not tuned.

    lingo show --exp=image.amoebanet.amoebanet_d --weights
    """
    inputs = imagenet_inputs(folder, batch_size=128, size=IMAGENET[0])
    layers = amoebanet(num_layers=num_layers, num_filters=num_filters, num_classes=NUM_CLASSES)
    cfg = Experiment.params(
        task=ImageClassification.params(
            model=Chain.params(layers=layers), num_classes=NUM_CLASSES, label_smoothing=0.1
        ),
        **inputs,
        optimizer=RmsProp.params(
            learning_rate=0.01,
            momentum=0.9,
            epsilon=1e-3,
            schedule=Warmup.params(num_steps=1000, then=Cosine.params(num_steps=100_000)),
        ),
        max_steps=100_000,
    )
    cfg.all(BatchNorm).set(decay=0.99)
    return cfg


@experiment
def amoebanet_b(
    num_layers: int = 18,
    num_filters: int = 512,
    image_size: int = 480,
    batch_size: int = 128,
    folder: str | None = None,
):
    """AmoebaNet-B (18, 512) (Huang et al. 2019, sec. 4); 569,311,312 weights, 9,257,704 auxiliary.

    In the paper it has 557 M weights, images of 480 x 480 and 4 stages, and reaches 84.4 % on
    ImageNet. Options are from the authors' implementation for TPUs: an auxiliary head of weight
    0.4, paths kept with probability 0.7, half of the head's inputs dropped, label smoothing of 0.1,
    RMSProp, a gradient norm of at most 10, averages with 0.9999. But here paths are dropped only by
    depth, not also by time, and the learning rate grows with the batch; theirs is for batches of
    32. ImageNet is not included: see `params/image/imagenet.py`. This experiment was not trained.

    lingo show --exp=image.amoebanet.amoebanet_b --pipeline \\
        --set='Chain=PipelinedChain(num_stages=4, num_micro_batches=16)'
    """
    layers = amoebanet(
        num_layers=num_layers,
        num_filters=num_filters,
        num_classes=NUM_CLASSES,
        version="B",
        drop_path_rate=0.3,
        dropout_rate=0.5,
        auxiliary_image=(image_size, image_size),
    )
    fall = Exponential.params(num_steps=imagenet_steps(2.4, batch_size=batch_size), decay_rate=0.97)
    optimizer = RmsProp.params(
        learning_rate=0.015 * batch_size / 32,
        momentum=0.9,
        epsilon=1.0,
        initial_mean_square=1.0,
        weight_decay=4e-5,
        max_grad_norm=10.0,
        ema_decay=0.9999,
        schedule=Warmup.params(num_steps=imagenet_steps(3, batch_size=batch_size), then=fall),
    )
    cfg = imagenet_experiment(
        layers,
        batch_size=batch_size,
        folder=folder,
        size=image_size,
        optimizer=optimizer,
        max_steps=imagenet_steps(100, batch_size=batch_size),
        label_smoothing=0.1,
    )
    cfg.evaluate.weights = "ema"
    cfg.all(BatchNorm).set(decay=0.9997)
    return cfg


@experiment(minutes=2)
def digits_b(num_layers: int = 3, num_filters: int = 16):
    """AmoebaNet-B with auxiliary head and dropped paths on digits of 16 x 16; 135,684 weights.

    After 400 steps (25,600 images), 98.5 % of 334 held-out digits are right; with seeds 1 and 2,
    99.1 and 98.8 %. Needs `pip install 'lingo-tf[data]'`.

    lingo train --exp=image.amoebanet.digits_b --logdir=runs/digits_b
    """
    size = 16
    cfg = digits(num_layers, num_filters)
    layers = amoebanet(
        num_layers=num_layers,
        num_filters=num_filters,
        num_classes=Digits.num_classes,
        channels=1,
        version="B",
        small_images=True,
        drop_path_rate=0.1,
        auxiliary_image=(size, size),
    )
    cfg.task.model = Chain.params(layers=layers)
    cfg.all(ImageInput).set(enlarged_to=(size, size, 1))
    cfg.all(AuxiliaryHead).set(widths=(32, 64))
    return cfg


@experiment(minutes=2)
def digits(num_layers: int = 3, num_filters: int = 32):
    """AmoebaNet-D of 3 normal cells and two reductions on scikit-learn's digits; 376,682 weights.

    After 400 steps (25,600 images, two minutes on two cores), 99.1 % of 334 held-out digits are
    right; with seeds 1 and 2, 98.2 and 97.9 %. Needs `pip install 'lingo-tf[data]'`.

    lingo train --exp=image.amoebanet.digits --logdir=runs/digits
    """
    data = ImageInput.params(source=Digits.params(split="train"), batch_size=64)
    layers = amoebanet(
        num_layers=num_layers,
        num_filters=num_filters,
        num_classes=Digits.num_classes,
        channels=1,
        small_images=True,
    )
    return Experiment.params(
        task=ImageClassification.params(model=Chain.params(layers=layers), label_smoothing=0.1),
        train_input=data,
        eval_inputs={
            "heldout": data.copy().set(source=Digits.params(split="heldout"), repeat=False)
        },
        optimizer=Momentum.params(
            learning_rate=0.1,
            nesterov=True,
            weight_decay=0.005,
            schedule=Warmup.params(num_steps=30, start=0.05, then=Cosine.params(num_steps=370)),
        ),
        max_steps=400,
        evaluate=Evaluation.params(every_steps=200),
        checkpoint=Checkpointing.params(every_steps=200),
    )
