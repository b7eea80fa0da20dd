"""The rules' targets and numbers of runs."""

import math
from typing import get_args

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.trainer.mlperf.mllog import read_log
from lingo.trainer.mlperf.rules import RULES, Benchmark
from lingo.trainer.mlperf.run_log import find_log


@pytest.mark.parametrize(
    ("text", "target", "num_runs"),
    [
        ("resnet@0.6.0", 0.759, 5),
        ("ssd@0.6.0", 0.23, 5),
        ("ssd@0.7.0", 0.23, 5),
        ("maskrcnn@0.6.0", 1.0, 5),
        ("maskrcnn@0.7.0", 1.0, 5),
        ("transformer@0.6.0", 0.25, 10),
        ("gnmt@0.6.0", 0.24, 10),
        ("gnmt@0.7.0", 0.24, 10),
        ("bert@0.7.0", 0.712, 10),
        ("bert@1.0.0", 0.72, 10),
        ("dlrm@0.7.0", 0.8025, 5),
    ],
)
def test_targets_and_runs_are_those_of_the_rules(text, target, num_runs):
    found = RULES[text]
    assert (found.target, found.num_runs, str(found)) == (target, num_runs, text)


@pytest.mark.parametrize(
    ("value", "share"),
    [
        ({"BBOX": 0.377, "SEGM": 0.5}, 1.0),
        ({"BBOX": 0.377, "SEGM": 0.339 / 2}, 0.5),
        ({"BBOX": "0.377", "SEGM": "0.339"}, 1.0),  # as text, in another program's log
        ({"BBOX": 0.5}, 0.0),
    ],
)
def test_mask_rcnn_has_the_smallest_share_of_its_two_targets(value, share):
    assert RULES["maskrcnn@0.7.0"].accuracy(value) == pytest.approx(share)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "good", None])
def test_a_target_without_a_finite_number_is_not_reached(bad):
    assert math.isnan(RULES["maskrcnn@0.7.0"].accuracy({"BBOX": 0.5, "SEGM": bad}))


def test_an_experiment_can_name_each_of_them_and_no_other():
    assert set(RULES) == set(get_args(Benchmark))
    with pytest.raises(ParamError, match=r"bert@0\.6\.0.* Did you mean 'bert@0\.7\.0'"):
        lingo.get("mlperf.resnet.digits", "MlperfLog.benchmark=bert@0.6.0")


def test_an_experiment_that_names_none_has_no_log():
    with pytest.raises(ParamError, match=r"names no benchmark .* with one of resnet@0\.6\.0, ssd@"):
        find_log(lingo.get("image.ssd.scenes").build())


@pytest.mark.parametrize("change", [{"reach": None}, {"goal": "min"}, {"metric": "heldout/loss"}])
def test_its_evaluations_have_the_metric_of_the_benchmark_and_a_target(change, settings):
    params = settings("resnet")
    params.evaluate.set(**change)
    with pytest.raises(ParamError, match=r"needs the value of 'accuracy' .*evaluate\.reach=0\.759"):
        params.build()


def test_a_detector_is_no_classifier(settings):
    params = settings("ssd")
    params.observers[0].benchmark = "resnet@0.7.0"
    with pytest.raises(ParamError, match=r"a log of resnet@0\.7\.0 needs the value of 'accuracy'"):
        params.build()


def test_bleu_is_in_percent_and_logged_as_a_fraction(settings, write):
    lines = read_log(write(settings("gnmt"), "gnmt@0.7.0", accuracies=[0.24])).lines
    assert [line.value for line in lines if line.key == "eval_accuracy"] == [0.24]
    assert lines[-1].metadata["status"] == "success"
    params = settings("gnmt")
    params.evaluate.reach = None
    with pytest.raises(ParamError, match=r"--set=evaluate\.reach=24$"):
        params.build()
