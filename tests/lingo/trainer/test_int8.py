"""A trained model whose weights have 8 bits in memory computes what its evaluations computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.decode import Beam
from lingo.layers import Quantized, Stack, WeightQDomain
from lingo.runtimes.mesh.mesh import Mesh
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
    with pytest.raises(ParamError, match="int8_weights computes on one device, not on Mesh"):
        Trained(params, RunDirectory(directory), quantize="int8_weights")
