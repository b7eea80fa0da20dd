"""Statistics of a batch on replicas are those of one device, or refused."""

from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.layers.inputs import BatchRequirements
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.stacks.chain import Chain
from lingo.layers.vision.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.state import Learner
from lingo.optim.sgd import Sgd
from lingo.runtimes.replicated.shares import Shares, check_statistics
from tasks.image.task import ImageClassification


class Counting(RmsNorm):
    """A norm that takes statistics of all rows, in no groups."""

    def batch_requirements(self, shape: Any = (None, None)) -> BatchRequirements:
        return BatchRequirements(examples_counted=0)


def check(size, statistics_over=None, *, replicas=2, parts=1, norm=None):
    """Checks a convolution with BatchNorm on replicas of two processes, or on one."""
    norm = norm or BatchNorm.params(statistics_over=statistics_over)
    layers = [
        AmoebaNetStem.params(dim=1, output_dim=2, norm=norm),
        AmoebaNetHead.params(dim=2, num_classes=2),
    ]
    task = ImageClassification.params(
        model=Chain.params(layers=layers), num_classes=2, image_shape=(4, 4, 1)
    )
    learner = Learner(task.build(), Sgd.params(learning_rate=1.0).build(), accumulation_steps=parts)
    num = min(replicas, 2)
    check_statistics(learner, Shares(0, num, replicas // num), size)


@pytest.mark.parametrize(
    ("size", "replicas", "parts"),
    [(6, 4, 1), (9, 2, 1), (1, 2, 1), (8, 2, 8), (12, 2, 4), (6, 1, 4)],
)
@pytest.mark.parametrize("statistics_over", [None, 1, 2])
def test_rows_that_fill_replicas_up_would_be_counted(size, replicas, parts, statistics_over):
    message = (
        f"runtime: {size} examples are not .* for {replicas} replicas and .*model/layers/0/norm"
    )
    with pytest.raises(ParamError, match=message):
        check(size, statistics_over, replicas=replicas, parts=parts)


def test_statistics_of_a_call_would_depend_on_the_number_of_replicas():
    with pytest.raises(ParamError, match=r"--set=BatchNorm\.statistics_over=3 makes groups"):
        check(12, None, parts=2)


def test_groups_are_shared():
    check(12, 3)
    check(12, 2, parts=3)


def test_one_replica_has_all_rows():
    check(5, None, replicas=1)


def test_layers_that_count_no_rows_of_weight_0_share_any():
    assert Norm.params(dim=2).build().batch_requirements().examples_counted is None


def test_a_layer_without_groups_is_told_no_flag_for_them():
    with pytest.raises(ParamError, match=r"one device: --set='runtime=Mesh\(data=2\)' keeps"):
        check(8, norm=Counting.params())
