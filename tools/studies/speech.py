"""The study of docs/speech_study.md: small recognizers of digits that programs speak.

Each arm differs from the first in one thing. Word error rates are of the last weights, in percent,
over held-out voices of the synthesizer that training hears, over another synthesizer, and over a
person's digits where these are installed.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import lingo
from lingo.config.base.errors import LingoError
from lingo.data import Input
from lingo.data.files import DataError
from lingo.datasets import Prompts
from lingo.export.formats import Quantize
from lingo.trainer.trained import Trained
from tools.studies.page import mean_over_seeds, minutes_over_seeds, table
from tools.studies.trial import SEEDS, Results, Trial, over_seeds

PAGE = Path(__file__).parent.parent.parent / "docs" / "speech_study.md"

ARMS = {
    "CTC": Trial("asr.voices.digits"),
    "CTC, SpecAugment": Trial("asr.voices.digits(masked=True)"),
    "CTC, causal": Trial("asr.voices.digits(causal=True)"),
    "RNN-T": Trial("asr.voices.digits(head='transducer')"),
}
"""Name -> trial with seed 0; the first is the one from which the others differ."""

EXPORTED = ARMS["CTC"]

SETS = {"wer": "held-out voices", "wer@flite": "Flite", "people/wer": "a person"}
"""Metric -> the recordings on which it is measured."""

FORMS: Mapping[Quantize, str] = {"none": "float32", "int8": "8 bits, ranges of 64 recordings"}
"""Number types of files for TensorFlow Lite."""

Predict = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Returns `labels` [B, U] and `num_labels` [B] for `features` and `num_frames`."""


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings, seed by seed."""
    del results  # none depends on another
    for seed in SEEDS:
        yield from (trial._replace(seed=seed) for trial in ARMS.values())


# ---- measurements


def measure(trial: Trial, run: Path) -> dict[str, float]:
    """Returns the word error rate on a person's digits and, for the first arm, on exported files.

    A rate that cannot be measured here is left out; stderr has the reason.
    """
    model = lingo.load(run)
    found = _measure_people(model)
    if trial.experiment == EXPORTED.experiment:
        for form in FORMS:
            found |= _measure_file(model, form)
    return found


def _measure_people(model: Trained) -> dict[str, float]:
    data = model.experiment.eval_inputs["voices"].p.copy().set(source=Prompts.params()).build()
    try:
        data.prepare()
    except DataError as error:
        return _tell("a person's digits", error)
    return {"people/wer": word_error_rate(data, model)}


def _measure_file(model: Trained, form: Quantize) -> dict[str, float]:
    """Returns word error rate and bytes of a file for TensorFlow Lite, on held-out voices."""
    data = model.experiment.eval_inputs["voices"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "export"
        try:
            model.export(folder, format="tflite", signatures=["predict"], quantize=form)
        except LingoError as error:
            return _tell(f"a file in {FORMS[form]}", error)
        file = folder / "model.tflite"
        rate, size = word_error_rate(data, lite_predictions(file)), file.stat().st_size
    return {f"{form}/wer": rate, f"{form}/bytes": size}


def _tell(what: str, error: LingoError) -> dict[str, float]:
    print(f"without {what}: {error}", file=sys.stderr, flush=True)
    return {}


def word_error_rate(data: Input, predict: Predict) -> float:
    """Returns the word error rate over all recordings of an input, in percent."""
    labels, sizes = [], []
    for step in range(data.num_batches()):
        batch = data.batch(step)
        is_counted = batch["weights"] > 0
        inputs = {name: batch[name][is_counted] for name in ("features", "num_frames")}
        found = predict(inputs)
        labels.append(found["labels"])
        sizes.append(found["num_labels"])
    predictions = {"labels": np.concatenate(labels), "num_labels": np.concatenate(sizes)}
    return data.score(predictions)[0]["wer"]


def lite_predictions(file: Path) -> Predict:
    """Returns a predictor that runs a file for TensorFlow Lite, one recording at a time."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it moves to another package
        interpreter = tf.lite.Interpreter(model_path=str(file), num_threads=1)
    run = interpreter.get_signature_runner("predict")

    def predict(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs: list[dict[str, Any]] = [
            run(features=features[None], num_frames=num_frames[None])
            for features, num_frames in zip(batch["features"], batch["num_frames"], strict=True)
        ]
        return {n: np.concatenate([one[n] for one in outputs]) for n in ("labels", "num_labels")}

    return predict


# ---- page


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    arms = []
    for name, trial in ARMS.items():
        cells = [mean_over_seeds(results, over_seeds(trial), tag) for tag in SETS]
        arms.append([name, *cells, minutes_over_seeds(results, over_seeds(trial))])
    files = []
    for form, name in FORMS.items():
        cells = [
            mean_over_seeds(results, over_seeds(EXPORTED), f"{form}/{tag}", digits=digits)
            for tag, digits in (("wer", 1), ("bytes", 0))
        ]
        files.append([name, *cells])
    return {
        "arms": table(["recognizer", *(f"{name}, %" for name in SETS.values()), "minutes"], arms),
        "files": table(["file", "held-out voices, %", "bytes"], files),
    }
