"""Packed dialogs: the loss touches responses or ratings alone, and is that of each example alone.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingo.config.params import ParamError, Params
from lingo.data import TextFiles, TextInput
from lingo.data.files import DataError
from lingo.data.mixture import Mixture
from lingo.layers import Stack, TransformerLayer
from lingo.layers.context import apply
from lingo.layers.sequence.mask import Causal, Mask
from lingo.layers.sequence.positions import RelativeBias
from lingo.ops.losses import cross_entropy
from tasks.dialog.formats import DialogTokenizer
from tasks.dialog.input import DialogInput
from tasks.dialog.mask import RatingMask
from tasks.dialog.turns import Dialog, DialogFiles, Turn
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tasks.token_prediction import token_weights
from tests.lingo.data.documents import assert_starts_anywhere, specs_of
from tests.tasks.dialog.dialogs import CASUAL, LONGER, write

RATED = ("generative", "discriminative")


@pytest.fixture
def pattern(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "dialogs.jsonl", CASUAL, LONGER)


def dialogs(pattern: str, objective: str = "generative", **fields: Any) -> DialogInput:
    source = DialogFiles.params(pattern=pattern)
    given = {"batch_size": 2, "length": 96, "repeat": False} | fields
    return DialogInput.params(source=source, objective=objective, **given).build()


def task(mask: type[Mask] = Causal) -> LanguageModeling:
    layer = TransformerLayer.params()
    layer.attention.set(num_heads=2, mask=mask, positions=RelativeBias.params(shared=True))
    stack = Stack.params(layer=layer, num_layers=2)
    model = LanguageModel.params(dim=8, stack=stack)
    return LanguageModeling.params(vocab_size=268, model=model).build()


@pytest.mark.parametrize("objective", [*RATED, "text"])
def test_a_batch_is_as_the_specs_say_and_starts_anywhere(objective, pattern):
    data = dialogs(pattern, objective)
    data.check_repeatable()
    assert specs_of(data.batch(0)) == data.specs()
    assert ("target_weights" in data.specs()) == (objective != "text")
    assert data.offers() == {"vocab_size": 268}
    assert_starts_anywhere(
        lambda **f: dialogs(pattern, objective, **{"repeat": True} | f), range(4)
    )


@pytest.mark.parametrize(
    ("objective", "wanted"),
    [
        ("generative", ["not much.", "TS, 135+7721", "User, it is 7856."]),
        ("discriminative", ["1", "0", "0", "1", "1", "1"]),
    ],
)
def test_the_gradient_by_logits_touches_responses_or_ratings_alone(objective, wanted, pattern):
    data = dialogs(pattern, objective)
    learned = []
    for step in range(data.num_batches()):
        batch = data.batch(step)
        logits = tf.Variable(np.random.default_rng(0).normal(size=(2, 96, 268)), dtype=tf.float32)
        with tf.GradientTape() as tape:
            losses = cross_entropy(logits, tf.constant(batch["targets"]))
            loss = tf.reduce_sum(losses * token_weights(batch))
        touched = np.any(tape.gradient(loss, logits).numpy() != 0, axis=-1)
        np.testing.assert_array_equal(touched, batch["target_weights"] > 0)
        for row, segments in enumerate(batch["segments"]):
            for segment in range(1, segments.max() + 1):
                ids = batch["targets"][row][touched[row] & (segments == segment)]
                assert (ids[-1] == data.tokenizer.end_id) == (objective == "generative")
                learned.append(data.tokenizer.decode(ids))
    assert sorted(learned) == sorted(wanted)


def take_apart(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a batch in which every example of a packed one has a row of its own."""
    names = [name for name, array in batch.items() if array.ndim == 2]
    found = {name: [] for name in names}
    for row, segments in enumerate(batch["segments"]):
        for segment in range(1, segments.max() + 1):
            here = segments == segment
            for name in names:
                values = batch[name][row][here]
                found[name].append(np.pad(values, [0, len(segments) - len(values)]))
    rows = {name: np.stack(values) for name, values in found.items()}
    return rows | {"weights": np.ones(len(rows["tokens"]), np.float32)}


@pytest.mark.parametrize("objective", [*RATED, "text"])
def test_the_loss_of_packed_examples_is_the_sum_of_each_alone(objective, pattern, draw):
    learned, data = task(), dialogs(pattern, objective, length=192)
    weights, packed = draw(learned), data.batch(0)
    alone = take_apart(packed)
    assert packed["segments"].max() > 1, "a row has several"
    assert len(alone["tokens"]) == data.num_items()
    losses = [
        apply(learned, weights, batch, method="loss")[0]["cross_entropy"].numpy()
        for batch in (packed, alone)
    ]
    assert losses[0] > 1
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_ratings_after_one_prefix_have_the_losses_of_separate_examples(pattern, draw) -> None:
    learned = task(mask=RatingMask)
    weights, losses, sizes = draw(learned.model), [], []
    for shared in (False, True):
        data = dialogs(pattern, "discriminative", batch_size=8, length=96, shares_prefix=shared)
        batch = data.batch(0)
        assert ("prefix" in batch) == shared
        weighted = batch["target_weights"] > 0
        assert weighted.sum() == 6
        assert set(batch["targets"][weighted]) == set(data.tokenizer.rating_ids)
        loss = apply(learned, weights, batch, method="loss")[0]["cross_entropy"]
        losses.append(loss.numpy())
        sizes.append((batch["segments"] > 0).sum())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0] > 1
    assert sizes[1] < 0.6 * sizes[0]


def test_no_rating_is_read_where_ratings_share_a_prefix(pattern: str) -> None:
    data = dialogs(pattern, "discriminative", shares_prefix=True)
    batch = data.batch(0)
    assert not np.isin(batch["tokens"], data.tokenizer.rating_ids).any()
    apart = batch["prefix"] == 0
    np.testing.assert_array_equal(apart, batch["target_weights"] > 0)
    words = data.tokenizer.decode(batch["tokens"][apart]).split()
    assert sorted(words) == sorted(
        ["SENSIBLE", "INTERESTING", "UNSAFE", "SPECIFIC", "SENSIBLE", "SPECIFIC"]
    )
    assert data.num_items() == 3


def test_bytes_are_those_of_the_texts_that_are_learned(pattern: str) -> None:
    sums = [
        sum(int(data.batch(step)["bytes"].sum()) for step in range(data.num_batches()))
        for data in (dialogs(pattern, objective) for objective in ("generative", "text"))
    ]
    texts = [turn.text for dialog in (CASUAL, LONGER) for turn in dialog.turns]
    assert sums == [9 + 12 + 17, sum(map(len, texts))]


def test_rows_of_both_objectives_mix_and_those_of_text_mix_with_text(pattern: str) -> None:
    def part(objective: str) -> Params:
        fields = {"source": DialogFiles.params(pattern=pattern), "length": 64}
        return DialogInput.params(objective=objective, **fields)

    text = TextInput.params(
        source=TextFiles.params(pattern=pattern), tokenizer=DialogTokenizer, length=64
    )
    for inputs in ({name: part(name) for name in RATED}, {"a": part("text"), "b": text}):
        mixture = Mixture.params(inputs=inputs, weights=dict.fromkeys(inputs, 1.0), batch_size=4)
        assert mixture.build().batch(0)["tokens"].shape == (4, 64)


def test_a_prompt_is_what_the_response_of_an_example_follows(pattern: str) -> None:
    data = dialogs(pattern, batch_size=3, length=96, shuffle=False)
    prompt = data.dialog_prompt(LONGER.turns[:4])
    assert prompt.is_answered
    assert data.tokenizer.decode(data.prompt("What's up?").tokens) == "What's up? RESPONSE"
    tokens = data.batch(0)["tokens"]
    width = len(prompt.tokens)
    assert any(
        (row[i : i + width] == prompt.tokens).all() for row in tokens for i in range(96 - width)
    )


def test_what_is_too_long_is_left_out_and_counted(pattern: str) -> None:
    data = dialogs(pattern, length=20)
    assert data.remarks() == ["left out 1 of 3 examples, whose response is too long for length=20"]
    assert data.num_items() == 2
    with pytest.raises(
        DataError, match="none of 2 dialogs has an example for objective=generative"
    ):
        dialogs(pattern, length=5).num_examples()


def test_other_dialogs_are_other_data(tmp_path: pathlib.Path, pattern: str) -> None:
    other = write(tmp_path / "other.jsonl", CASUAL, Dialog((Turn("user", "hi"), *LONGER.turns)))
    digests = [dialogs(one).check_fingerprint()["digest"] for one in (pattern, pattern, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_length_that_is_not_positive_is_refused(pattern: str) -> None:
    with pytest.raises(ParamError, match="length=0 is not positive"):
        dialogs(pattern, length=0)
