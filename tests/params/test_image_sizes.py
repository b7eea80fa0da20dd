"""Experiments on images: published weights and operations, and that wrappers fit all of them."""

from __future__ import annotations

import pytest

import lingo
from lingo.cli.main import main
from lingo.config import experiment_index
from lingo.contract import Experiment

NAMES = [name for name in sorted(experiment_index.index().entries) if name.startswith("image.")]
PLAIN = 'positions="learned", head="linear"'
VIT = f'{PLAIN}, pooling="first"'

# Billions of multiply-adds are those that torchvision 0.29 publishes with its weights.
PUBLISHED = {
    "image.resnet.resnet18": (11_689_512, 1.814),
    "image.resnet.resnet34": (21_797_672, 3.664),
    "image.resnet.resnet50": (25_557_032, 4.089),
    "image.resnet.resnet101": (44_549_160, 7.801),
    "image.resnet.resnet152": (60_192_808, 11.514),
    "image.resnet.resnet101_22k": (44_549_160 + 2049 * (22_000 - 1000), None),
    "image.resnet.supercomputer": (25_557_032, 4.089),
    "image.resnet.multipod": (25_557_032, 4.089),
    "image.resnet.lamb": (25_557_032, 4.089),
    "image.efficientnet.b0": (5_288_548, 0.386),
    "image.efficientnet.b1": (7_794_184, 0.687),
    "image.efficientnet.b2": (9_109_994, None),  # torchvision's is for images of 288 x 288
    "image.efficientnet.b3": (12_233_232, 1.827),
    "image.efficientnet.b4": (19_341_616, 4.394),
    "image.efficientnet.b5": (30_389_784, 10.266),
    "image.efficientnet.b6": (43_040_704, 19.068),
    "image.efficientnet.b7": (66_347_960, 37.746),
    "image.efficientnet.b2_pod": (9_109_994, None),
    "image.efficientnet.b5_pod": (30_389_784, 10.266),
    "image.vit.s16": (22_122_472, None),
    f"image.vit.b16({VIT})": (86_567_656 - 768, 17.564),  # theirs: a position of the token, too
    f"image.vit.l16({VIT})": (304_326_632 - 1024, 61.555),
    "image.botnet.bot50": (20_852_008, None),
    "image.lenet.lenet5": (763_810, None),
    "image.ssd.r34": (19_972_534, None),
    "image.mask_rcnn.r50": (44_347_573 + 53_120, None),
    "image.mask_rcnn.bot50": (39_747_569 - 53_820 + 53_120, None),  # 10 classes less than published
}


def num_weights(experiment: Experiment) -> int:
    return sum(spec.size for spec in experiment.task.weights().values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_and_operations_are_those_published(name: str) -> None:
    experiment, (weights, multiply_adds) = lingo.get(name).build(), PUBLISHED[name]
    assert num_weights(experiment) == weights
    if multiply_adds is not None:
        task = experiment.task
        flops = task.model.flops([1, *task.p.image_shape])
        assert flops == pytest.approx(2e9 * multiply_adds, rel=0.005)


def test_changes_of_vit_add_and_remove_their_weights() -> None:
    def size(**fields: str) -> int:
        arguments = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        return num_weights(lingo.get(f"image.vit.s16({arguments})").build())

    assert size(head="linear") == 21_974_632
    assert size(positions="learned") == 22_122_472 + 196 * 384
    assert size(pooling="first") == 22_122_472 + 384
    original = num_weights(lingo.get("image.vit.original").build())
    assert original == size(positions="learned", pooling="first")


@pytest.mark.parametrize(
    ("name", "weights"),
    [("resnet", 207_263), ("botnet", 158_815), ("efficientnet", 181_863), ("vit", 207_279)],
)
def test_small_networks_are_as_large_as_they_say(name: str, weights: int) -> None:
    assert num_weights(lingo.get(f"image.{name}.glyphs").build()) == weights


@pytest.mark.parametrize(
    "flags",
    [
        ["Conv2D=Lora(layer=_)"],
        ["Conv2D=WeightNorm(layer=_)", "ConvNorm=Remat(layer=_)", "PatchHead=Remat(layer=_)"],
    ],
    ids=["lora", "weight norm and remat"],
)
def test_wrappers_fit_every_experiment_on_images(flags: list[str], capsys) -> None:
    names = [f"--exp={name}" for name in NAMES]
    assert main(["check", *names, *(f"--set={flag}" for flag in flags)]) == 0
    lines = capsys.readouterr().out.splitlines()
    untouched = [line.split()[0] for line in lines if f"{flags[0]}: not applicable" in line]
    others = ("image.amoebanet.", "image.unet.")  # which have convolutions of other classes
    assert all(name.startswith(others) for name in untouched)


def test_lora_adds_a_few_weights_to_each_convolution() -> None:
    plain = lingo.get("image.vit.s16").build()
    wrapped = lingo.get("image.vit.s16", "Conv2D=Lora(layer=_, rank=2)").build()
    assert num_weights(wrapped) - num_weights(plain) == 2 * (16 * 16 * 3 + 384)
