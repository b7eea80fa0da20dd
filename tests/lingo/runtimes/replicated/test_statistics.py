"""Statistics of a batch on replicas are those of one device, or refused."""

from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.layers.inputs import BatchRequirements
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Chain
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.phase import Phase
from lingo.learner.state import Learner
from lingo.models.image.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.optim.sgd import Sgd
from lingo.runtimes.replicated.shares import Shares, check_statistics
from tasks.image.task import ImageClassification


class Counting(RmsNorm):
    """A norm that takes statistics of all rows, in no groups."""

    def batch_requirements(self, shape: Any = (None, None)) -> BatchRequirements:
        return BatchRequirements(examples_counted=0)


class Late(ImageClassification):
    """Learns at every second step."""

    def phases(self):
        return {"late": Phase(weights=(".*",), every_steps=2)}


def check(
    size,
    statistics_over=None,
    *,
    replicas=2,
    parts=1,
    xla=False,
    norm=None,
    first=(),
    stack=None,
    cls=ImageClassification,
):
    """Checks a convolution with BatchNorm on replicas of two processes, or on one."""
    norm = norm or BatchNorm.params(statistics_over=statistics_over)
    layers = [
        *first,
        AmoebaNetStem.params(dim=1, output_dim=2, norm=norm),
        AmoebaNetHead.params(dim=2, num_classes=2),
    ]
    model = (stack or Chain.params()).set(layers=layers)
    task = cls.params(model=model, num_classes=2, image_shape=(4, 4, 1))
    learner = Learner(task.build(), Sgd.params(learning_rate=1.0).build(), accumulation_steps=parts)
    num = min(replicas, 2)
    check_statistics(learner, Shares(0, num, replicas // num), size, xla=xla)


@pytest.mark.parametrize(
    ("size", "replicas", "parts"),
    [(6, 4, 1), (9, 2, 1), (1, 2, 1), (8, 2, 8), (12, 2, 4), (6, 1, 4)],
)
@pytest.mark.parametrize("statistics_over", [None, 1, 2])
def test_rows_that_fill_replicas_up_would_be_counted(size, replicas, parts, statistics_over):
    message = f"{size} examples do not divide into .* for {replicas} replicas .*model/layers/0/norm"
    with pytest.raises(ParamError, match=message):
        check(size, statistics_over, replicas=replicas, parts=parts)


def test_statistics_of_a_call_would_depend_on_the_number_of_replicas():
    with pytest.raises(ParamError, match=r"--set=BatchNorm\.statistics_over=3 makes groups"):
        check(12, None, parts=2)


def test_groups_are_shared():
    check(12, 3)
    check(12, 2, parts=3)
    check(16, 8, replicas=4)
    check(16, 16, replicas=4)


@pytest.mark.parametrize(("size", "replicas", "group"), [(12, 2, 4), (12, 4, 9), (12, 2, 18)])
def test_groups_are_of_whole_replicas_or_inside_one(size, replicas, group):
    message = (
        f"model/layers/0/norm takes statistics of groups of {group} examples, and each of"
        f" {replicas} replicas has {size // replicas}: a replica has to have whole groups"
    )
    with pytest.raises(ParamError, match=message):
        check(size, group, replicas=replicas)


def test_replicas_share_no_group_in_loops_and_compiled_programs():
    with pytest.raises(ParamError, match="inside the loop of accumulation_steps"):
        check(16, 8, replicas=4, parts=2)
    with pytest.raises(ParamError, match=r"inside a program that runtime\.xla compiles"):
        check(16, 8, replicas=4, xla=True)
    loop = Repeat.params(layer=BatchNorm.params(dim=1, statistics_over=8), num_layers=2)
    with pytest.raises(ParamError, match=r"layers/\[0:2\] takes .* inside the loop of a stack"):
        check(16, 4, replicas=4, first=[loop])
    with pytest.raises(ParamError, match="inside a phase that is not due at every step"):
        check(16, 8, replicas=4, cls=Late)
    stack = PipelinedChain.params(num_stages=2, num_micro_batches=2)
    with pytest.raises(ParamError, match=r"or inside a pipeline; --set='runtime=Mesh\(data=4\)'"):
        check(16, 8, replicas=4, stack=stack)


def test_one_replica_has_all_rows():
    check(5, None, replicas=1)


def test_layers_that_count_no_rows_of_weight_0_share_any():
    assert Norm.params(dim=2).build().batch_requirements().examples_counted is None


def test_a_layer_without_groups_is_told_no_flag_for_them():
    with pytest.raises(ParamError, match=r"one device: --set='runtime=Mesh\(data=2\)' keeps"):
        check(8, norm=Counting.params())
