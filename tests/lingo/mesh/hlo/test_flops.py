"""FLOPs of programs, read from their text."""

import itertools
import math

import pytest

from lingo.mesh.hlo.flops import operations, product_flops
from lingo.mesh.hlo.module import parse


def convolution(data, kernel, result, rest):
    lines = (
        f"  %x = f32[{data}]{{0}} parameter(0)\n  %k = f32[{kernel}]{{0}} parameter(1)\n"
        f"  ROOT %y = f32[{result}]{{0}} convolution(%x, %k), {rest}"
    )
    return parse(f"HloModule test\n\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n")


def test_matrix_products_are_counted_a_multiply_add_as_two():
    text = """\
HloModule test

ENTRY %main (a: f32[2,3,5], b: f32[2,5,7]) -> f32[2,3,7] {
  %a = f32[2,3,5]{2,1,0} parameter(0)
  %b = f32[2,5,7]{2,1,0} parameter(1)
  ROOT %d = f32[2,3,7]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2},\
 rhs_batch_dims={0}, rhs_contracting_dims={1}
}
"""
    assert product_flops(parse(text)) == 2 * 2 * 3 * 5 * 7


def test_operations_are_those_of_products_convolutions_and_elements():
    lines = (
        "  %x = f32[2,8,8,3]{3,2,1,0} parameter(0)\n  %k = f32[3,3,3,5]{3,2,1,0} parameter(1)\n"
        "  %y = f32[2,8,8,5]{3,2,1,0} convolution(%x, %k), window={size=3x3 pad=1_1x1_1},"
        ' dim_labels=b01f_01io->b01f, metadata={op_name="conv"}\n'
        '  %z = f32[2,8,8,5]{3,2,1,0} add(%y, %y), metadata={op_name="sum"}\n'
        '  ROOT %s = f32[5]{0} reduce(%z, %k), dimensions={0,1,2}, metadata={op_name="total"}'
    )
    module = parse(f"HloModule test\n\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n")
    elements = 2 * 8 * 8 * 5
    assert dict(operations(module)) == {
        "conv": 2 * elements * 3 * 3 * 3,
        "sum": elements,
        "total": elements,
    }


def test_zeros_between_elements_are_no_operands_of_convolutions():
    lines = (
        "  %x = f32[2,4,4,5]{3,2,1,0} parameter(0)\n  %k = f32[3,3,3,5]{3,2,1,0} parameter(1)\n"
        "  ROOT %y = f32[2,8,8,3]{3,2,1,0} convolution(%x, %k),"
        " window={size=3x3 pad=2_1x2_1 lhs_dilate=2x2}, dim_labels=b01f_01oi->b01f"
    )
    module = parse(f"HloModule test\n\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n")
    assert product_flops(module) == 2 * (2 * 8 * 8 * 3) * (3 * 3 * 5) // 4


def count_slowly(size, kernel, result, stride, pad, dilation, spread):
    places = {element * dilation for element in range(size)}
    return sum(
        at * stride - pad + offset * spread in places
        for at, offset in itertools.product(range(result), range(kernel))
    )


@pytest.mark.parametrize(
    ("size", "kernel", "result", "stride", "pad", "dilation", "spread"),
    [
        (8, 3, 8, 1, 1, 1, 1),
        (8, 3, 4, 2, 0, 1, 1),
        (4, 3, 8, 1, 2, 2, 1),
        (9, 3, 5, 1, 0, 1, 2),
        (16, 16, 16, 1, 15, 1, 1),  # a batch axis of 16 in both operands
        (16, 16, 16, 15, 0, 16, 1),  # another way to write it
    ],
)
def test_a_tpu_computes_the_positions_inside_the_data(
    size, kernel, result, stride, pad, dilation, spread
):
    window = f"size={kernel} stride={stride} pad={pad}_{pad} lhs_dilate={dilation}"
    module = convolution(
        f"2,{size},5",
        f"{kernel},5,7",
        f"2,{result},7",
        f"window={{{window} rhs_dilate={spread}}}, dim_labels=b0f_0io->b0f",
    )
    pairs = count_slowly(size, kernel, result, stride, pad, dilation, spread)
    assert product_flops(module, is_tpu=True) == 2 * 2 * 5 * 7 * pairs


def test_a_batch_of_products_has_its_flops_in_a_convolution_of_a_tpu():
    heads, rows, dim = 4, 8, 16
    module = convolution(
        f"{heads},{rows},{dim}",
        f"{heads},{dim},{rows}",
        f"{heads},{rows},{rows}",
        f"window={{size={heads} stride={heads - 1} lhs_dilate={heads}}}, dim_labels=0bf_0io->0bf",
    )
    assert product_flops(module, is_tpu=True) == 2 * math.prod((heads, rows, dim, rows))
