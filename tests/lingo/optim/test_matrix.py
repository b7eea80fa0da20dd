"""Which weights are matrices, of which sizes, and which move by Adam."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.optim.adam import AdamW
from lingo.optim.matrix import as_matrices, matrix_shape
from lingo.optim.muon import Muon
from lingo.optim.optimizer import Weight
from lingo.optim.shampoo import Shampoo


@pytest.mark.parametrize(
    ("shape", "fan_in", "dims", "expected"),
    [
        ((8, 6), 8, ("embed", "mlp"), (8, 6)),
        ((8, 4, 2), 8, ("embed", "heads", "head_dim"), (8, 8)),  # queries
        ((4, 2, 6), 8, ("heads", "head_dim", "embed"), (8, 6)),  # an attention's output
        ((3, 3, 5, 7), 45, (None,) * 4, (45, 7)),  # a convolution
        ((8, 6), None, (), (8, 6)),
        ((4, 3, 2), 99, (), (4, 6)),  # no axes have so many inputs
        ((9, 4), 9, ("vocab", "embed"), None),
        ((4, 9), 4, ("embed", "vocab"), None),
        ((5,), 5, ("embed",), None),
        ((), None, (), None),
    ],
)
def test_inputs_and_outputs_of_a_weight(shape, fan_in, dims, expected):
    assert matrix_shape(Weight("w", ("w",), shape, fan_in=fan_in, dims=dims)) == expected
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, *shape), 1, fan_in=fan_in, dims=dims)
    assert matrix_shape(stack) == expected
    if expected:
        assert as_matrices(stack, tf.zeros([2, *shape])).shape == (2, *expected)


@pytest.mark.parametrize("cls", [Muon, Shampoo])
def test_vectors_tables_and_named_weights_move_by_adamw(cls, run, start, gradients):
    params = cls.params(learning_rate=0.1, weight_decay=0.3, adam=["head"])
    adam = AdamW.params(learning_rate=0.1, weight_decay=0.3)
    for weight in (
        Weight("b", ("b",), (4,)),
        Weight("table", ("table",), (4, 3), dims=("vocab", "embed")),
        Weight("head", ("head",), (4, 3)),
    ):
        value, grads = start(weight.shape), gradients(weight.shape, 3)
        ours, slots = run(params, value, grads, weight)
        expected, kept = run(adam, value, grads, weight)
        np.testing.assert_array_equal(ours, expected)
        assert slots.keys() == kept.keys()


@pytest.mark.parametrize("cls", [Muon, Shampoo])
def test_a_pattern_may_name_one_of_several_stacked_layers(cls, run, start, gradients):
    params = cls.params(learning_rate=0.1, adam=["l/1/w"])
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, 4, 3), 1)
    value, grads = start((2, 4, 3)), gradients((2, 4, 3), 3)
    together, _ = run(params, value, grads, stack)
    for i in range(2):
        one = Weight(f"l/{i}/w", (f"l/{i}/w",), (4, 3))
        alone, _ = run(params, value[i], [grad[i] for grad in grads], one)
        np.testing.assert_allclose(together[i], alone, atol=2e-6)


def test_a_pattern_that_matches_no_weight_is_refused():
    with pytest.raises(ParamError, match="'header' matches none of 1 weights"):
        Muon.params(learning_rate=0.1, adam=["header"]).build().check_weights(
            [Weight("head", ("head",), (4, 3))]
        )
