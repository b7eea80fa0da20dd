"""BERT trains on a mesh, and in a pipeline, as it does on one device."""

import functools

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.layers import Attention, Pipeline, Repeat, Stack
from lingo.learner.state import Learner, initial_state
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.bert.task import BertPretraining

B, T, K, V, NUM_STEPS = 4, 6, 3, 19, 3

MESHES = {
    "2d": Mesh.params(data=2, model=2, rules="2d_finalized", shard_weights=True),
    # 3 chosen positions, which 2 does not divide
    "sequence": Mesh.params(data=2, sequence=2, shard_update=True),
    "stage": Mesh.params(stage=2, data=2),
}


def model(stack: type[Stack] = Repeat, **fields: int) -> Params:
    """Two layers with dropout, whose vocabulary and chosen positions no mesh divides."""
    task = BertPretraining.params(vocab_size=V)
    task.model.dim = 8
    task.model.stack = stack.params(layer=task.model.stack.layer, num_layers=2, **fields)
    task.all(Attention).set(num_heads=2)
    return task


def batches() -> dict[str, np.ndarray]:
    """Returns batches of pairs, of different lengths; the last row counts nothing."""
    draw, shape = np.random.default_rng(0), (NUM_STEPS, B)
    lengths = draw.integers(3, T + 1, (*shape, 1))
    place, chosen = np.arange(T), draw.integers(1, K + 1, (*shape, 1))
    arrays = {
        "tokens": draw.integers(0, V, (*shape, T)),
        "types": (place >= 2) & (place < lengths),
        "segments": place < lengths,
        "masked_positions": draw.integers(0, 3, (*shape, K)),
        "masked_ids": draw.integers(0, V, (*shape, K)),
        "is_random": draw.integers(0, 2, shape),
        "rows": np.broadcast_to(np.arange(B), shape),
    }
    return {name: array.astype(np.int32) for name, array in arrays.items()} | {
        "masked_weights": (np.arange(K) < chosen).astype(np.float32),
        "weights": np.broadcast_to(np.arange(B) < B - 1, shape).astype(np.float32),
    }


def trained(task: Params, runtime: Params) -> tuple[dict, dict]:
    """Returns what the steps report, and the weights after them."""
    learner = Learner(task.build(), Sgd.params(learning_rate=0.5, max_grad_norm=5.0).build())
    program = runtime.build().start(learner, initial_state(learner))
    return program.train(batches())["scalars"], program.state().weights


on_one_device = functools.cache(lambda: trained(model(), Local.params()))


@pytest.mark.parametrize("mesh", MESHES)
def test_steps_are_those_of_one_device(mesh: str) -> None:
    stages = {"num_stages": 2, "num_micro_batches": 2}
    task = model(Pipeline, **stages) if mesh == "stage" else model()
    (expected, weights), (found, others) = on_one_device(), trained(task, MESHES[mesh])
    for term in ("masked_tokens", "next_sentence"):
        np.testing.assert_allclose(found[f"loss/{term}"], expected[f"loss/{term}"], rtol=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
