"""A trained model whose weights have 8 bits in memory computes what its evaluations computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.decode import Beam
from lingo.layers import FeedForward, Lora, Quantized, Stack, WeightQDomain
from lingo.runtimes.local import Local, check_one_device, fold_state, quantize_state
from lingo.runtimes.mesh.mesh import Mesh
from lingo.trainer import trained
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

pytestmark = pytest.mark.usefixtures("once_compiled")


def test_it_computes_bit_by_bit_what_rounded_weights_do(
    small: Callable, run: Callable, directory: Any
) -> None:
    params = small(max_steps=2)
    params.all(Stack).wrap(Quantized, "layer", domain=WeightQDomain)
    params.evaluate.weights = "ema"
    run(params, directory)
    plain = Trained(params, RunDirectory(directory))
    int8 = Trained(params, RunDirectory(directory), quantize="int8_weights")
    assert int8.evaluate() == plain.evaluate()
    batch = plain.experiment.train_input.batch(0)
    for name, value in plain.predict(batch).items():
        np.testing.assert_array_equal(int8.predict(batch)[name], value)
    search = Beam.params(max_tokens=5, num_beams=2)
    assert int8.decode(["a", "bc"], search) == plain.decode(["a", "bc"], search)
    assert np.isfinite(int8.loss(batch))


def test_its_weights_take_a_quarter_of_the_bytes_and_can_be_read(
    small: Callable, run: Callable, directory: Any
) -> None:
    params = small(max_steps=2)
    run(params, directory)
    plain = Trained(params, RunDirectory(directory))
    int8 = Trained(params, RunDirectory(directory), quantize="int8_weights")
    arrays = int8._state.weights
    levels = {where for where, value in arrays.items() if value.dtype == np.int8}
    assert len(levels) == 2 * 6  # the products of two layers
    before = sum(plain._state.weights[where].nbytes for where in levels)
    assert sum(arrays[where].nbytes for where in levels) * 4 == before
    assert {*int8.weights} == {*plain.weights}
    for where, value in plain.weights.items():
        half = np.abs(value).max() / 254 if where in levels else 0.0
        np.testing.assert_allclose(int8.weights[where], value, rtol=0, atol=1.001 * half)


def test_it_is_for_one_device(small: Callable, run: Callable, directory: Any) -> None:
    params = small(max_steps=2)
    run(params, directory)
    params.runtime = Mesh.params(data=1)
    words = r"^quantize='int8_weights' computes on one device, not on Mesh: set runtime=Local$"
    with pytest.raises(ParamError, match=words):
        Trained(params, RunDirectory(directory), quantize="int8_weights")
    with pytest.raises(ParamError, match="on one device, not on stage_devices=2: set"):
        check_one_device(Local.params(stage_devices=2).build())


def test_what_is_no_kind_of_weights_is_refused(small: Callable, directory: Any) -> None:
    with pytest.raises(ParamError, match=r"^quantize='int8' is not one of none, int8_weights$"):
        Trained(small(), RunDirectory(directory), quantize="int8")  # type: ignore


def test_what_it_exports_has_its_wrappers_applied_once(
    small: Callable, run: Callable, directory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = small(max_steps=1)
    params.all(FeedForward).wrap(Lora, "layer", rank=2)
    params.task.dtype = "bfloat16"
    params.runtime = Local.params(deterministic=True)
    asked = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: asked.append(1))
    run(params, directory)
    plain = Trained(params, RunDirectory(directory))
    asked.clear()
    int8 = Trained(params, RunDirectory(directory), quantize="int8_weights")
    state = plain._state
    for where, value in state.weights.items():
        if where.endswith("lora_b"):  # initially zeros
            value += 0.5
    int8._state = quantize_state(int8.experiment.task, state)
    expected = fold_state(plain.experiment.task, state).weights
    exported = int8.exported_model().module.weights
    assert {*exported} == {*expected} == {*state.weights}
    for where, value in expected.items():
        assert exported[where].dtype == tf.as_dtype(value.dtype)
        value, found = (np.asarray(tf.cast(v, tf.float32)) for v in (value, exported[where]))
        np.testing.assert_allclose(found, value, rtol=0, atol=np.abs(value).max() / 100)
    assert all(value.dtype == np.float32 for value in int8.weights.values())
    assert int8._program
    assert asked


def test_an_export_of_rounded_weights_starts_one_program(
    small: Callable, run: Callable, directory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = small(max_steps=1)
    run(params, directory)
    seen: list[Any] = []
    monkeypatch.setattr(trained, "export_portable", lambda *args, run, **kw: seen.append(run))
    monkeypatch.setattr(Local, "start", lambda *args: pytest.fail("a program in float32"))
    model = Trained(params, RunDirectory(directory))
    model.export(directory.parent / "out", format="savedmodel", quantize="int8_weights")
    assert len(seen) == 1
