"""The last step to 8 bits of TensorFlow Lite: with ranges that were trained, and measured ones.

The converter leaves an integer tensor where the model has a range of its own, and measures the
others. Behind such a tensor it measures the values that occur, not the range that they have, and
then scales what is added to a product, the bias, by the first and the product by the second. And it
measures after an operation, which may have written its results over what it reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.export.lite_file import write_model
from lingo.ops.quantization import symmetric_range

_FLOAT32 = 0  # in the schema of TensorFlow Lite


def quantize_in_ranges(calibrated: bytes) -> bytes:
    """Returns a model of TensorFlow Lite in 8 bits.

    `calibrated` is that of a converter with `_experimental_calibrate_only`: its float tensors have
    the least and the largest value measured, and those that stand for integers get their range.
    Raises ParamError with a TensorFlow that has no functions for it.
    """
    try:
        from tensorflow.lite.python.convert import mlir_quantize
        from tensorflow.lite.tools import flatbuffer_utils
    except ImportError as error:
        raise ParamError(
            f"quantize=int8 needs functions that TensorFlow {tf.__version__} does not have: install"
            " TensorFlow 2.21"
        ) from error

    model: Any = flatbuffer_utils.convert_bytearray_to_object(bytearray(calibrated))
    for graph in model.subgraphs:
        for operation in graph.operators:
            ranges = [
                graph.tensors[tensor].quantization
                for tensor in (*operation.inputs, *operation.outputs)
            ]
            match flatbuffer_utils.opcode_to_name(model, operation.opcodeIndex):
                case "DEQUANTIZE":
                    _copy_range(*ranges)
                case "ADD" | "SUB" | "MUL" as name if not _has_activation(operation):
                    constants = _constants(model, graph.tensors[operation.inputs[1]])
                    _bound_results(name, ranges[0], constants, ranges[2])
                case "BATCH_MATMUL":
                    _center_measured(ranges[1])
    content: Any = mlir_quantize(bytes(flatbuffer_utils.convert_object_to_bytearray(model)))
    return write_model(flatbuffer_utils.convert_bytearray_to_object(bytearray(content)))


def _has_activation(operation: Any) -> bool:
    """Returns whether an activation function is part of an operation."""
    return operation.builtinOptions.fusedActivationFunction != 0


def _constants(model: Any, tensor: Any) -> np.ndarray | None:
    """Returns the values of a tensor of float32, [number]; None if they are not constant."""
    data = model.buffers[tensor.buffer].data
    if data is None or tensor.type != _FLOAT32:
        return None
    return np.frombuffer(bytes(data), np.float32)


def _bound_results(name: str, values: Any, constants: np.ndarray | None, results: Any) -> None:
    """Narrows a measured range to the results that measured values and constants can have.

    So the levels of an image stay its levels where its pixels are scaled and moved.
    """
    is_measured = all(r is not None and r.min is not None and len(r.min) for r in (values, results))
    if constants is None or not is_measured:
        return
    function = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply}[name]
    ends = function.outer([values.min[0], values.max[0]], constants)
    results.min = [max(float(results.min[0]), float(ends.min()))]
    results.max = [min(float(results.max[0]), float(ends.max()))]


def _copy_range(integers: Any, floats: Any) -> None:
    """Sets the measured range of float values to that of the integers that they come from."""
    if integers is not None and integers.scale is not None and floats is not None:
        scale, zero = float(integers.scale[0]), int(integers.zeroPoint[0])
        floats.min, floats.max = [(-128 - zero) * scale], [(127 - zero) * scale]


def _center_measured(floats: Any) -> None:
    """Makes a measured range symmetric, for the reason of `center_range`."""
    if floats is not None and floats.min is not None and len(floats.min):
        limits = symmetric_range(max(-float(floats.min[0]), float(floats.max[0])))
        floats.min, floats.max = [limits.low], [limits.high]
