"""Computes the outputs of an exported model, in a process that cannot import lingo.

    python -I reader.py load_saved_model FOLDER GIVEN RESULTS

GIVEN has the inputs of one or more calls of each signature, and RESULTS gets their outputs. Both
are `.npz` files of arrays with names `signature|call|array`. This file is also an example of how to
use an export. It needs only NumPy and TensorFlow, or NumPy and JAX for StableHLO.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Signatures = dict[str, Callable[[dict[str, np.ndarray]], dict[str, Any]]]


def load_saved_model(folder: Path) -> Signatures:
    """Returns the signatures of a SavedModel, which is in a subfolder named after its version."""
    import tensorflow as tf

    (version,) = (path.parent for path in folder.glob("*/saved_model.pb"))
    model = tf.saved_model.load(str(version))

    def call(signature: Any) -> Callable[[dict[str, np.ndarray]], dict[str, Any]]:
        # the default argument keeps the model alive, without which signatures do not work
        return lambda inputs, model=model: signature(
            **{name: tf.constant(value) for name, value in inputs.items()}
        )

    return {name: call(signature) for name, signature in model.signatures.items()}


def load_stablehlo(folder: Path) -> Signatures:
    """Returns the signatures of a StableHLO export, which has one file per signature."""
    from jax import export

    def call(file: Path) -> Any:
        return export.deserialize(bytearray(file.read_bytes())).call

    return {file.stem: call(file) for file in folder.glob("*.stablehlo")}


def load_tflite(folder: Path) -> Signatures:
    """Returns the signatures of a TensorFlow Lite model."""
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(model_path=str(folder / "model.tflite"))

    def call(name: str) -> Callable[[dict[str, np.ndarray]], dict[str, Any]]:
        runner = interpreter.get_signature_runner(name)
        return lambda inputs: runner(**inputs)

    return {name: call(name) for name in interpreter.get_signature_list()}


def main(loader: str, folder: str, given: str, results: str) -> None:
    """Computes the calls in the file `given`, and writes their outputs to the file `results`.

    `loader` is the name of a function above, which loads the export in `folder`.
    """
    signatures = globals()[loader](Path(folder))
    calls: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    with np.load(given) as arrays:
        for key in arrays.files:
            name, index, array = key.split("|")
            calls.setdefault((name, index), {})[array] = arrays[key]
    outputs = {}
    for (name, index), inputs in calls.items():
        for array, value in signatures[name](inputs).items():
            value = np.asarray(value)
            is_text = value.dtype == object  # bytes, as TensorFlow returns them
            outputs[f"{name}|{index}|{array}"] = value.astype(np.bytes_) if is_text else value
    np.savez(results, **outputs)


if __name__ == "__main__":
    for package in ("lingo", "tasks", "params"):
        sys.modules[package] = None  # type: ignore[assignment]  # importing it now fails
    main(*sys.argv[1:])
