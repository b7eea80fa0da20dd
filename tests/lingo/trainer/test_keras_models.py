"""Models of Keras in runs: trained on digits, evaluated, stopped and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import lingo
from lingo.checkpoints import store
from lingo.config.params import ParamError, Params
from lingo.contract import Evaluation
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers import Keras
from lingo.optim import Adam, ByPath, Frozen
from tasks.image.task import ImageClassification


def transformer() -> Any:
    """Reads the rows of an image as positions."""
    inputs = keras.Input((8, 8, 1))
    x = layers.Dense(16)(layers.Reshape((8, 8))(inputs))
    for _ in range(2):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(num_heads=2, key_dim=8, dropout=0.1)(normed, normed)
        hidden = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(16)(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def mobile_net() -> Any:
    small: Any = keras.applications.MobileNetV3Small
    fields = {"weights": None, "classifier_activation": None, "include_preprocessing": False}
    return small((32, 32, 1), alpha=0.35, classes=10, **fields)


def experiment(factory: Callable[[], Any], size: int, max_steps: int) -> Params:
    train, heldout = (
        ImageInput.params(
            source=Digits.params(split=split), batch_size=8, enlarged_to=(size, size, 1)
        )
        for split in ("train", "heldout")
    )
    return lingo.Experiment.params(
        task=ImageClassification.params(model=Keras.params(factory=factory)),
        train_input=train,
        eval_inputs={"heldout": heldout.set(repeat=False, max_batches=1)},
        optimizer=Adam.params(learning_rate=0.01, ema_decay=0.5),
        evaluate=Evaluation.params(weights="ema"),
        max_steps=max_steps,
    )


def rows(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    kept = ("step", "loss/total", "eval/loss", "eval/accuracy")
    return [{k: v for k, v in json.loads(line).items() if k in kept} for line in lines]


@pytest.mark.usefixtures("once_compiled")
@pytest.mark.parametrize(("factory", "size"), [(transformer, 8), (mobile_net, 32)])
def test_a_run_that_was_stopped_and_resumed_is_the_whole_one_bit_for_bit(factory, size, tmp_path):
    whole = lingo.train(experiment(factory, size, 4), tmp_path / "whole")
    lingo.train(experiment(factory, size, 2), tmp_path / "parts")
    parts = lingo.train(experiment(factory, size, 4), tmp_path / "parts")
    assert parts.scalars["loss/total"] == whole.scalars["loss/total"]
    assert rows(tmp_path / "parts")[-1] == rows(tmp_path / "whole")[-1]
    mine, yours = (
        store.find(tmp_path / run / "checkpoints", 4, of=tmp_path) for run in ("whole", "parts")
    )
    assert mine.tensors == yours.tensors
    assert not any("seed" in name for name in mine.tensors)
    for name, value in mine.read(mine.tensors).items():
        np.testing.assert_array_equal(yours.read([name])[name], value, err_msg=name)


def test_an_optimizer_that_does_not_suit_the_weights_is_refused_before_training(tmp_path):
    params = experiment(transformer, 8, 1)
    groups = {"model/.*": Adam, "model/other/.*": Frozen}
    params.optimizer = ByPath.params(groups=groups, ema_decay=0.5, learning_rate=0.01)
    with pytest.raises(ParamError, match=r"'model/other/\.\*' matches none of"):
        lingo.train(params, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    params = experiment(transformer, 8, 1)
    params.task.num_classes = 11
    with pytest.raises(ParamError, match=r"model makes \[8, 10\] .* each of num_classes=11"):
        lingo.train(params, tmp_path / "run")


def test_a_transformer_learns_digits(tmp_path: Path) -> None:
    outcome = lingo.train(experiment(transformer, 8, 60), tmp_path / "run")
    first = rows(tmp_path / "run")[0]["loss/total"]
    assert first > 2.0
    assert outcome.scalars["loss/total"] < first / 2
