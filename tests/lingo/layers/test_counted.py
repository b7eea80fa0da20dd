"""The record of what layers are asked while operations are counted."""

from __future__ import annotations

from lingo.layers import counted
from lingo.layers.counted import Answer
from lingo.layers.linear import Linear
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack

LINEAR = Linear.params(dim=3, output_dim=3)
SHAPE = [2, 4, 3]
OF_ONE = 2 * 2 * 4 * 3 * 3  # operations of one layer


def test_every_layer_that_is_asked_has_its_shape_and_its_answer() -> None:
    stack = Stack.params(layer=LINEAR, num_layers=2).build()
    with counted.record_flops() as found:
        assert stack.flops(SHAPE) == 2 * OF_ONE
    assert found == {
        stack.layers[0]: [Answer(SHAPE, OF_ONE)],
        stack.layers[1]: [Answer(SHAPE, OF_ONE)],
        stack: [Answer(SHAPE, 2 * OF_ONE)],
    }


def test_a_layer_that_counts_another_way_still_has_its_own_answer() -> None:
    repeat = Repeat.params(layer=LINEAR, num_layers=2).build()
    with counted.record_flops() as found:
        repeat.flops(SHAPE)
    assert found == {repeat.body[0]: [Answer(SHAPE, OF_ONE)], repeat: [Answer(SHAPE, 2 * OF_ONE)]}


def test_every_call_is_recorded_in_turn() -> None:
    layer = LINEAR.build()
    with counted.record_flops() as found:
        layer.flops([1, 3])
        layer.flops([5, 3])
    assert [answer.shape for answer in found[layer]] == [[1, 3], [5, 3]]


def test_an_inner_record_takes_what_is_asked_inside() -> None:
    layer = LINEAR.build()
    with counted.record_flops() as outer, counted.record_flops() as inner:
        layer.flops(SHAPE)
    assert (len(outer), len(inner)) == (0, 1)


def test_nothing_is_recorded_outside() -> None:
    layer = LINEAR.build()
    with counted.record_flops() as found:
        pass
    assert layer.flops(SHAPE) == OF_ONE
    assert found == {}
