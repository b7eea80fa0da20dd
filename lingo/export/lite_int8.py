"""Converts models for TensorFlow Lite in 8 bits, in ranges that were trained or measured.

converter   float tensors; a tensor with a trained range is int8, and a DEQUANTIZE follows it
repair      products that the converter gave int8 inputs and float weights have float inputs
calibrator  each float tensor gets its least and largest value over the examples
ranges      trained ranges instead of measured ones; symmetric ones where LiteRT needs them
quantizer   all tensors are int8
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import flatbuffers
import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError

_FLOAT32, _INT8 = 0, 9  # codes of types in TensorFlow Lite's schema
_DEQUANTIZE, _QUANTIZE = 6, 114  # codes of its operations
_INT8_VERSION = 2  # the version of these operations that knows int8

_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # bytes to which constants are aligned, since LiteRT reads them without a copy


def convert_to_int8(converter: Any, examples: Callable[[], Iterator[Any]]) -> bytes:
    """Converts a model so that it computes in 8 bits, in the ranges that were trained or measured.

    The converter itself would quantize a tensor in its measured range, which covers only the values
    that occurred, even if its range was trained. It would then scale a bias by the measured range,
    but the product to which the bias is added by the trained range. Moreover, it measures after an
    operation, which may have overwritten its inputs with its results.

    Args:
        converter: a `tf.lite.TFLiteConverter`.
        examples: returns calls of the model in the forms of `representative_dataset`.

    Returns:
        The content of the file.

    Raises:
        ParamError: if the installed TensorFlow lacks the needed functions.
    """
    try:
        from tensorflow.lite.python.convert import mlir_quantize
        from tensorflow.lite.python.optimize.calibrator import Calibrator, add_intermediate_tensors
    except ImportError as error:
        raise ParamError(
            f"quantize=int8 needs functions that TensorFlow {tf.__version__} does not have: install"
            " TensorFlow 2.21"
        ) from error

    def quantize(content: bytes, *_: Any) -> bytes:
        repaired: Any = add_intermediate_tensors(_change(content, _restore_inputs))
        calibrated: Any = Calibrator(repaired).calibrate(examples)
        quantized: Any = mlir_quantize(_change(calibrated, _set_ranges))
        return bytes(quantized)

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = examples
    converter._quantize = quantize
    return write_model(_Model(converter.convert()).model)


class _Model:
    """A TensorFlow Lite model as objects of its schema."""

    def __init__(self, content: bytes) -> None:
        from tensorflow.lite.python import schema_py_generated as schema
        from tensorflow.lite.tools import flatbuffer_utils

        self._utils, self.schema = flatbuffer_utils, schema
        self.model: Any = flatbuffer_utils.convert_bytearray_to_object(bytearray(content))

    def content(self) -> bytes:
        return bytes(self._utils.convert_object_to_bytearray(self.model))

    def kind(self, operation: Any) -> str:
        """Returns the name of an operation's type, such as "FULLY_CONNECTED"."""
        return self._utils.opcode_to_name(self.model, operation.opcodeIndex)

    def constants(self, tensor: Any) -> np.ndarray | None:
        """Returns the values of a constant float32 tensor, [size]; None for any other tensor."""
        data = self.model.buffers[tensor.buffer].data
        if data is None or tensor.type != _FLOAT32:
            return None
        return np.frombuffer(bytes(data), np.float32)

    def add_tensor(self, graph: Any, like: Any, code: int, **quantization: list[Any]) -> int:
        """Adds a tensor of another type, shaped like another one, and returns its index."""
        added = copy.copy(like)
        added.name, added.type, added.buffer = like.name + b"_%d" % len(graph.tensors), code, 0
        added.quantization = self.schema.QuantizationParametersT()
        for name, values in quantization.items():
            setattr(added.quantization, name, values)
        graph.tensors.append(added)
        return len(graph.tensors) - 1

    def operation(self, code: int, source: int, result: int) -> Any:
        """Returns a new operation of one tensor."""
        codes = self.model.operatorCodes
        if all(known.builtinCode != code for known in codes):
            known = self.schema.OperatorCodeT()
            known.builtinCode = known.deprecatedBuiltinCode = code
            known.version = _INT8_VERSION
            codes.append(known)
        operation = self.schema.OperatorT()
        operation.opcodeIndex = [known.builtinCode for known in codes].index(code)
        operation.inputs, operation.outputs = [source], [result]
        return operation


def _change(content: bytes, rewrite: Callable[[_Model, Any, Any], list[Any]]) -> bytes:
    """Returns a model in which `rewrite(model, graph, operation)` replaced each operation."""
    model = _Model(content)
    for graph in model.model.subgraphs:
        graph.operators = [new for old in graph.operators for new in rewrite(model, graph, old)]
    return model.content()


def _restore_inputs(model: _Model, graph: Any, operation: Any) -> list[Any]:
    """Inserts the DEQUANTIZE that the converter lost before a product with a constant matrix.

    The converter makes a FULLY_CONNECTED of the product of a tensor [B, T, D] with a constant
    matrix. If the tensor has a trained range, the converter leaves out its DEQUANTIZE, although the
    matrix is float; LiteRT then refuses the model (TensorFlow 2.21).
    """
    if model.kind(operation) != "FULLY_CONNECTED":
        return [operation]
    source, matrix = (graph.tensors[index] for index in operation.inputs[:2])
    if (source.type, matrix.type) != (_INT8, _FLOAT32):
        return [operation]
    restored = model.add_tensor(graph, source, _FLOAT32)
    dequantize = model.operation(_DEQUANTIZE, operation.inputs[0], restored)
    operation.inputs[0] = restored
    return [dequantize, operation]


def _set_ranges(model: _Model, graph: Any, operation: Any) -> list[Any]:
    """Gives the tensors of a measured operation the ranges in which they are quantized."""
    tensors = [graph.tensors[index] for index in (*operation.inputs, *operation.outputs)]
    ranges = [tensor.quantization for tensor in tensors]
    match model.kind(operation):
        case "DEQUANTIZE":
            _copy_range(*ranges)
        case "ADD" | "SUB" | "MUL" as name if not _has_activation(operation):
            _bound_results(name, ranges[0], model.constants(tensors[1]), ranges[2])
        case "BATCH_MATMUL":
            return [*_center_factor(model, graph, operation), operation]
    return [operation]


def _center_factor(model: _Model, graph: Any, operation: Any) -> list[Any]:
    """Rounds a product's second factor in a symmetric range, for the reason of `center_range`.

    Returns the operations that do so. A range that is only set for the factor would be replaced by
    the range of an earlier tensor, such as before a transpose. A trained range that is symmetric
    stays as it is: another scale would round the factor again.
    """
    place = operation.inputs[1]
    if _is_trained_symmetric(model, graph, place):
        return []
    tensor = graph.tensors[place]
    values, limits = model.constants(tensor), tensor.quantization
    if values is None and not _is_measured(limits):
        return []
    ends = [values.min(), values.max()] if values is not None else [limits.min[0], limits.max[0]]
    if not (cap := max(-float(ends[0]), float(ends[1]))) > 0:
        return []
    integers = model.add_tensor(graph, tensor, _INT8, scale=[cap / 127], zeroPoint=[0])
    floats = model.add_tensor(graph, tensor, _FLOAT32, min=[-cap * 128 / 127], max=[cap])
    operation.inputs[1] = floats
    return [
        model.operation(_QUANTIZE, place, integers),
        model.operation(_DEQUANTIZE, integers, floats),
    ]


def _is_trained_symmetric(model: _Model, graph: Any, place: int) -> bool:
    """Returns whether a tensor is an int8 one with zero point 0, dequantized and perhaps moved."""
    sources = {index: operation for operation in graph.operators for index in operation.outputs}
    while place in sources and model.kind(sources[place]) in ("TRANSPOSE", "RESHAPE"):
        place = sources[place].inputs[0]
    if place not in sources or model.kind(sources[place]) != "DEQUANTIZE":
        return False
    integers = graph.tensors[sources[place].inputs[0]]
    return integers.type == _INT8 and list(integers.quantization.zeroPoint) == [0]


def _is_measured(limits: Any) -> bool:
    return limits is not None and limits.min is not None and len(limits.min) > 0


def _has_activation(operation: Any) -> bool:
    """Returns whether an operation includes an activation function."""
    return operation.builtinOptions.fusedActivationFunction != 0


def _bound_results(name: str, values: Any, constants: np.ndarray | None, results: Any) -> None:
    """Narrows the measured range of an operation's results to the range that is possible.

    The possible range follows from the measured range of `values` and from `constants`, which the
    operation `name` combines. So the levels of an image stay its levels when pixels are scaled and
    shifted.
    """
    if constants is None or not (_is_measured(values) and _is_measured(results)):
        return
    function = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply}[name]
    ends = function.outer([values.min[0], values.max[0]], constants)
    results.min = [max(float(results.min[0]), float(ends.min()))]
    results.max = [min(float(results.max[0]), float(ends.max()))]


def _copy_range(integers: Any, floats: Any) -> None:
    """Sets the range of a float tensor to that of the integer tensor that it dequantizes."""
    if integers is not None and integers.scale is not None and floats is not None:
        scale, zero = float(integers.scale[0]), int(integers.zeroPoint[0])
        floats.min, floats.max = [(-128 - zero) * scale], [(127 - zero) * scale]


class _SharingBuilder(flatbuffers.Builder):
    """A FlatBuffers builder that stores equal vectors only once."""

    def __init__(self) -> None:
        super().__init__(0)
        self._places: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        key = (x.dtype.str, x.tobytes())
        if key not in self._places:
            self._places[key] = super().CreateNumpyVector(x)
        return self._places[key]

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> int:
        """Starts a vector; byte vectors are aligned, since they may hold elements of more bytes."""
        return super().StartVector(elemSize, numElems, _ALIGNMENT if elemSize == 1 else alignment)


def write_model(model: Any) -> bytes:
    """Returns the file content of a TensorFlow Lite model, a `ModelT` of its schema.

    Equal vectors are stored only once. This saves space, since an int8 weight has a scale and a
    64-bit zero point, which is 0, per output. In a small network these are a twelfth of the file
    that the converter would write.
    """
    builder = _SharingBuilder()
    builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())
