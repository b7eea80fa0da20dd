"""Documents packed into one row have the losses that each of them has alone.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.data import TextFiles, TextInput
from lingo.layers import Attention, CallInputs, LocalWindow, Repeat, Stack, TransformerLayer
from lingo.layers.context import apply
from lingo.layers.sequence.positions import LearnedPositions, RelativeBias, Rotary
from lingo.layers.sequence.recurrent import Lstm, RecurrentLayer
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

LENGTH = 24
DOCUMENTS = ["a first one", "and two", "three", "the fourth of them all"]


def attending(**fields: Any) -> Params:
    return TransformerLayer.params(attention=Attention.params(num_heads=2, **fields))


FORMS = {
    "window": {"layer": attending(mask=LocalWindow.params(window=3), positions=Rotary)},
    "relative bias": {"layer": attending(positions=RelativeBias)},
    "learned positions": {
        "layer": attending(),
        "positions": LearnedPositions.params(max_length=LENGTH),
    },
    "lstm": {"layer": RecurrentLayer.params(network=Lstm)},
}


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    for i, text in enumerate(DOCUMENTS):
        (tmp_path / f"{i}.txt").write_text(text)
    return tmp_path


def batch(pattern: str, **fields: Any) -> dict[str, np.ndarray]:
    source = TextFiles.params(pattern=pattern)
    given = {"length": LENGTH, "packing": "bins", "repeat": False} | fields
    return TextInput.params(source=source, **given).build().batch(0)


def token_losses(task: Any, weights: Any, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns -log p of each target, float64 [B, T]."""
    inputs = CallInputs(segments=batch["segments"], position_ids=batch["positions"])
    logits = (
        apply(task.model, weights, batch["tokens"], inputs=inputs)[0].numpy().astype(np.float64)
    )
    logits -= logits.max(-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_probs, batch["targets"][..., np.newaxis], -1)[..., 0]


@pytest.mark.parametrize(
    ("form", "stack"), [*((form, Stack) for form in FORMS), ("relative bias", Repeat)]
)
def test_losses_of_packed_documents_are_those_of_each_alone(form, stack, data, draw):
    fields = dict(FORMS[form])
    layers = stack.params(layer=fields.pop("layer"), num_layers=2)
    model = LanguageModel.params(dim=8, stack=layers, **fields)
    task = LanguageModeling.params(vocab_size=259, model=model).build()
    weights = draw(task.model)
    packed = batch(f"{data}/*.txt", batch_size=3)
    losses = token_losses(task, weights, packed)
    found = {
        packed["targets"][row][here].tobytes(): losses[row][here]
        for row, segments in enumerate(packed["segments"])
        for segment in range(1, segments.max() + 1)
        for here in [segments == segment]
    }
    assert len(found) == len(DOCUMENTS)
    assert packed["segments"].max() > 1, "a row has several"
    for i in range(len(DOCUMENTS)):
        alone = batch(f"{data}/{i}.txt", batch_size=1)
        here = alone["segments"][0] == 1
        wanted = token_losses(task, weights, alone)[0][here]
        np.testing.assert_allclose(
            found[alone["targets"][0][here].tobytes()], wanted, rtol=1e-5, atol=1e-5
        )
