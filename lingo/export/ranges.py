"""The last step to 8 bits of TensorFlow Lite: with ranges that were trained, and measured ones.

The converter leaves an integer tensor where the model has a range of its own, and measures the
others. Behind such a tensor it measures the values that occur, not the range that they have, and
then scales what is added to a product, the bias, by the first and the product by the second.
"""

from __future__ import annotations


def quantize_in_ranges(calibrated: bytes) -> bytes:
    """Returns a model of TensorFlow Lite in 8 bits.

    `calibrated` is that of a converter with `_experimental_calibrate_only`: its float tensors have
    the least and the largest value measured, and those that stand for integers get their range.
    """
    from tensorflow.lite.python.convert import mlir_quantize
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.convert_bytearray_to_object(bytearray(calibrated))
    for graph in model.subgraphs:
        for operation in graph.operators:
            if flatbuffer_utils.opcode_to_name(model, operation.opcodeIndex) != "DEQUANTIZE":
                continue
            integers = graph.tensors[operation.inputs[0]].quantization
            floats = graph.tensors[operation.outputs[0]].quantization
            if integers is None or integers.scale is None or floats is None:
                continue
            scale, zero = float(integers.scale[0]), int(integers.zeroPoint[0])
            floats.min, floats.max = [(-128 - zero) * scale], [(127 - zero) * scale]
    return mlir_quantize(bytes(flatbuffer_utils.convert_object_to_bytearray(model)))
