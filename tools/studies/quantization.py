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
            found |= _prefix_names(form, _measure_lite(file, batches))
    return found


def _measure_lite(file: Path, batches: Iterator[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Returns the accuracy over all examples, on one thread, and the median time of one."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it moves to another package
        interpreter = tf.lite.Interpreter(model_path=str(file), num_threads=1)
    predict = interpreter.get_signature_runner("predict")
    is_right, seconds = [], []
    for batch in batches:
        for image, label, weight in zip(
            batch["images"], batch["labels"], batch["weights"], strict=True
        ):
            if weight > 0:
                start = time.perf_counter()
                found = predict(images=image[None])
                seconds.append(time.perf_counter() - start)
                is_right.append(found["labels"][0] == label)
    return {
        "accuracy": float(np.mean(is_right)),
        "bytes": file.stat().st_size,
        "ms": 1e3 * statistics.median(seconds),
    }


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
    text_rows = []
    for experiment, name in zip(TEXT, ("float32", "weights of 8 bits"), strict=True):
        for form, text in WEIGHTS.items():
            text_rows.append(
                [name, text, *_text_cells(results, over_seeds(Trial(experiment)), form)]
            )
    return {
        "images": table(["network", "file", "accuracy, %", "bytes", "ms an image"], rows),
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
    bits = [v for t in trials if (v := results.metric(t, f"{form}/bits")) is not None]
    return [
        ", ".join(f"{value:.4f}" for value in bits) or NONE,
        _mean(results, trials, f"{form}/bytes", ",.0f"),
        _mean(results, trials, f"{form}/ms", ".2f"),
    ]


def _mean(results: Results, trials: Sequence[Trial], tag: str, style: str) -> str:
    """Returns the mean of a metric over the trials that have it."""
    found = [value for trial in trials if (value := results.metric(trial, tag)) is not None]
    return format(statistics.fmean(found), style) if found else NONE
