"""The formats of exported models: how signatures are written into a folder, and loaded from it.

savedmodel    <step>/saved_model.pb    any batch size and length; TensorFlow Serving reads it
stablehlo     <signature>.stablehlo    static shapes; `jax.export.deserialize` reads it
tflite        model.tflite             static shapes; `tf.lite.Interpreter` reads it
"""

from __future__ import annotations

import abc
import errno
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.export import reader
from lingo.export.check import Bound, Case, Loader
from lingo.export.exported_model import ExportedModel
from lingo.export.lite_int8 import convert_to_int8
from lingo.export.signature import Signature
from lingo.layers.quantization.quantized import Quantized
from lingo.runtimes.mesh.engine import engine
from lingo.storage.files import describe_os_error

Format = Literal["savedmodel", "stablehlo", "tflite"]
"""The name of a format whose exports run without lingo."""

Quantize = Literal["none", "float16", "int8_dynamic", "int8", "int8_weights"]
"""The number types of an export.

"none": the task's number types. "float16" (TensorFlow Lite): weights in float16. "int8_dynamic"
(TensorFlow Lite): weights in int8, activations are quantized at run time. "int8" (TensorFlow Lite):
weights in int8, activations are quantized in ranges that are measured at export. "int8_weights"
(SavedModel): weights in int8, in memory and in the file; the computation is in float32.
"""

BOUNDS: dict[Quantize, Bound] = {
    "none": Bound(floats=1e-4, others=0.005),
    "float16": Bound(floats=0.02, others=0.02),
    "int8_dynamic": Bound(floats=0.1, others=0.05),
    "int8": Bound(floats=0.2, others=0.05),
    "int8_weights": Bound(floats=1e-4, others=0.005),  # the run computes with the same weights
}
"""Number types -> the largest allowed differences between an export's outputs and its run's."""

BFLOAT16_BOUND = Bound(floats=0.05, others=0.05)
"""The bound for tasks that compute in 16 bits, since sums in another order round differently."""

Functions = dict[str, Any]
"""Name of a signature -> its concrete TensorFlow function."""

_OPERATION = re.compile(r'"\w+:", "([^"@]+)@|\{node ([^}]+)\}|node `([^`]+)`')
"""Finds the name of an operation in error messages of TensorFlow Lite and XLA."""

_REASONS = (
    re.compile(r"'(tf\.\w+)' op is neither a custom op nor a flex op"),
    re.compile(r"(Detected unsupported operations.*|Input \d+ to node.*)"),
    re.compile(r"(.*[Ee]rror:.*)"),
)
"""Find why a compiler refused an operation; the match of the first matching pattern is reported."""


class Export(NamedTuple):
    """The content of an export, which a format writes into a folder."""

    model: ExportedModel
    signatures: Sequence[Signature]
    cases: Sequence[Case]  # example calls; a static format has their shapes
    step: int  # the checkpoint's training step
    quantize: Quantize


class ExportFormat(abc.ABC):
    """A format of exports that run without lingo; `FORMATS` lists all of them."""

    name: ClassVar[Format]
    is_static: ClassVar[bool]  # whether the batch size and length of texts are fixed at export
    numbers: ClassVar[tuple[Quantize, ...]] = ("none",)  # allowed values of `quantize`
    loader: ClassVar[Loader]

    @abc.abstractmethod
    def write(self, folder: Path, export: Export) -> Functions:
        """Writes an export into an empty folder, and returns the functions that were written.

        Raises ParamError for a layer that the format cannot compute, and OSError on a full disk.
        """


class SavedModelFormat(ExportFormat):
    """A TensorFlow SavedModel: `<step>/saved_model.pb` and its variables."""

    name = "savedmodel"
    is_static = False
    numbers = ("none", "int8_weights")
    loader = Loader(reader.load_saved_model)

    def write(self, folder: Path, export: Export) -> Functions:
        """Writes the SavedModel into a subfolder that is named after the training step."""
        functions = {s.name: trace(export.model, s) for s in export.signatures}
        _save(folder / str(export.step), export.model, functions)
        return functions


class StableHloFormat(ExportFormat):
    """StableHLO programs: one file per signature, which includes the weights. Needs JAX."""

    name = "stablehlo"
    is_static = True
    loader = Loader(reader.load_stablehlo, hidden_modules=())

    def write(self, folder: Path, export: Export) -> Functions:
        """Writes `<signature>.stablehlo` for each signature, with the shapes of the first case."""
        jax = engine()
        from jax.experimental import jax2tf

        model, batch = export.model, export.cases[0].batch
        functions = {s.name: trace(model, s, batch) for s in export.signatures}
        for signature in export.signatures:
            function = functions[signature.name]
            inputs = {
                name: jax.ShapeDtypeStruct(value.shape, value.dtype)
                for name, value in signature.examples(batch).items()
            }
            call = jax2tf.call_tf(lambda i, call=function: call(**i), has_side_effects=False)
            try:
                exported = jax.export.export(jax.jit(call), platforms=["cpu"])(inputs)
            except ValueError as error:
                raise _refusal(model, signature, "XLA", error) from error
            (folder / f"{signature.name}.stablehlo").write_bytes(exported.serialize())
        return functions


class TfLiteFormat(ExportFormat):
    """A TensorFlow Lite model, `model.tflite`.

    With `quantize` "int8", the ranges of activations are measured on the export's example calls.
    """

    name = "tflite"
    is_static = True
    numbers = ("none", "float16", "int8_dynamic", "int8")
    loader = Loader(reader.load_tflite)

    def write(self, folder: Path, export: Export) -> Functions:
        """Writes `model.tflite`.

        Raises ParamError for "int8" if a layer was trained for quantization to other than 8 bits.
        """
        model, signatures, cases = export.model, export.signatures, export.cases
        if export.quantize == "int8":
            _check_bits(model)
        functions = {
            s.name: trace(model, s, next(case.batch for case in cases if case.signature is s))
            for s in signatures
        }
        with tempfile.TemporaryDirectory(dir=folder) as saved:
            _save(Path(saved), model, functions)
            _fold_pooling(Path(saved) / "saved_model.pb")
            converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=[*functions])
            if export.quantize != "none":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if export.quantize == "float16":
                converter.target_spec.supported_types = [tf.float16]
            try:
                if export.quantize == "int8":
                    content = convert_to_int8(converter, _representative(cases))
                else:
                    content = converter.convert()
            except (OSError, ParamError):
                raise
            except Exception as error:  # the converter has no error class of its own
                signature = _signature_of(error, signatures)
                raise _refusal(model, signature, "TensorFlow Lite", error) from error
        (folder / "model.tflite").write_bytes(content)
        return functions


FORMATS: dict[str, ExportFormat] = {
    form.name: form for form in (SavedModelFormat(), StableHloFormat(), TfLiteFormat())
}


def trace(model: ExportedModel, signature: Signature, batch: Any = None) -> Any:
    """Traces a signature: returns its concrete TensorFlow function.

    If `batch`, a batch of examples, is given, the function has the static shapes of this batch.
    Raises ParamError for a layer that no other program can compute, or an output of unknown rank.
    """
    shapes = {name: shape for name, (shape, _) in signature.inputs.items()}
    if batch is not None:
        shapes = {name: value.shape for name, value in signature.examples(batch).items()}
    specs = {
        name: tf.TensorSpec(shapes[name], dtype, name=name)
        for name, (_, dtype) in signature.inputs.items()
    }

    def compute(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return signature.compute(model, inputs)

    compute.__name__ = f"compute_{signature.name}"  # compilers quote this name in errors
    function = tf.function(compute, autograph=False).get_concrete_function(**specs)
    model.refuse_foreign(function.graph)
    for name, spec in function.structured_outputs.items():
        if spec.shape.rank is None:
            raise ParamError(
                f"task: the shape of {name}, which {signature.name} returns, is unknown:"
                " set it with tf.ensure_shape"
            )
    return function


def _save(folder: Path, model: ExportedModel, functions: Functions) -> None:
    try:
        tf.saved_model.save(model.module, str(folder), signatures=functions)
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, describe_os_error(error)) from error


def _fold_pooling(file: Path) -> None:
    """Replaces each MaxPoolV2 in a SavedModel with MaxPool, since TensorFlow Lite has no MaxPoolV2.

    The sizes of windows and strides are inputs of MaxPoolV2, but attributes of MaxPool.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel.FromString(file.read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        values = {n.name: n.attr["value"].tensor for n in function.node_def if n.op == "Const"}
        for node in function.node_def:
            if node.op != "MaxPoolV2":
                continue
            for name, constant in zip(("ksize", "strides"), node.input[1:3], strict=True):
                sizes = tf.make_ndarray(values[constant.partition(":")[0]])
                node.attr[name].list.i.extend(sizes.tolist())
            node.op = "MaxPool"
            del node.input[1:]
    file.write_bytes(saved.SerializeToString())


def _check_bits(model: ExportedModel) -> None:
    for part in model.task.tree():
        if isinstance(part, Quantized) and (bits := part.domain.level_bits) != 8:
            where = f"task.{part.path.replace('/', '.')}".removesuffix(".")
            raise ParamError(f"{where}: quantize=int8 needs domains of bits=8, got bits={bits}")


def _representative(cases: Sequence[Case]) -> Callable[[], Iterator[tuple[str, Any]]]:
    def examples() -> Iterator[tuple[str, Any]]:
        yield from ((case.signature.name, dict(case.inputs)) for case in cases)

    return examples


def _refusal(
    model: ExportedModel, signature: Signature, compiler: str, error: Exception
) -> ParamError:
    """Returns the error to raise if a compiler refuses a signature.

    It names the layer, if the compiler's error names an operation.
    """
    text = str(error)
    names = ["".join(groups) for groups in _OPERATION.findall(text)]
    where = model.owner(*(name.removeprefix("StatefulPartitionedCall/") for name in names))
    reasons = (match[1] for pattern in _REASONS if (match := pattern.search(text)))
    reason = next(reasons, text.strip().partition("\n")[0] or type(error).__name__)
    return ParamError(
        f"{where}: {compiler} cannot compute the {signature.name} of this model: name the other"
        f" signatures by --signature, or use format=savedmodel ({reason:.300})"
    )


def _signature_of(error: Exception, signatures: Sequence[Signature]) -> Signature:
    """Returns the signature whose function an error mentions, or else the first signature."""
    return next((s for s in signatures if f"_compute_{s.name}_" in str(error)), signatures[0])
