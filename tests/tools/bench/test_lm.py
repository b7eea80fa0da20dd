"""What is compared is the same: lingo's model, the one written by hand and the one in Keras."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.learner.state import initial_state
from lingo.learner.step import train_step
from tools.bench import lm
from tools.bench.lm import Variant
from tools.rivals.keras_lm import KerasLm
from tools.rivals.plain_lm import PlainTraining, Size, initial_weights

SIZE = Size(dim=8, num_layers=2, num_heads=2, hidden_dim=12, vocab_size=259, length=6, batch_size=3)
NAMES = {
    "embedding/table": "table",
    "norm/scale": "scale",
    "attention_norm/scale": "a_scale",
    "ffn_norm/scale": "f_scale",
    **{f"attention/w_{name}": name for name in ("query", "key", "value", "output")},
    **{f"ffn/w_{name}": name for name in ("in", "out")},
}


def by_hand(path: str) -> str:
    """Returns the name that the hand-written model gives to a weight of lingo's."""
    name = path.removeprefix("model/")
    if not name.startswith("stack/layers/"):
        return NAMES[name]
    layer, name = name.removeprefix("stack/layers/").split("/", 1)
    return f"{layer}/{NAMES[name]}"


@pytest.mark.parametrize("variant", [Variant(), Variant(chunk_size=4, remat=True)])
def test_lingo_and_the_model_by_hand_have_the_same_loss_and_update(variant):
    learner = lm.experiment(SIZE, variant).build().learner
    weights = initial_weights(SIZE)
    state = initial_state(learner)
    state = state._replace(weights={path: weights[by_hand(path)] for path in state.weights})
    batch = {name: tf.constant(value) for name, value in lm.batch(SIZE).items()}
    after, report = tf.function(lambda s, b: train_step(learner, s, b), autograph=False)(
        tf.nest.map_structure(tf.constant, state), batch
    )
    plain = PlainTraining(SIZE, xla=False)
    loss, norm = plain.step(batch)
    assert float(report["scalars"]["loss/total"]) == pytest.approx(float(loss), rel=1e-5)
    assert float(report["scalars"]["learner/grad_norm"]) == pytest.approx(float(norm), rel=1e-4)
    for path, value in after.weights.items():
        np.testing.assert_allclose(value, plain._w[by_hand(path)], rtol=1e-3, atol=1e-5)


def test_the_model_in_keras_has_the_same_sizes():
    model = KerasLm(SIZE)
    batch = {name: tf.constant(value) for name, value in lm.batch(SIZE).items()}
    assert model(batch).shape == (3, 6, 259)
    count = sum(value.size for value in initial_weights(SIZE).values())
    assert model.count_params() == count
