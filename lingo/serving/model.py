"""A model that is ready to be served: functions (signatures) from an export or a checkpoint.

    load_export   loads the newest version of an export, in TensorFlow Serving's layout
    load_run      traces the same functions in this process, from a run's checkpoint

Axes: B examples, T positions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.input import Input
from lingo.data.request import BadRequest, RequestReader
from lingo.decode.chat import Chat, ChatOptions
from lingo.export.exported_model import Arrays
from lingo.export.formats import trace
from lingo.export.manifest import find_link, find_versions, read_manifest
from lingo.export.text_signature import model_signatures
from lingo.runtimes.program import ProgramError, explain_program_errors
from lingo.trainer.evaluation.generate import can_decode
from lingo.trainer.trained import Trained

MIN_LENGTH = 16  # the shortest length to which token ids are padded


class Refusal(LingoError):
    """An error that answers a request: HTTP status, headers, and a sentence for the client."""

    def __init__(
        self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


class ServedSpec(NamedTuple):
    """The shape and dtype of an input or output of a signature."""

    shape: tuple[int | None, ...]  # None: any size
    dtype: str  # name of the dtype in TensorFlow

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{sizes}]"


Specs = Mapping[str, ServedSpec]
"""Name of an input or output of a signature -> its shape and dtype."""


class ServedSignature:
    """A function of a model that takes and returns named arrays, [B, ...].

    `inputs` and `outputs` describe what clients send and get, `arrays` what the function takes.
    """

    def __init__(self, name: str, function: Any) -> None:
        """Wraps a concrete TensorFlow function that takes keyword arguments."""
        self.name, self._function = name, function
        self.inputs = self.arrays = _specs(function.structured_input_signature[1])
        self.outputs = _specs(function.structured_outputs)

    def read(self, inputs: Arrays) -> Arrays:
        """Returns the function's arrays for a client's inputs; raises Refusal for a bad one."""
        return inputs

    def describe(self, outputs: Arrays) -> Arrays:
        """Returns the function's outputs, {name: [B, ...]}, as clients get them."""
        return outputs

    def compute(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Computes the outputs, {name: [B, ...]}, for inputs {name: [B, ...]}.

        Raises Refusal if the model refuses the inputs, and ProgramError if a device fails.
        """
        tensors = {
            name: tf.constant(value, self.arrays[name].dtype) for name, value in inputs.items()
        }
        try:
            with explain_program_errors(self.name):
                return {name: value.numpy() for name, value in self._function(**tensors).items()}
        except ProgramError as error:
            if not isinstance(error.__cause__, tf.errors.InvalidArgumentError):
                raise
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None

    def num_positions(self, inputs: Arrays) -> int:
        """Returns the length of the longest example: its number of token ids, or bytes of a text.

        Besides texts, an input counts only if exactly one of its dims after the batch may have any
        size. So images of any size do not count.
        """
        lengths = [0]
        for name, spec in self.arrays.items():
            if spec.dtype == "string":
                lengths += [len(text) for text in inputs[name].ravel()]
            elif spec.shape[1:].count(None) == 1:
                lengths.append(inputs[name].shape[spec.shape.index(None, 1)])
        return max(lengths)

    def max_values(self, *, num_examples: int, num_positions: int) -> int:
        """Returns the largest number of values that inputs of a request may have.

        Values are numbers, and bytes of texts. The request has `num_examples` examples of up to
        `num_positions` positions.
        """
        each = 0
        for spec in self.inputs.values():
            sizes = [num_positions if size is None else size for size in spec.shape[1:]]
            each += math.prod(sizes) * (num_positions if spec.dtype == "string" else 1)
        return num_examples * each

    def pad(self, inputs: Arrays) -> Arrays:
        """Pads token ids to a power of two, so that more requests have equal shapes.

        The inputs are returned unchanged if the signature has neither `segments` nor `lengths`,
        which say which tokens are padding.
        """
        if not {"segments", "lengths"} & {*self.inputs}:
            return inputs
        texts = [name for name, spec in self.inputs.items() if spec.shape == (None, None)]
        lengths = {inputs[name].shape[1] for name in texts}
        if len(lengths) != 1:
            return inputs
        (length,) = lengths
        if "lengths" in inputs and (inputs["lengths"] > length).any():
            return inputs  # padding would hide a wrong length from the model, which refuses it
        more = max(MIN_LENGTH, 1 << (length - 1).bit_length()) - length
        padded = {name: np.pad(inputs[name], [(0, 0), (0, more)]) for name in texts}
        return {**inputs, **padded}

    def cut(self, outputs: Arrays, *, inputs: Arrays, padded: Arrays) -> dict[str, np.ndarray]:
        """Removes the positions of padding from outputs.

        `outputs` were computed from `padded`, which `pad` made from `inputs`.
        """
        texts = [name for name in inputs if inputs[name].shape != padded[name].shape]
        if not texts or "segments" not in self.inputs:
            return dict(outputs)
        length = inputs[texts[0]].shape[1]
        return {
            name: value[:, :length] if self.outputs[name].shape[1:2] == (None,) else value
            for name, value in outputs.items()
        }


class ReadSignature(ServedSignature):
    """A signature whose inputs the host reads, such as recordings, and whose outputs are texts."""

    def __init__(self, name: str, function: Any, data: Input, reader: RequestReader) -> None:
        """Wraps a function of the arrays that `reader` makes, or of some of them."""
        super().__init__(name, function)
        self._data, self._reader = data, reader
        self.inputs = {key: ServedSpec(*spec) for key, spec in reader.inputs.items()}
        self.outputs = self._described_specs()

    def read(self, inputs: Arrays) -> Arrays:
        try:
            arrays = self._reader.read(inputs)
        except BadRequest as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        return {name: arrays[name] for name in self.arrays}

    def describe(self, outputs: Arrays) -> Arrays:
        described = self._data.describe_predictions(outputs)
        hidden = self._data.text_ids if "text" in described else ()
        return {
            name: np.char.encode(array).astype(object) if array.dtype.kind == "U" else array
            for name, array in described.items()
            if name not in hidden
        }

    def _described_specs(self) -> Specs:
        """Returns the specs of what `describe` makes of the function's outputs."""
        zeros = {
            name: np.zeros(
                [size or 1 for size in spec.shape], tf.as_dtype(spec.dtype).as_numpy_dtype
            )
            for name, spec in self.outputs.items()
        }
        texts = {
            name: ServedSpec((None,) * array.ndim, "string")
            for name, array in self.describe(zeros).items()
            if array.dtype == object
        }
        hidden = self._data.text_ids if "text" in texts else ()
        return {n: spec for n, spec in self.outputs.items() if n not in hidden} | texts


class ServedModel(NamedTuple):
    """One version of a model, with its functions."""

    name: str
    version: int
    signatures: dict[str, ServedSignature]
    owner: Any  # object that keeps the functions' variables alive
    chat: Callable[[ChatOptions], Chat] | None = None  # begins a conversation; None: cannot chat


def load_export(folder: Path, *, name: str | None = None) -> ServedModel:
    """Loads the newest version of a SavedModel that `lingo export` wrote.

    A version that export.json does not name is ignored. Raises ParamError if the folder has no
    version, or if a file that export.json names is a link or is reached through a link.
    """
    manifest = read_manifest(folder)
    if (form := manifest.get("format")) != "savedmodel":
        raise ParamError(
            f"{folder} is a model of {form}: export it with lingo export --format=savedmodel"
        )
    files = [folder / name for name in find_versions(folder) if name in manifest["files"]]
    versions = {int(file.parent.name): file.parent for file in files}  # a name may begin with 0
    if not versions:
        raise ParamError(f"{folder} holds no version that its export.json names")
    version = max(versions)
    if (link := find_link(folder, manifest["files"])) is not None:
        raise ParamError(f"{link} is a link, which may lead to any file: copy the export instead")
    owner = tf.saved_model.load(str(versions[version]))
    signatures = [ServedSignature(key, function) for key, function in owner.signatures.items()]
    return _model(name or folder.resolve().name, version, signatures, owner)


def load_run(trained: Trained, folder: Path, *, name: str | None = None) -> ServedModel:
    """Traces the signatures that `lingo export` would write, from a trained model.

    `folder` is the run's folder, whose name is the default name of the model. Raises ParamError if
    the task has no predictions, or if a layer calls Python code at run time.
    """
    owner, experiment = trained.exported_model(), trained.experiment
    data = experiment.prediction_input
    reader, signatures = data.request_reader(), list[ServedSignature]()
    for signature in model_signatures(owner, (), data.specs()):
        key = signature.name
        if reader is None or not {*signature.inputs} <= {*reader.arrays}:
            signatures.append(ServedSignature(key, trace(owner, signature)))
            continue
        signature.inputs = {array: reader.arrays[array] for array in signature.inputs}
        signatures.append(ReadSignature(key, trace(owner, signature), data, reader))
    model = _model(name or folder.resolve().name, trained.step, signatures, owner)
    begin = functools.partial(Chat, trained, experiment.chat)
    return model._replace(chat=begin if can_decode(experiment) else None)


def _model(name: str, version: int, signatures: list[ServedSignature], owner: Any) -> ServedModel:
    if "/" in name or ":" in name:
        raise ParamError(
            f"the model's name {name!r} has / or :, which its URL cannot contain: "
            "give another with --name"
        )
    return ServedModel(name, version, {one.name: one for one in signatures}, owner)


def _specs(tensors: Mapping[str, Any]) -> dict[str, ServedSpec]:
    return {
        name: ServedSpec(tuple(tensor.shape), tensor.dtype.name)
        for name, tensor in sorted(tensors.items())
    }
