"""FLOPs and operations of a compiled program on one device; a multiply-add is two.

A TPU's compiler writes every matrix product as a convolution, and a batch axis as a window with one
position inside the data and the other positions in padding. On TPUs, positions in padding do not
count; a CPU computes them, so there they count.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator

import numpy as np

from lingo.mesh.hlo.module import Computation, Instruction, Module, Origins, executions

_ELEMENTWISE = re.compile(
    "add|subtract|multiply|divide|maximum|minimum|power|sqrt|rsqrt|cbrt|negate|abs|sign|sine|cosine"
    "|exponential|exponential-minus-one|log|log-plus-one|tanh|logistic"
)


def product_flops(module: Module, *, is_tpu: bool = False) -> int:
    """Returns the FLOPs of all matrix products and convolutions in one run of the program."""
    return sum(
        _product_flops(instruction, body, is_tpu) * times.times
        for _, body, times in executions(module)
        for instruction in body.values()
    )


def operations(module: Module, *, is_tpu: bool = False) -> Iterator[tuple[str, int]]:
    """Yields the framework's name of each instruction that computes, and its operations in a run.

    Operations are the FLOPs of products and convolutions, and one for each element that is computed
    elementwise or reduced.
    """
    origins = Origins(module)
    for computation, body, times in executions(module):
        for instruction in body.values():
            if count := _count_operations(instruction, body, is_tpu):
                origin = instruction.op_name or origins.find(computation, instruction.name)
                yield origin, count * times.times


def _count_operations(instruction: Instruction, body: Computation, is_tpu: bool) -> int:
    match instruction.opcode:
        case "reduce":
            return math.prod(body[instruction.operands[0]].arrays[0].shape)
        case opcode if _ELEMENTWISE.fullmatch(opcode):
            return math.prod(instruction.arrays[0].shape)
        case _:
            return _product_flops(instruction, body, is_tpu)


def _product_flops(product: Instruction, body: Computation, is_tpu: bool) -> int:
    if product.opcode not in ("dot", "convolution"):
        return 0
    left, right = (body[name].arrays[0].shape for name in product.operands[:2])
    if product.opcode == "convolution":
        return _convolution_flops(product, left, right, is_tpu)
    found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", product.rest)
    contracted = [int(axis) for axis in found[1].split(",") if axis] if found else []
    return 2 * math.prod(product.arrays[0].shape) * math.prod(left[axis] for axis in contracted)


def _convolution_flops(
    convolution: Instruction, data: tuple[int, ...], kernel: tuple[int, ...], is_tpu: bool
) -> int:
    """Returns the FLOPs of a convolution of data and kernel, whose axes `dim_labels` names."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", convolution.rest)
    if not labels:
        raise ValueError(f"the convolution {convolution.name} has no dim_labels")
    found = re.search(r"window=\{([^}]*)\}", convolution.rest)
    window = dict(field.split("=") for field in found[1].split()) if found else {}
    result = convolution.arrays[0].shape
    pairs = 1  # of a result's position and a kernel's position
    for number, axis in enumerate(sorted(label for label in labels[2] if label.isdigit())):

        def field(name: str, default: str = "1", number: int = number) -> int:
            values = window[name].split("x") if name in window else []
            return int(values[number].split("_")[0] if values else default)

        sizes = (kernel[labels[2].index(axis)], result[labels[3].index(axis)])
        dilation = field("lhs_dilate")
        if is_tpu:
            size = data[labels[1].index(axis)]
            place = (field("stride"), field("pad", "0"), field("rhs_dilate"))
            pairs *= _count_pairs(size, dilation, *sizes, *place)
        else:
            pairs *= math.prod(sizes) / dilation
    found = re.search(r"batch_group_count=(\d+)", convolution.rest)
    batch = data[labels[1].index("b")] // (int(found[1]) if found else 1)
    features = kernel[labels[2].index("i")] * kernel[labels[2].index("o")]  # `i` counts one group
    return int(2 * batch * features * pairs)


@functools.cache
def _count_pairs(
    size: int, dilation: int, kernel: int, result: int, stride: int, padding: int, spread: int
) -> int:
    """Counts the pairs (kernel position, result position) that read an element of the data.

    `dilation` is the distance between elements of the data, `spread` the distance between elements
    of the kernel.
    """
    starts = np.arange(result) * stride - padding
    places = (starts + offset * spread for offset in range(kernel))
    last = (size - 1) * dilation
    return sum(int(np.sum((at >= 0) & (at <= last) & (at % dilation == 0))) for at in places)
