"""Requests and answers are those of TensorFlow Serving, and a mistake is named."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from lingo.serving import codec
from lingo.serving.model import Refusal, ServedModel, ServedSpec

SPECS = {"ids": ServedSpec((None, 2), "int32"), "scale": ServedSpec((None,), "float32")}
TEXT = {"text": ServedSpec((None,), "string")}


def read(message: Any, specs: Any = SPECS) -> dict[str, np.ndarray]:
    return codec.read_inputs(codec.read_call(json.dumps(message).encode()), specs)


def test_rows_and_columns_are_the_same_arrays() -> None:
    rows = [{"ids": [1, 2], "scale": 1}, {"ids": [3, 4], "scale": 0.5}]
    columns = {"ids": [[1, 2], [3, 4]], "scale": [1, 0.5]}
    for found in (read({"instances": rows}), read({"inputs": columns})):
        assert {name: array.dtype.name for name, array in found.items()} == {
            "ids": "int32",
            "scale": "float32",
        }
        np.testing.assert_array_equal(found["ids"], columns["ids"])
        np.testing.assert_array_equal(found["scale"], columns["scale"])


def test_the_name_of_an_only_input_may_be_left_out() -> None:
    encoded = {"b64": base64.b64encode(b"\xff\0").decode()}
    for message in (
        {"instances": ["é", encoded]},
        {"instances": [{"text": "é"}, {"text": encoded}]},
        {"inputs": ["é", encoded]},
        {"inputs": {"text": ["é", encoded]}},
    ):
        assert read(message, TEXT)["text"].tolist() == ["é".encode(), b"\xff\0"]


@pytest.mark.parametrize(
    ("dtype", "given"),
    [("bool", [True, False]), ("uint8", [0, 255]), ("bfloat16", [1, 2.5]), ("int64", [2**62, 0])],
)
def test_numbers_become_the_type_of_the_input(dtype: str, given: list[Any]) -> None:
    found = read({"instances": given}, {"x": ServedSpec((None,), dtype)})["x"]
    assert found.dtype.name == dtype
    assert found.tolist() == given


def test_null_is_a_missing_number_where_an_example_has_one() -> None:
    scale = read({"inputs": {"ids": [[1, 2], [3, 4]], "scale": [None, 2]}})["scale"]
    np.testing.assert_array_equal(scale, np.array([np.nan, 2], "f"))
    with pytest.raises(Refusal, match="x: a value is null"):
        read({"inputs": [[1.0], [None]]}, {"x": ServedSpec((None, 1), "float32")})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON: Expecting property name"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON: maximum recursion depth"),
        (b"[]", "the body is not an object"),
        (b"{}", "the body has neither instances nor inputs: give one"),
        (b'{"instances": [], "inputs": {}}', "the body has both instances and inputs: give one"),
        (b'{"instances": [], "more": 1}', "the body has 'more': it may have only instances and si"),
        (b'{"instances": [], "signature_name": 5}', "signature_name is a number, not a string"),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(Refusal, match=message) as error:
        codec.read_call(body)
    assert error.value.status == 400


def scaled(ids: Any) -> dict[str, Any]:
    return {"instances": [{"ids": ids, "scale": 1}]}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"instances": {}}, "instances is an object, not a list"),
        ({"instances": []}, "ids has shape [0]: wanted int32 [any, 2]"),
        ({"instances": [1]}, "instances[0] is a number: write an object with ids, scale"),
        ({"inputs": None}, "inputs is null: write an object with ids, scale"),
        ({"instances": [{"ids": [1, 2]}]}, "instances[0] lacks 'scale': inputs are ids, scale"),
        ({"inputs": {"ids": [], "scale": [], "scales": 1}}, "inputs has 'scales': inputs are ids"),
        (scaled([1, 2, 3]), "ids has shape [1, 3]: wanted int32 [any, 2]"),
        (scaled(1), "ids has shape [1]: wanted int32 [any, 2]"),
        (scaled([1, 2.5]), "ids: values are of type float64: wanted int32 [any, 2]"),
        (scaled([1, "2"]), "ids: a value is a string: wanted int32"),
        (scaled(["a" * 4_000_000] + [""] * 1000), "ids: a value is a string"),  # 16 GB of NumPy's
        (scaled([1, None]), "ids: a value is null"),
        (scaled([1, {}]), "ids: a value is an object"),
        (scaled([1, 2**31]), "ids: values are not all in -2147483648..2147483647"),
        (scaled([1, 10**30]), "ids: a number needs more than 64 bits"),
        (scaled([1, [2]]), "ids: lists of different lengths"),
        ({"inputs": {"ids": 5, "scale": [1]}}, "ids is a number: wanted int32 [any, 2], a list of"),
        (
            {"inputs": {"ids": [[1, 2]], "scale": [1, 2]}},
            "inputs have different numbers of examples: {'ids': 1, 'scale': 2}",
        ),
    ],
)
def test_other_names_shapes_and_types_are_refused_with_what_is_wanted(message, text: str) -> None:
    with pytest.raises(Refusal) as error:
        read(message)
    assert text in str(error.value)
    assert error.value.status == 400


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([5], "text: a value is a number: wanted string [any]"),
        ([["a"], ["b", "c"]], "text: lists of different lengths"),
        ([["a"]], "text has shape [1, 1]: wanted string [any]"),
        ([{"b64": "?"}], "text: b64 is not in base64: '?'"),
        ([], "there is no example"),
    ],
)
def test_what_is_no_text_is_refused(given: Any, text: str) -> None:
    with pytest.raises(Refusal) as error:
        read({"inputs": given}, TEXT)
    assert text in str(error.value)


def test_answers_have_the_form_of_their_requests() -> None:
    outputs = {"a": np.array([[1, 2], [3, 4]], np.int32), "b": np.array([0.5, 1], np.float32)}
    rows, columns = (json.loads(codec.write_outputs(outputs, is_rows=r)) for r in (True, False))
    assert rows == {"predictions": [{"a": [1, 2], "b": 0.5}, {"a": [3, 4], "b": 1.0}]}
    assert columns == {"outputs": {"a": [[1, 2], [3, 4]], "b": [0.5, 1.0]}}
    only = {"b": outputs["b"]}
    assert json.loads(codec.write_outputs(only, is_rows=True)) == {"predictions": [0.5, 1.0]}
    assert json.loads(codec.write_outputs(only, is_rows=False)) == {"outputs": [0.5, 1.0]}


def test_bytes_are_texts_unless_they_are_none_or_the_name_says_so() -> None:
    outputs = {"t": np.array([b"a", b"\xff"], object), "t_bytes": np.array([b"a", b"b"], object)}
    (first, second) = json.loads(codec.write_outputs(outputs, is_rows=True))["predictions"]
    assert first == {"t": "a", "t_bytes": {"b64": "YQ=="}}
    assert second["t"] == {"b64": "/w=="}


def test_every_signature_is_found_and_none_is_guessed(model: ServedModel) -> None:
    assert codec.find_signature(model, "count") == "count"
    with pytest.raises(Refusal, match="signature_name is missing: small has double, count, shout"):
        codec.find_signature(model, None)
    with pytest.raises(Refusal, match="no signature 'counts': small has double, count") as error:
        codec.find_signature(model, "counts")
    assert error.value.status == 404
    only = {"shout": model.signatures["shout"]}
    assert codec.find_signature(model._replace(signatures=only), None) == "shout"
    default = model.signatures | {"serving_default": model.signatures["shout"]}
    assert codec.find_signature(model._replace(signatures=default), None) == "serving_default"


def test_metadata_are_those_of_tensorflow_serving(model: ServedModel) -> None:
    found = codec.metadata_of(model)
    assert found["model_spec"] == {"name": "small", "signature_name": "", "version": "7"}
    definition = found["metadata"]["signature_def"]["signature_def"]["double"]
    sizes = [{"size": "-1", "name": ""}, {"size": "2", "name": ""}]
    assert definition["inputs"] == {
        "x": {
            "name": "x",
            "dtype": "DT_FLOAT",
            "tensor_shape": {"dim": sizes, "unknown_rank": False},
        }
    }
    assert definition["method_name"] == "tensorflow/serving/predict"
