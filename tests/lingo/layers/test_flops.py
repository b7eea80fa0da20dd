"""The record of calls of `flops`."""

from __future__ import annotations

from lingo.layers import (
    Attention,
    Chain,
    Conv2D,
    CrossAttention,
    Linear,
    Repeat,
    Stack,
    TransformerLayer,
)
from lingo.layers.flops import FlopsCall, record_flops, tensor_number

LINEAR = Linear.params(dim=3, output_dim=3)
SHAPE = (2, 4, 3)
OF_ONE = 2 * 2 * 4 * 3 * 3  # operations of one layer


def test_every_layer_that_is_called_has_its_shape_and_its_operations() -> None:
    stack = Stack.params(layer=LINEAR, num_layers=2).build()
    with record_flops() as record:
        assert stack.flops(SHAPE) == 2 * OF_ONE
    assert record == {
        stack.layers[0]: FlopsCall(SHAPE, OF_ONE),
        stack.layers[1]: FlopsCall(SHAPE, OF_ONE),
        stack: FlopsCall(SHAPE, 2 * OF_ONE),
    }


def test_a_layer_whose_parent_multiplies_has_the_operations_of_one_call() -> None:
    repeat = Repeat.params(layer=LINEAR, num_layers=2).build()
    with record_flops() as record:
        repeat.flops(SHAPE)
        repeat.flops([1, 1, 3])
    assert record[repeat.body[0]] == FlopsCall(SHAPE, OF_ONE)


def test_the_length_of_a_memory_is_for_layers_that_attend_to_it() -> None:
    layer = TransformerLayer.params(
        dim=4,
        cross_attention=CrossAttention.params(num_heads=1),
        attention=Attention.params(num_heads=1),
    ).build()
    with record_flops() as record:
        layer.flops([1, 2, 4], memory_length=3)
    cross, others = layer.cross_attention, [layer.attention, layer.ffn]
    assert record[cross].flops == cross.flops([1, 2, 4], memory_length=3)
    assert [record[one].flops for one in others] == [one.flops([1, 2, 4]) for one in others]
    assert record[layer].flops == sum(record[one].flops for one in (cross, *others))


def test_nothing_is_recorded_outside_of_the_innermost_block() -> None:
    layer = LINEAR.build()
    with record_flops() as outer:
        with record_flops() as inner:
            layer.flops(SHAPE)
        assert (len(outer), len(inner)) == (0, 1)
    layer.flops(SHAPE)
    assert outer == {}


def test_what_a_layer_makes_of_one_input_is_one_tensor_and_a_new_tuple_is_another() -> None:
    first, second = Conv2D.params(dim=3, output_dim=3), Conv2D.params(dim=3, output_dim=3)
    layers, image = [first.build(), second.build()], (2, 4, 4, 3)
    with record_flops():
        once, again, other = (layer.output_shape(image) for layer in (*layers[:1] * 2, layers[1]))
        after = layers[0].output_shape(once)
    assert once == image
    assert tensor_number(once) == tensor_number(again)
    assert len({tensor_number(one) for one in (once, other, after)}) == 3
    assert tensor_number(tuple(once)) is None
    assert tensor_number(layers[0].output_shape(image)) is None  # nothing is recorded


def test_a_chain_passes_the_tensor_of_its_last_layer_on() -> None:
    chain = Chain.params(layers=[Conv2D.params(dim=3, output_dim=3)]).build()
    with record_flops():
        image = (2, 4, 4, 3)
        made = chain.layers[0].output_shape(image)
        assert tensor_number(chain.output_shape(image)) == tensor_number(made)
