"""The experiments of MLPerf's rounds: published schedules, targets, and what their rules fix."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lingo
from lingo.data import ByteTokenizer, TsvPairs
from lingo.layers import BatchNorm
from lingo.trainer.mlperf.hyperparameters import hyperparameters
from lingo.trainer.mlperf.run_log import find_log

SSD_STEPS = [0, 1145, 3206, 3207, 4007, 4008, 4580]
TRANSFORMER = [
    ("reference", 2.0, 16_000),
    ("v06_pod", 1.3, 550),
    ("v07_pod", 1.875, 831),
    ("v07_jax", 3.3092, 664),
    ("v07_small", 1.875, 1107),
]


def noam(rate: float, warmup: int, steps: list[int]) -> list[float]:
    """Rates as MLPerf's reference has them, of width 1024; steps count from 0."""
    return [rate / 32 * min(1, t / warmup) / math.sqrt(max(t, warmup)) for t in steps]


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        (
            "resnet.v06_pod",  # the formula of MLPerf's reference
            [100, 977, 1500, 2983],
            [3.19197, 31.185545, 17.058027, 1.077457e-4],
        ),
        (
            "resnet.v07_multipod",
            [0, 303, 606, 1172, 1739],
            [0.0, 24.699 * 303 / (31 * 1_281_167 / 65_536), 24.698073, 6.185671, 1e-4],
        ),
        (
            "dlrm.v07_pod",
            [0, 1375, 2750, 49_315, 63_201, 77_087],
            [0.0, 23.949 / 2, 23.949, 23.949, 23.949 / 4, 0.0],
        ),
        ("ssd.v06_pod", SSD_STEPS, [0.0, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016]),
        ("ssd.v07_pod", SSD_STEPS, [0.0, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016]),
        (
            "mask_rcnn.reference",
            [500, 60_000, 60_001, 80_001],
            [0.02, 0.02, 0.002, 0.0002],
        ),
        (
            "mask_rcnn.v06_pod",
            [0, 1000, 7500, 7501, 10_001],
            [0.16 / 3, 0.16, 0.16, 0.016, 0.0016],
        ),
        ("mask_rcnn.v07_pod", [2000, 6000, 6001, 8001], [0.24, 0.24, 0.024, 0.0024]),
        (
            "mask_rcnn.v07_pod(batch_size=128)",
            [2000, 9750, 9751, 13_001],
            [0.16, 0.16, 0.016, 0.0016],
        ),
        (  # the last one: all steps from here on
            "gnmt.reference",
            [0, 100, 200, 3999, 4000, 4500, 5000, 5499, 5500, 9000],
            [1e-5, 1e-4, 1e-3, 1e-3, 5e-4, 2.5e-4, 1.25e-4, 1.25e-4, 6.25e-5, 6.25e-5],
        ),
        (
            "gnmt.v07_pod",
            [0, 75, 150, 1923, 1924, 2165, 2406, 2647],
            [4.5e-5, 4.5e-4, 4.5e-3, 4.5e-3, 0.00225, 0.001125, 5.625e-4, 2.8125e-4],
        ),
        (  # MLPerf's golden values: the rate jumps where the rise ends
            "bert.v07",
            [0, 100, 210, 211, 400, 560],
            [7.634240e-4, 1.767929e-3, 2.872885e-3, 1.796683e-3, 8.236943e-4, 0.0],
        ),
        (
            "bert.v07(batch_size=256)",
            [0, 600, 1199, 1200, 14_796],
            [0.0, 0.0015 / 2, 0.0015 * 1199 / 1200, 0.0015 * (1 - 1200 / 14_796), 0.0],
        ),
        ("bert.v10(batch_size=448)", [0, 8103 // 3, 8103], [4e-4, 4e-4 * 2 / 3, 0.0]),
        (
            "bert.v10(batch_size=12288)",
            [0, 223, 224, 500],
            [0.0033 * 76 / 300, 0.0033 * 299 / 300, 0.0033 * 276 / 500, 0.0],
        ),
        *(
            (f"transformer.{name}", steps := [0, 1, warmup, 9 * warmup], noam(rate, warmup, steps))
            for name, rate, warmup in TRANSFORMER
        ),
    ],
)
def test_learning_rates_are_the_published_ones(name: str, steps, expected) -> None:
    optimizer = lingo.get(f"mlperf.{name}").build().optimizer
    rates = np.asarray(optimizer.rates(np.array(steps))["learning_rate"], np.float64)
    rtol = 1e-5 if "v06_pod" in name else 1e-4
    np.testing.assert_allclose(rates, expected, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "text", "every_steps"),
    [
        ("resnet.v06_pod", "resnet@0.6.0", math.floor(4 * 1_281_167 / 32_768)),
        ("resnet.v07_multipod", "resnet@0.7.0", math.floor(4 * 1_281_167 / 65_536)),
        ("ssd.v06_pod", "ssd@0.6.0", math.floor(5 * 117_266 / 2048)),
        ("ssd.v07_pod", "ssd@0.7.0", math.floor(5 * 117_266 / 2048)),
        ("mask_rcnn.reference", "maskrcnn@0.7.0", 118_287 // 16),
        ("mask_rcnn.v06_pod", "maskrcnn@0.6.0", 118_287 // 128),
        ("mask_rcnn.v07_pod", "maskrcnn@0.7.0", 118_287 // 256),
        ("dlrm.v07_pod", "dlrm@0.7.0", 75_867 // 20),
        ("transformer.reference", "transformer@0.7.0", 35_397),
        ("transformer.v06_pod", "transformer@0.6.0", 277),  # of the logs of Google's entries
        ("transformer.v07_pod", "transformer@0.7.0", 277),
        ("transformer.v07_jax", "transformer@0.7.0", 277),
        ("transformer.v07_small", "transformer@0.7.0", 1107),
        ("gnmt.reference", "gnmt@0.7.0", 3_442_299 // 4096),
        ("gnmt.v07_pod", "gnmt@0.7.0", 3_442_299 // 8192),
        ("bert.v07", "bert@0.7.0", 500_000 // 8192),
        ("bert.v10(batch_size=256)", "bert@1.0.0", 150_000 // 256),  # rows by the README's table
        ("bert.v10", "bert@1.0.0", 175_000 // 3072),
        ("bert.v10(batch_size=8192)", "bert@1.0.0", 225_000 // 8192),
    ],
)
def test_runs_end_at_the_target_of_their_round(name: str, text: str, every_steps: int) -> None:
    experiment = lingo.get(f"mlperf.{name}").build()
    p, rules = experiment.p.evaluate, find_log(experiment).rules
    assert (str(rules), p.reach, p.goal) == (text, rules.target * rules.whole, "max")
    assert p.every_steps == every_steps


def test_what_the_closed_division_of_0_7_fixes_is_so() -> None:
    """As in the files closed_resnet_lars.yaml and closed_ssd.yaml of the compliance checker."""
    params = lingo.get("mlperf.resnet.v07_multipod")
    found = hyperparameters(params.build(), "resnet", "0.7.0")
    values = {key.removeprefix("lars_opt_"): entry.value for key, entry in found.items()}
    assert (values["lars_epsilon"], values["end_learning_rate"]) == (0.0, 1e-4)
    assert values["learning_rate_decay_poly_power"] == 2
    assert math.log2(values["weight_decay"] / 1e-4) == 0
    assert (values["learning_rate_warmup_epochs"], values["momentum"]) == (31, 0.951807)
    assert {norm.statistics_over for norm in params.all(BatchNorm)} == {values["model_bn_span"]}


def test_ssd_logs_the_numbers_of_the_published_flags() -> None:
    found = hyperparameters(lingo.get("mlperf.ssd.v07_pod").build(), "ssd", "0.7.0")
    values = {key: entry.value for key, entry in found.items()}
    assert values["opt_learning_rate_decay_boundary_epochs"] == [56, 70]
    assert (values["opt_weight_decay"], values["model_bn_span"]) == (5e-4, 64)
    assert (values["opt_learning_rate_warmup_steps"], values["global_batch_size"]) == (1145, 2048)


def write_coco(root: pathlib.Path) -> None:
    """Writes COCO's folders and files for an image with one object."""
    mask = {"size": [8, 8], "counts": [0, 64]}
    content = {
        "categories": [{"id": i, "name": str(i)} for i in range(80)],
        "images": [{"id": 1, "file_name": "a.png", "height": 8, "width": 8}],
        "annotations": [
            {"image_id": 1, "category_id": 1, "bbox": [0, 0, 8, 8], "segmentation": mask, "id": 1}
        ],
    }
    (root / "annotations").mkdir()
    for part in ("train2017", "val2017"):
        (root / part).mkdir()
        Image.new("RGB", (8, 8)).save(root / part / "a.png")
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))


def test_mask_rcnn_logs_what_the_closed_division_checks(tmp_path: pathlib.Path) -> None:
    """As in closed_maskrcnn.yaml: a rate of K times 0.02, 1,000 candidates, two drops to 0.1."""
    write_coco(tmp_path)
    values: dict[str, Any] = {}
    sizes = [(800, 1344), (832, 1344), (832, 1344)]
    entries = ("reference", 1), ("v06_pod", 8), ("v07_pod", 12)
    for (name, times), size in zip(entries, sizes, strict=True):
        params = lingo.get(f"mlperf.mask_rcnn.{name}")
        found = hyperparameters(params.build(), "maskrcnn", "0.7.0")
        values = {key: entry.value for key, entry in found.items()}
        assert values["opt_base_learning_rate"] / 0.02 == pytest.approx(times)
        assert values["opt_learning_rate_decay_factor"] == 0.1
        assert len(values["opt_learning_rate_decay_steps"]) == 2
        assert values["num_image_candidates"] == 1000
        assert (values["min_image_size"], values["max_image_size"]) == size
        images = lingo.get(f"mlperf.mask_rcnn.{name}(folder={str(tmp_path)!r})").build()
        found = hyperparameters(images, "maskrcnn", "0.7.0")
        sides = [found[f"{part}_image_size"].value for part in ("min", "max")]
        assert sides == [800, 1333]
    assert values["opt_learning_rate_decay_steps"] == [6000, 8000]


@pytest.mark.parametrize(
    ("name", "num"), [("reference", 268_569), ("v06_pod", 279_279), ("v07_pod", 279_279)]
)
def test_oblong_images_of_mask_rcnn_have_the_published_number_of_anchors(name, num) -> None:
    model = lingo.get(f"mlperf.mask_rcnn.{name}").build().task.model
    assert sum(model.level_sizes()) == len(model.anchors()) == num


def test_both_average_precisions_of_mask_rcnn_have_to_reach_their_targets() -> None:
    experiment = lingo.get("mlperf.mask_rcnn.digit_scenes").build()
    rules = find_log(experiment).rules
    for ap, mask_ap in ((0.377, 0.339), (0.5, 0.3), (0.1, 0.9)):
        results = experiment.task.results({"coco/ap": ap, "coco/mask/ap": mask_ap})
        share = min(ap / 0.377, mask_ap / 0.339)
        assert results["target_share"] == pytest.approx(share)
        value = rules.log_value(results)
        assert value == {"BBOX": ap, "SEGM": mask_ap}
        assert rules.accuracy(value) == pytest.approx(min(1.0, share))
        assert (rules.accuracy(value) >= rules.target) == (share >= 1)
    assert rules.accuracy("text") == "text"


def test_dlrm_logs_the_numbers_of_the_published_settings() -> None:
    found = hyperparameters(lingo.get("mlperf.dlrm.v07_pod").build(), "dlrm", "0.7.0")
    values = {key: entry.value for key, entry in found.items()}
    assert values["opt_learning_rate_warmup_steps"] == 2_750
    assert (values["lr_decay_start_steps"], values["global_batch_size"]) == (49_315, 55_296)
    assert values["sgd_opt_learning_rate_decay_steps"] == 27_772
    assert values["sgd_opt_learning_rate_decay_poly_power"] == 2


def read_settings(name: str, path: pathlib.Path) -> dict[str, Any]:
    """Returns what a benchmark of translation logs, with other pairs than its own."""
    table = path / "pairs.tsv"
    table.write_text("a house\tein Haus\n" * 9)
    params = lingo.get(f"mlperf.{name}")
    params.train_input.set(source=TsvPairs.params(pattern=str(table)), tokenizer=ByteTokenizer)
    found = hyperparameters(params.build(), name.partition(".")[0], "0.7.0")
    return {key.removeprefix("opt_"): entry.value for key, entry in found.items()}


@pytest.mark.parametrize(("name", "rate", "warmup"), TRANSFORMER[1:])
def test_transformer_logs_the_numbers_of_the_published_settings(name, rate, warmup, tmp_path):
    values = read_settings(f"transformer.{name}", tmp_path)
    assert (values["name"], values["adam_epsilon"]) == ("adam", 1e-9)
    assert values["base_learning_rate"] == rate
    assert values["learning_rate_warmup_steps"] == warmup
    assert values["max_sequence_length"] == 256


def test_gnmt_logs_the_numbers_of_the_published_settings(tmp_path) -> None:
    values = read_settings("gnmt.v07_pod", tmp_path)
    assert (values["base_learning_rate"], values["global_batch_size"]) == (0.0045, 8192)
    names = ("warmup_steps", "remain_steps", "decay_interval", "decay_steps", "decay_factor")
    found = [values[f"learning_rate_{name}"] for name in names]
    assert found == [150, 1924, 241, 4, 0.5]
    assert values["max_sequence_length"] == 50


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [
        *((f"v07(batch_size={size})", num) for size, num in ((256, 16), (3072, 128), (8192, 8192))),
        *((f"v10(batch_size={size})", num) for size, num in ((256, 256), (448, 64), (12_288, 512))),
        ("v07(batch_size=768)", 256),
        ("v07(data=512)", 512),
    ],
)
def test_devices_of_bert_have_no_padding(name: str, num_devices: int) -> None:
    """Published are 16 and 128 chips of TPU v4, and 4,096 of v3, of two devices each."""
    params = lingo.get(f"mlperf.bert.{name}")
    assert params.runtime.data == num_devices
    assert params.train_input.batch_size % num_devices == 0
    assert params.eval_inputs["heldout"].batch_size % num_devices == 0


def test_translations_are_searched_for_as_the_benchmark_says() -> None:
    answers = lingo.get("mlperf.transformer.reference").evaluate.answers
    beam = answers.decoding
    assert (beam.num_beams, beam.length_penalty, beam.max_extra_tokens) == (4, 0.6, 50)
    assert (answers.max_examples, answers.measures) == (None, ["bleu_uncased"])
    beam = lingo.get("mlperf.gnmt.reference").evaluate.answers.decoding
    assert (beam.num_beams, beam.length_penalty, beam.coverage_penalty) == (5, 0.6, 0.1)


def test_bert_logs_the_numbers_of_the_published_settings() -> None:
    params = lingo.get("mlperf.bert.v07")
    small = lingo.get("mlperf.bert.numbers")
    params.set(train_input=small.train_input.set(batch_size=8192), eval_inputs=small.eval_inputs)
    found = hyperparameters(params.build(), "bert", "0.7.0")
    assert {key: entry.value for key, entry in found.items()} == {
        "global_batch_size": 8192,
        "opt_name": "lamb",
        "opt_base_learning_rate": 0.00288293,
        "opt_epsilon": 1e-6,
        "opt_learning_rate_training_steps": 560,
        "opt_learning_rate_warmup_steps": 287,
        "num_warmup_steps": 287,
        "start_warmup_step": -76,
        "opt_lamb_beta_1": 0.88,
        "opt_lamb_beta_2": 0.88,
        "opt_lamb_weight_decay_rate": 0.0166629,
    }
