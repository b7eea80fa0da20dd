"""Reads requests and writes answers in the JSON format of TensorFlow Serving.

    rows       {"instances": [{"tokens": [5, 6]}, ...]}     -> {"predictions": [{...}, ...]}
    columns    {"inputs": {"tokens": [[5, 6], ...]}}        -> {"outputs": {...}}

If a signature has only one input or output, its name may be left out. `{"b64": "..."}` is a string
of any bytes, in base64. Answers use it for strings that are not UTF-8, and for outputs whose names
end with `_bytes`. In an input with one number per example, such as a column of a table, `null` is a
missing number: NaN.
See https://www.tensorflow.org/tfx/serving/api_rest.

Axes: B examples.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.export.exported_model import Arrays
from lingo.serving.model import Refusal, ServedModel, ServedSignature, ServedSpec, Specs

_BASE64 = "b64"
_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}
"""NumPy `kind` of an input's dtype -> kinds that the array made from JSON numbers may have."""

_DEFAULT = "serving_default"  # the signature for requests without a name, if the model has it


class Call(NamedTuple):
    """The content of a request for predictions."""

    signature: str | None  # name of the signature; None: the request does not name one
    is_rows: bool  # whether the request has `instances` (rows), not `inputs` (columns)
    content: Any  # the JSON value of `instances` or `inputs`


def check_size(body: bytes, most: int) -> None:
    """Raises Refusal if a request's body has more than `most` JSON values.

    Values are counted without parsing, since parsed values are Python objects, which take many
    times the memory of the body.
    """
    num = sum(map(body.count, (b",", b"[", b"{")))
    if num > most:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has {num:,} values, the largest request at most {most:,}: send several"
            " requests",
        )


def read_object(body: bytes, *, example: str) -> dict[str, Any]:
    """Parses a request's body as a JSON object; raises Refusal with `example` for another body."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _mistake(f"the body is not JSON: {error!s:.200}") from None
    if not isinstance(message, dict):
        raise _mistake(f"the body is not an object: write {example}")
    return message


def read_call(body: bytes) -> Call:
    """Parses the body of a request for predictions; raises Refusal if it is not valid."""
    message = read_object(body, example='{"instances": [...]}')
    given = [key for key in ("instances", "inputs") if key in message]
    if len(given) != 1:
        found = "both instances and inputs" if given else "neither instances nor inputs"
        raise _mistake(f"the body has {found}: give one")
    if unknown := sorted({*message} - {"instances", "inputs", "signature_name"}):
        raise _mistake(
            f"the body has {unknown[0]!r:.100}: it may have only {given[0]} and signature_name"
        )
    signature = message.get("signature_name")
    if signature is not None and not isinstance(signature, str):
        raise _mistake(f"signature_name is {json_type(signature)}, not a string")
    return Call(signature, given[0] == "instances", message[given[0]])


def find_signature(model: ServedModel, name: str | None) -> str:
    """Returns the name of the signature that a request calls; `name` is the name in the request.

    If it is None, the signature is `serving_default`, or else the only one. Raises Refusal if the
    model does not have the signature.
    """
    known = model.signatures
    if name is None:
        if _DEFAULT in known or len(known) == 1:
            return _DEFAULT if _DEFAULT in known else next(iter(known))
        raise _mistake(f"signature_name is missing: {model.name} has {', '.join(known)}")
    if name not in known:
        raise Refusal(
            HTTPStatus.NOT_FOUND,
            f"there is no signature {name!r:.100}: {model.name} has {', '.join(known)}",
        )
    return name


# ---- inputs --------------------------------------------------------------------------------------


def read_inputs(call: Call, specs: Specs) -> dict[str, np.ndarray]:
    """Returns a request's inputs as arrays, {name: [B, ...]}, which match `specs`.

    Raises Refusal for missing or unknown names and wrong shapes or types. Raises Refusal, too, if
    inputs have different numbers of examples, or there is no example.
    """
    columns = _columns(call.content, specs) if call.is_rows else _by_name(call.content, specs)
    arrays = {name: _array(name, columns[name], spec) for name, spec in specs.items()}
    sizes = {name: len(array) for name, array in arrays.items()}
    if len({*sizes.values()}) != 1:
        raise _mistake(f"inputs have different numbers of examples: {sizes}")
    if not next(iter(sizes.values())):
        raise _mistake("there is no example")
    return arrays


def _columns(instances: Any, specs: Specs) -> dict[str, list[Any]]:
    """Returns each input's values, collected from `instances`, a list with one row per example."""
    if not isinstance(instances, list):
        raise _mistake(f"instances is {json_type(instances)}, not a list")
    rows = [_by_name(row, specs, f"instances[{i}]") for i, row in enumerate(instances)]
    return {name: [row[name] for row in rows] for name in specs}


def _by_name(value: Any, specs: Specs, where: str = "inputs") -> Mapping[str, Any]:
    """Returns {input: value}; a JSON value that is not an object is the only input's value.

    `where` says which part of the request the value is, for the errors.
    """
    is_object = isinstance(value, dict) and {*value} != {_BASE64}
    if not is_object:
        if len(specs) == 1:
            return {next(iter(specs)): value}
        raise _mistake(f"{where} is {json_type(value)}: write an object with {', '.join(specs)}")
    for name in specs:
        if name not in value:
            raise _mistake(f"{where} lacks {name!r}: inputs are {', '.join(specs)}")
    if unknown := [name for name in value if name not in specs]:
        raise _mistake(f"{where} has {unknown[0]!r:.100}: inputs are {', '.join(specs)}")
    return value


def _array(name: str, value: Any, spec: ServedSpec) -> np.ndarray:
    """Returns an input as an array; raises Refusal unless it has the dtype and shape of `spec`."""
    if not isinstance(value, list):
        raise _mistake(f"{name} is {json_type(value)}: wanted {spec}, a list of examples")
    try:
        array = _strings(value) if spec.dtype == "string" else _numbers(value, spec)
    except (ValueError, OverflowError, RecursionError) as error:
        raise _mistake(f"{name}: {error}: wanted {spec}") from None
    if len(array.shape) != len(spec.shape) or any(
        size not in (None, given) for size, given in zip(spec.shape, array.shape, strict=True)
    ):
        raise _mistake(f"{name} has shape {[*array.shape]}: wanted {spec}")
    return array


def _numbers(value: list[Any], spec: ServedSpec) -> np.ndarray:
    dtype = np.dtype(tf.as_dtype(spec.dtype).as_numpy_dtype)
    kind = dtype.kind if dtype.kind in _KINDS else "f"  # bfloat16's is V
    # Objects first: NumPy would store each string with the size of the longest string.
    if kind == "f" and len(spec.shape) == 1:
        value = [math.nan if item is None else item for item in value]
    leaves = np.array(value, dtype=object).ravel()
    if strange := {*map(type, leaves)} - {bool, int, float}:
        if list in strange:
            raise ValueError("lists of different lengths, or nested too deeply")
        leaf = next(leaf for leaf in leaves if type(leaf) in strange)
        raise ValueError(f"a value is {json_type(leaf)}")
    array = np.array(value)
    if array.dtype.kind == "O":
        raise ValueError("a number needs more than 64 bits")
    if array.size and array.dtype.kind not in _KINDS[kind]:
        raise ValueError(f"values are of type {array.dtype.name}")
    if array.size and kind in "iu":
        bounds: Any = np.iinfo(dtype.name)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise ValueError(f"values are not all in {bounds.min}..{bounds.max}")
    with np.errstate(over="ignore"):  # as in TensorFlow, a number that is too large becomes inf
        return array.astype(dtype)


def _strings(value: list[Any]) -> np.ndarray:
    """Returns nested lists of JSON strings as an object array of bytes."""
    array = np.array(_decode(value), dtype=object)
    if not all(isinstance(item, bytes) for item in array.ravel()):
        raise ValueError("lists of different lengths")
    return array


def _decode(value: Any) -> Any:
    """Returns a JSON value with bytes in place of each string and each `{"b64": ...}`."""
    match value:
        case str():
            return value.encode()
        case list():
            return [_decode(item) for item in value]
        case {"b64": str(text)} if len(value) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError(f"b64 is not in base64: {text!r:.50}") from None
    raise ValueError(f"a value is {json_type(value)}")


# ---- outputs -------------------------------------------------------------------------------------


def write_outputs(outputs: Arrays, *, is_rows: bool) -> bytes:
    """Returns the JSON answer with outputs {name: [B, ...]}, as rows or as columns."""
    columns = {name: _to_json(value, name) for name, value in outputs.items()}
    if not is_rows:
        content = next(iter(columns.values())) if len(columns) == 1 else columns
        return json.dumps({"outputs": content}).encode()
    if len(columns) == 1:
        rows: Sequence[Any] = next(iter(columns.values()))
    else:
        values = zip(*columns.values(), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in values]
    return json.dumps({"predictions": rows}).encode()


def _to_json(value: np.ndarray, name: str) -> Any:
    if value.dtype.kind in "iufb":
        return value.tolist()
    if value.dtype.kind == "V":  # bfloat16
        return value.astype(np.float32).tolist()
    return _texts(value.tolist(), is_bytes=name.endswith("_bytes"))


def _texts(value: Any, *, is_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_texts(item, is_bytes=is_bytes) for item in value]
    if not is_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {_BASE64: base64.b64encode(value).decode()}


# ---- metadata ------------------------------------------------------------------------------------


def status_of(model: ServedModel) -> dict[str, Any]:
    """Returns the status of a model, in the format of TensorFlow Serving's REST API."""
    version = {
        "version": str(model.version),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return {"model_version_status": [version]}


def metadata_of(model: ServedModel) -> dict[str, Any]:
    """Returns the signatures' inputs and outputs, in the format of TensorFlow Serving."""
    definitions = {name: _definition(signature) for name, signature in model.signatures.items()}
    return {
        "model_spec": {"name": model.name, "signature_name": "", "version": str(model.version)},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }


def _definition(signature: ServedSignature) -> dict[str, Any]:
    def tensors(specs: Specs) -> dict[str, Any]:
        return {name: _tensor(name, spec) for name, spec in specs.items()}

    return {
        "inputs": tensors(signature.inputs),
        "outputs": tensors(signature.outputs),
        "method_name": "tensorflow/serving/predict",
    }


def _tensor(name: str, spec: ServedSpec) -> dict[str, Any]:
    from tensorflow.core.framework.types_pb2 import DataType

    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in spec.shape]
    return {
        "name": name,
        "dtype": DataType.Name(tf.as_dtype(spec.dtype).as_datatype_enum),
        "tensor_shape": {"dim": sizes, "unknown_rank": False},
    }


def json_type(value: Any) -> str:
    """Returns the JSON type of a value as words for an error: "a list"."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _mistake(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, message)
