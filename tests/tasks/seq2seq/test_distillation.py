"""Distillation: losses against NumPy, and a student that equals its teacher learns nothing of it.

Axes: B batch, T target positions, V vocabulary.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.config import registry
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import CallInputs, FeedForward, MoE
from lingo.layers.context import apply
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.ops import random
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import Distillation
from tests.tasks.seq2seq.test_task import BATCH, COUNTED, V


def task(teacher_share: float = 0.25, **teacher: Any) -> Params:
    """Returns a student of width 8 that learns from a teacher of the same form, by default."""
    student = EncoderDecoder.params(dim=8)
    params = Distillation.params(
        vocab_size=V,
        model=student,
        teacher=student.copy().set(**teacher),
        teacher_share=teacher_share,
    )
    params.all(DotProductAttention).set(num_heads=2)
    return params


def losses(built: Any, weights: Any, **call: Any) -> dict[str, tf.Tensor]:
    batch = {name: tf.constant(value) for name, value in BATCH.items()}
    return apply(built, weights, batch, method="loss", call=call)[0]


def log_probabilities(weights: Any, name: str) -> np.ndarray:
    """Returns what the student (`model`) or the `teacher` predicts by itself, float64 [B, T, V]."""
    own = {
        path.partition("/")[2]: value
        for path, value in weights.items()
        if path.startswith(f"{name}/")
    }
    model = task().model.build(vocab_size=V)
    batch = {key: tf.constant(value) for key, value in BATCH.items()}
    inputs = CallInputs(segments=batch["segments"], position_ids=batch["positions"])
    source = CallInputs(segments=batch["source_segments"], position_ids=batch["source_positions"])
    logits = apply(
        model,
        own,
        batch["tokens"],
        source_tokens=batch["source_tokens"],
        source_inputs=source,
        inputs=inputs,
    )[0].numpy()
    logits = logits.astype("f8")
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_loss_mixes_targets_and_the_teacher_s_probabilities(draw: Callable) -> None:
    built = task().build()
    weights = draw(built)
    student, teacher = (log_probabilities(weights, name) for name in ("model", "teacher"))
    hard = -np.take_along_axis(student, BATCH["targets"][..., None], -1)[..., 0]
    soft = -(np.exp(teacher) * student).sum(-1)
    found = losses(built, weights)
    np.testing.assert_allclose(found["cross_entropy"], hard[COUNTED].sum(), rtol=1e-5)
    np.testing.assert_allclose(found["distillation"], soft[COUNTED].sum(), rtol=1e-5)
    assert built.coefficients() == {"z_loss": 0.0, "cross_entropy": 0.75, "distillation": 0.25}


def test_a_student_that_equals_its_teacher_learns_nothing_from_it(draw: Callable) -> None:
    built = task().build()
    weights = {name: tf.constant(value) for name, value in draw(built).items()}
    equal = {name: tf.identity(weights[name.replace("teacher/", "model/", 1)]) for name in weights}
    for values, is_zero in ((weights, False), (equal, True)):
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = losses(built, values)["distillation"]
        found = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        largest = {
            kind: max(float(np.abs(g).max()) for name, g in found.items() if name.startswith(kind))
            for kind in ("model/", "teacher/")
        }
        assert (largest["model/"] < 1e-5) == is_zero
        assert largest["teacher/"] == 0.0, "no gradient reaches the teacher"


def test_the_teacher_predicts_as_in_evaluation_and_adds_no_loss_of_its_own(draw: Callable) -> None:
    params = task(dropout_rate=0.5)
    params.teacher.all(FeedForward).wrap(MoE, "expert", num_experts=2)
    built = params.build()
    weights = draw(built)
    batch = {name: tf.constant(value) for name, value in BATCH.items()}
    found = []
    for key in (random.root_key(0), random.root_key(1)):
        call = {"training": True, "key": key, "rows": tf.range(3)}
        loss, sides = apply(built, weights, batch, method="loss", call=call)
        assert not sides.losses
        found.append(float(loss["distillation"]))
    assert found[0] == found[1] == float(losses(built, weights)["distillation"])


def test_what_distillation_cannot_do_is_refused() -> None:
    with pytest.raises(ParamError, match="chunk_size=2, but distillation needs all positions'"):
        task().set(chunk_size=2).build()
    with pytest.raises(ParamError, match="teacher_share"):
        task(teacher_share=1.5).build()


def test_a_distilled_model_starts_from_its_teacher_which_stays_as_it_is(
    tmp_path: pathlib.Path,
) -> None:
    small = ["Docstrings.packages=[rich]", "FeedForward.hidden_dim=8", "Attention.head_dim=4"]
    small += ["CrossAttention.head_dim=4", "max_steps=1", "SpanCorruption.source_length=64"]
    small += ["eval_inputs={}"]
    run, distilled = tmp_path / "teacher", tmp_path / "student"
    lingo.train(registry.get("lm.switch.tiny_switch(num_experts=2)", small).params, run)
    expression = f"lm.switch.tiny_distilled(teacher={str(run)!r}, num_experts=2)"
    lingo.train(registry.get(expression, [*small, "max_steps=2"]).params, distilled)
    teacher, student = lingo.load(run).weights, lingo.load(distilled).weights
    copied = {name: value for name, value in student.items() if name.startswith("teacher/")}
    assert {name.replace("teacher/", "model/", 1) for name in copied} == teacher.keys()
    for name, value in copied.items():
        np.testing.assert_array_equal(value, teacher[name.replace("teacher/", "model/", 1)])
    drawn = {name for name in student if name.startswith("model/") and name not in teacher}
    assert drawn
    assert all("/ffn/" in name for name in drawn), "the networks where the teacher has experts"
