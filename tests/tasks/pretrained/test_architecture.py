"""Networks by their names: the published numbers of weights, and why others are refused."""

from __future__ import annotations

import pytest

from lingo.config.params import ParamError
from tasks.pretrained.architecture import ARCHITECTURES, find_architecture

WEIGHTS = {  # as torchvision's and timm's pages say, in millions
    "torchvision.resnet18": 11_689_512,
    "timm.resnet101": 44_549_160,
    "torchvision.efficientnet_b4": 19_341_616,
    "timm.tf_efficientnet_b7": 66_347_960,
    "torchvision.vit_b_16": 86_567_656,
    "torchvision.vit_l_32": 306_535_400,
    "timm.deit_small_patch16_224": 22_050_664,
    "keras.ResNet50": 25_583_592,  # 25,636,712 with the moving statistics
    "keras.EfficientNetB0": 5_288_548,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_numbers_of_weights_are_the_published_ones(name: str) -> None:
    architecture = find_architecture(name)
    specs = architecture.model(num_classes=1000).build().weights().values()
    assert sum(spec.size for spec in specs) == WEIGHTS[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("timm.resnext50_32x4d", "its convolutions have groups"),
        ("torchvision.wide_resnet50_2", "the middle of its blocks is wider"),
        ("keras.ResNet50V2", "its blocks are others"),
        ("torchvision.efficientnet_v2_s", "fused convolutions"),
        ("timm.vit_base_patch16_siglip_224", "it pools by attention"),
        ("timm.vit_small_patch14_reg4_dinov2.lvd142m", "it scales what each layer adds"),
        ("timm.deit_base_distilled_patch16_224", "it has a second token"),
        ("torchvision.resnet5O", r"networks\. Did you mean .*\? The known networks are ResNet"),
        ("resnet50", "Did you mean"),
        ("x", "such as timm.resnet50"),
    ],
)
def test_another_network_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ParamError, match=reason):
        find_architecture(name)


def test_every_architecture_is_found_by_its_name_with_any_tag() -> None:
    for name, architecture in ARCHITECTURES.items():
        assert find_architecture(f"{name}.some_tag") is architecture
        assert name.startswith(f"{architecture.library}.")
