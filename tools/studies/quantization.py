"""The study of docs/quantization.md: what 8 bits cost in accuracy, and what they save.

Each training is measured with its last weights: images as models of TensorFlow Lite, on all
held-out images; text as a program of lingo's, on all held-out bytes of the evaluation.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lingo
from lingo.decode.sampling import Sampling
from lingo.trainer.trained import Trained
from tools.studies.page import NONE, percent_over_seeds, table
from tools.studies.trial import Results, Trial, over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "quantization.md"

IMAGES = {
    "LeNet-5": ("image.lenet.digits", "image.lenet.digits_int8"),
    "ResNet": ("image.resnet.glyphs(epochs=2.0)", "image.resnet.glyphs_int8"),
}
"""Name -> experiments in float32 and for 8 bits."""

TEXT = ("lm.source.tiny", "lm.source.tiny_int8")

PLAIN_FORMS = ("none", "float16", "int8_dynamic", "int8")
"""The exports of a training in float32; one for 8 bits has `int8` alone."""

FORMS = {
    "none": "float32",
    "float16": "weights of 16 bits",
    "int8_dynamic": "weights of 8 bits, activations while it computes",
    "int8": "8 bits, ranges of 64 images",
    "trained": "8 bits, trained",
}

WEIGHTS = {"none": "float32", "int8_weights": "weights of 8 bits"}

TIMED_TOKENS, TIMED_RUNS = 200, 5


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trials."""
    del results  # none depends on another
    for experiments in (*IMAGES.values(), TEXT):
        for experiment in experiments:
            yield from over_seeds(Trial(experiment))


# ---- measurements


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns what a run is worth in each form: `int8/accuracy`, and bytes and milliseconds."""
    if trial.experiment in TEXT:
        return _measure_text(run)
    is_plain = any(trial.experiment == plain for plain, _ in IMAGES.values())
    model, found = lingo.load(run), {}
    for form in PLAIN_FORMS if is_plain else ("int8",):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "export"
            model.export(folder, format="tflite", signatures=["predict"], quantize=form)
            file = folder / "model.tflite"
            data = model.experiment.eval_inputs["heldout"]
            batches = (data.batch(step) for step in range(data.num_batches()))
            found |= _prefix_names(form, _measure_lite(file, batches, None if is_plain else model))
    return found


def _measure_lite(
    file: Path, batches: Iterator[Mapping[str, np.ndarray]], model: Trained | None
) -> dict[str, float]:
    """Returns the accuracy over all examples, on one thread, and the median time of one.

    With the model that was trained in the same levels, also the largest difference of a logit, in
    levels, and the share of examples that get the same label.
    """
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it moves to another package
        interpreter = tf.lite.Interpreter(model_path=str(file), num_threads=1)
    predict = interpreter.get_signature_runner("predict")
    seconds, found, expected = [], [], []
    for batch in batches:
        is_counted = batch["weights"] > 0
        images, labels = batch["images"][is_counted], batch["labels"][is_counted]
        for image, label in zip(images, labels, strict=True):
            start = time.perf_counter()
            outputs = predict(images=image[None])
            seconds.append(time.perf_counter() - start)
            found.append({"logits": outputs["logits"], "is_right": outputs["labels"] == label})
        if model is not None:
            expected.append(model.predict({"images": images})["logits"])
    logits = np.concatenate([one["logits"] for one in found])
    measured = {
        "accuracy": float(np.mean([one["is_right"] for one in found])),
        "bytes": file.stat().st_size,
        "ms": 1e3 * statistics.median(seconds),
    }
    if expected:
        limits = _logit_levels(interpreter, logits.shape[1])
        wanted = np.concatenate(expected)
        differences = logits - np.clip(wanted, limits.low, limits.high)
        measured["levels"] = float(np.abs(differences).max() / limits.scale)
        measured["same_labels"] = float(np.mean(logits.argmax(1) == wanted.argmax(1)))
    return measured


class _Levels(NamedTuple):
    """The values that 8 bits can hold."""

    scale: float
    low: float
    high: float


def _logit_levels(interpreter: Any, num_classes: int) -> _Levels:
    """Returns the levels of logits [1, num_classes], the last result of a network in 8 bits."""
    scale, zero = next(
        tensor["quantization"]
        for tensor in reversed(interpreter.get_tensor_details())
        if [*tensor["shape"]] == [1, num_classes] and tensor["dtype"] == np.int8
    )
    return _Levels(scale, scale * (-128 - zero), scale * (127 - zero))


def _measure_text(run: Path) -> dict[str, float]:
    """Returns bits per byte, the size of the weights of a SavedModel, and the time of a token."""
    found = {}
    for form in ("none", "int8_weights"):
        model = lingo.load(run, quantize=form)
        values = {"bits": model.evaluate()["heldout"]["bits_per_byte"]}
        values["ms"] = 1e3 * seconds_a_token(model)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "export"
            model.export(folder, format="savedmodel", signatures=["predict"], quantize=form)
            files = folder.glob("*/variables/*.data*")
            values["bytes"] = sum(file.stat().st_size for file in files)
        found |= _prefix_names(form, values)
    return found


def seconds_a_token(model: Trained) -> float:
    """Returns the median time of a token over several texts: one that ends early has fewer."""
    sampling, seconds = Sampling.params(max_tokens=TIMED_TOKENS), []
    for seed in range(TIMED_RUNS + 1):  # the first compiles
        start = time.perf_counter()
        [[text]] = model.decode(["def "], sampling, seed=seed)
        seconds.append((time.perf_counter() - start) / len(text.log_probs))
    return statistics.median(seconds[1:])


def _prefix_names(form: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{form}/{name}": value for name, value in values.items()}


# ---- page


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    rows = []
    for name, (plain, trained) in IMAGES.items():
        for form, text in FORMS.items():
            experiment = trained if form == "trained" else plain
            rows.append([name, text, *_image_cells(results, over_seeds(Trial(experiment)), form)])
    equal_rows = []
    for name, (_, trained) in IMAGES.items():
        trials = over_seeds(Trial(trained))
        levels = _values(results, trials, "int8/levels")
        same = percent_over_seeds(results, trials, "int8/same_labels")
        equal_rows.append([name, format(max(levels), ".1f") if levels else NONE, same])
    text_rows = []
    for experiment, name in zip(TEXT, ("float32", "weights of 8 bits"), strict=True):
        for form, text in WEIGHTS.items():
            text_rows.append(
                [name, text, *_text_cells(results, over_seeds(Trial(experiment)), form)]
            )
    return {
        "images": table(["network", "file", "accuracy, %", "bytes", "ms an image"], rows),
        "equal": table(["network", "largest difference, levels", "equal labels, %"], equal_rows),
        "text": table(
            ["trained with", "computed with", "bits per byte", "bytes of weights", "ms a token"],
            text_rows,
        ),
    }


def _image_cells(results: Results, trials: Sequence[Trial], form: str) -> list[str]:
    form = "int8" if form == "trained" else form
    return [
        percent_over_seeds(results, trials, f"{form}/accuracy"),
        _mean(results, trials, f"{form}/bytes", ",.0f"),
        _mean(results, trials, f"{form}/ms", ".2f"),
    ]


def _text_cells(results: Results, trials: Sequence[Trial], form: str) -> list[str]:
    bits = _values(results, trials, f"{form}/bits")
    return [
        ", ".join(f"{value:.4f}" for value in bits) or NONE,
        _mean(results, trials, f"{form}/bytes", ",.0f"),
        _mean(results, trials, f"{form}/ms", ".2f"),
    ]


def _mean(results: Results, trials: Sequence[Trial], tag: str, style: str) -> str:
    """Returns the mean of a metric over the trials that have it."""
    found = _values(results, trials, tag)
    return format(statistics.fmean(found), style) if found else NONE


def _values(results: Results, trials: Sequence[Trial], tag: str) -> list[float]:
    """Returns a metric of the trials that have it."""
    return [value for trial in trials if (value := results.metric(trial, tag)) is not None]
