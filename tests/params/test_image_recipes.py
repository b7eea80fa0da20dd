"""Recipes for images: learning rates by step, batch norms, and what small studies hold fixed."""

from __future__ import annotations

import numpy as np
import pytest

import lingo
from lingo.config.params import ParamError
from lingo.config.text import resolve
from lingo.data import ImageRecords, MixedInput
from lingo.data.files import DataError
from lingo.layers import BatchNorm
from params.image import botnet, efficientnet, resnet, vit


def rates(name: str, steps: list[int]) -> np.ndarray:
    optimizer = lingo.get(name).build().optimizer
    return np.asarray(optimizer.rates(np.array(steps))["learning_rate"], np.float64)


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        (
            "image.resnet.supercomputer",  # the formula of MLPerf's reference
            [100, 977, 1500, 2983],
            [3.19197, 31.185545, 17.058027, 1.077457e-4],
        ),
        (
            "image.resnet.multipod",
            [0, 303, 606, 1172, 1739],
            [0.0, 24.699 * 303 / (31 * 1_281_167 / 65_536), 24.698073, 6.185671, 1e-4],
        ),
        ("image.resnet.lamb", [0, 391, 782, 2150, 3519], [0.0, 0.02, 0.04, 0.0200073, 0.0]),
        (
            "image.resnet.resnet50(batch_size=8192)",  # 156.39 steps an epoch
            [0, 391, 781, 4690, 4691, 9383, 12_511],
            [0.1, 1.651985, 3.2, 3.2, 0.32, 0.032, 0.0032],
        ),
        (
            "image.resnet.resnet101_22k",  # 1,464.8 steps an epoch of 7.5 million images
            [0, 7324, 43_945, 43_946, 87_890, 87_891, 117_187, 117_188],
            [0.1, 2.0, 2.0, 0.2, 0.2, 0.02, 0.02, 0.002],
        ),
        (
            "image.efficientnet.b0",  # 312.79 steps an epoch: 1,563, and stairs of 750.68 from 0 on
            [0, 781, 1562, 1563, 2252, 2253, 109_474],
            [
                *[0.256 * n / 1563 for n in (0, 781, 1562)],
                *[0.256 * 0.97**n for n in (2, 2, 3, 145)],
            ],
        ),
        (
            'image.efficientnet.b5_pod(optimizer="rmsprop")',  # 19.55: 97, and stairs of 46.92
            [0, 96, 97, 140, 141],
            [0.0, 4.096 * 96 / 97, *[4.096 * 0.97**n for n in (2, 2, 3)]],
        ),
        (
            "image.efficientnet.b2_pod(batch_size=16384)",  # 78.2: 3,909 of 27,368
            [0, 3909, 15_639, 27_369],
            [0.0, 15.104, 0.1 + 15.004 * 0.25, 0.1],
        ),
        (
            "image.efficientnet.b2_pod",  # 39.1: 1,954 of 13,684
            [0, 977, 1954, 13_685],
            [0.0, 7.552, 15.104, 0.1],
        ),
        (
            "image.efficientnet.b5_pod",  # 19.55: 840 of 6,842; half way after 3,001.5 more
            [0, 420, 840, 3841, 3842, 6843],
            [
                *[0.0, 10.368, 20.736],
                *[0.1 + 20.636 * ((6003 - n) / 6003) ** 2 for n in (3001, 3002)],
                0.1,
            ],
        ),
        (
            "image.ssd.r34",  # 57.26 steps an epoch: 1,145 of warm-up, drops after 3,206 and 4,007
            [0, 1145, 3206, 3207, 4007, 4008, 4580],
            [0.0, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016],
        ),
        (
            "image.vit.s16",  # 111,476 steps
            [0, 5000, 10_000, 60_738, 111_476],
            [0.0, 5e-4, 1e-3, 5e-4, 0.0],
        ),
        (
            "image.lenet.lenet5",
            [0, 50, 100, 100_000, 550_000, 1_000_000],
            [0.0, 5e-5, 1e-4, 1e-4, 1e-4 * 0.1**0.5, 1e-5],
        ),
    ],
)
def test_learning_rates_are_those_of_the_recipe(name: str, steps, expected) -> None:
    np.testing.assert_allclose(rates(name, steps), expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["vit.s16(epochs=5)", "botnet.bot50(epochs=5)", "transfer.digits(num_steps=5)"]
)
def test_training_that_is_shorter_than_its_warm_up_is_refused(name: str) -> None:
    with pytest.raises(ParamError, match=r"its warm-up takes [\d,]+: train for longer"):
        lingo.get(f"image.{name}")


@pytest.mark.parametrize(
    ("name", "examples"),
    [("resnet.supercomputer", 8 * 32_768 // 2048), ("resnet.multipod", 8 * 65_536 // 8192)],
)
def test_statistics_of_batch_norms_are_those_of_eight_cores(name: str, examples: int) -> None:
    params = lingo.get(f"image.{name}")
    assert {norm.statistics_over for norm in params.all(BatchNorm)} == {examples}
    assert params.train_input.batch_size // params.runtime.data == examples // 8


def test_only_the_matrices_of_vit_decay() -> None:
    experiment = vit.s16(positions="learned").build()
    optimizer = experiment.optimizer
    decaying = {
        name
        for weight in experiment.learner.weights().values()
        for name in weight.names
        if optimizer._decays(weight, name)
    }
    kinds = {name.rsplit("/", 1)[1] for name in decaying}
    assert kinds == {"w", "w_in", "w_out", "w_query", "w_key", "w_value", "w_output"}
    assert optimizer.p.learning_rate * optimizer.p.weight_decay == pytest.approx(1e-4)


@pytest.mark.parametrize("rule", resnet.RATES)
@pytest.mark.parametrize("batch_size", [64, 1024])
def test_large_batches_of_glyphs_see_as_many_images(rule: resnet.Rule, batch_size: int) -> None:
    experiment = resnet.glyphs(optimizer=rule, batch_size=batch_size).build()
    images = experiment.p.max_steps * batch_size
    assert 5 * 22_560 - batch_size < images <= 5 * 22_560
    assert experiment.train_input.num_examples() == 22_560
    factor = {"momentum": 16, "lars": 16, "adam": 4, "lamb": 4}[rule] if batch_size > 64 else 1
    assert experiment.optimizer.p.learning_rate == pytest.approx(factor * resnet.RATES[rule])


def test_bot_and_resnet_on_glyphs_differ_in_their_layers_alone() -> None:
    def settings(params) -> set[tuple[str, str]]:
        return {(line.path, line.value) for line in resolve(params)}

    changed = settings(resnet.glyphs()) ^ settings(botnet.glyphs())
    assert changed
    assert all(path.startswith("task.model.layers[") for path, _ in changed)


@pytest.mark.parametrize("name", ["vit.s16", "vit.s16(folder='/none')", "vit.glyphs"])
def test_mixed_labels_are_shares_of_all_classes_of_the_task(name: str) -> None:
    params = lingo.get(f"image.{name}")
    assert isinstance(params.train_input.build(), MixedInput)
    assert params.train_input.num_classes == params.build().task.p.num_classes


@pytest.mark.parametrize(
    "name",
    ["resnet.resnet50", "efficientnet.b5", "vit.l16", "botnet.bot50", "amoebanet.amoebanet_d"],
)
def test_a_folder_of_imagenet_is_read_when_it_is_needed_and_not_before(name: str) -> None:
    experiment = lingo.get(f"image.{name}(folder='/none')").build()
    with pytest.raises(DataError, match="There is no directory /none"):
        experiment.train_input.prepare()
    patterns = {source.pattern for source in experiment.p.all(ImageRecords)}
    assert patterns == {"/none/train-*", "/none/validation-*"}


def test_efficientnet_evaluates_the_average_of_its_weights() -> None:
    experiment = efficientnet.b0().build()
    assert experiment.p.evaluate.weights == "ema"
    assert experiment.optimizer.p.ema_decay == 0.9999
    assert experiment.optimizer.p.ema_warmup


def test_efficientnet_evaluates_all_but_32_pixels_of_an_image() -> None:
    params = efficientnet.b1(folder="/none")
    assert params.eval_inputs["heldout"].view.side == pytest.approx(240 / 272)


def test_pods_train_in_bfloat16_on_parts_of_a_batch_that_fit() -> None:
    params = lingo.get("image.efficientnet.b5_pod(folder='/none')")
    assert params.task.dtype == "bfloat16"
    images = params.train_input.batch_size // params.runtime.data // params.accumulation_steps
    assert (images, params.runtime.shard_update) == (8, True)
    assert {norm.statistics_over for norm in params.all(BatchNorm)} == {64}
    assert params.train_input.augment_arguments["uses_auto_augment"]
