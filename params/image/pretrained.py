"""Image classifiers of timm, torchvision and Keras, to evaluate and to train further."""

from __future__ import annotations

from typing import Any

from lingo.config.params import ParamError
from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data import CentralView, ImageFileInput, ImageFolder, RandomView
from lingo.optim import Cosine, Momentum, Warmup
from params.image.imagenet import imagenet_inputs, steps_after
from tasks.image.task import ImageClassification
from tasks.pretrained.architecture import find_architecture
from tasks.pretrained.read import CROP, ImageModel, read_image_model

WARMUP_STEPS = 50


@experiment
def classifier(
    path: str = "",
    architecture: str = "",
    folder: str = "",
    num_classes: int | None = None,
    new_head: bool = False,
    image_size: int | None = None,
    batch_size: int = 32,
    num_steps: int = 1000,
):
    """An image classifier of timm, torchvision or Keras: its weights, and training that continues.

    `path` is a file of weights, .safetensors or Keras's .keras or .h5, or a folder with config.json
    as timm's models have it on Hugging Face's hub. `architecture` is library.network, such as
    timm.resnet50; without it, config.json names the network, or else the names and shapes of the
    tensors tell it. Without a path, the network has random weights. lingo has the ResNets 18 to
    152, EfficientNets B0 to B7 and Vision Transformers of the three libraries.

    `folder` has images in a folder per class; a tenth is held out. If it has other classes than the
    file, `new_head` starts a last layer for `num_classes` classes. Without a folder, scikit-learn's
    digits take its place: ten of the model's classes. `image_size` is by default the size that the
    weights were trained for. The rate and number of steps are for a first try: set your own.

    ResNet-50 has 25,557,032 weights. Expected result: the logits of timm and torchvision, to 1e-4,
    as tests show with random weights; no published weights were tried here.

    lingo import --from=resnet50.safetensors --run=runs/resnet50
    lingo show --exp=image.pretrained.classifier --set=exp.architecture=timm.resnet50 --weights
    """
    for name, given in (("num_classes", num_classes), ("image_size", image_size)):
        if given is not None and given < 1:
            raise ParamError(f"{name}={given} is not positive")
    model = read_image_model(path, architecture) if path else _untrained(architecture)
    classes = num_classes or model.num_classes
    if path and classes != model.num_classes and not new_head:
        raise ParamError(
            f"{path} has {model.num_classes} classes, but num_classes={classes}:"
            " --set=exp.new_head=true starts a new last layer for them"
        )
    if classes == 0:
        raise ParamError(
            f"{path} has no last layer: --set=exp.new_head=true --set=exp.num_classes=N starts one"
            " for N classes"
        )
    size = image_size or model.image_size
    return Experiment.params(
        task=ImageClassification.params(
            model=model.architecture.model(num_classes=classes, image_size=size),
            num_classes=classes,
            class_names=() if new_head else model.class_names,
            mean=model.mean,
            std=model.std,
        ),
        **_inputs(folder, classes, size=size, crop=model.crop, batch_size=batch_size),
        optimizer=Momentum.params(
            learning_rate=0.003,
            max_grad_norm=1.0,
            schedule=Warmup.params(
                num_steps=WARMUP_STEPS,
                then=Cosine.params(num_steps=steps_after(WARMUP_STEPS, num_steps=num_steps)),
            ),
        ),
        init_from=model.warm_start(image_size=size, new_head=new_head) if path else None,
        max_steps=num_steps,
    )


def _untrained(name: str) -> ImageModel:
    """Returns a model whose weights are in no file."""
    found = find_architecture(name or "timm.resnet50")
    return ImageModel("", found, 1000, found.image_size, *found.levels, CROP)


def _inputs(
    folder: str, num_classes: int, *, size: int, crop: float, batch_size: int
) -> dict[str, Any]:
    """Returns the inputs of an experiment, {"train_input": ..., "eval_inputs": ...}."""
    if not folder:
        return imagenet_inputs(None, batch_size=batch_size, size=size)
    source = ImageFolder.params(folder=folder, num_classes=num_classes, heldout_fraction=0.1)
    data = ImageFileInput.params(source=source, size=size, batch_size=batch_size)
    heldout = data.copy().set(view=CentralView.params(side=crop), repeat=False)
    heldout.source.split = "heldout"
    data.source.split = "train"
    return {"train_input": data.set(view=RandomView), "eval_inputs": {"heldout": heldout}}
