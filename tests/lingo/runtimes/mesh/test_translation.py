"""Models of translation train on a mesh, and in pipelines, as they do on one device."""

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.layers import Embedding, LayerNorm, Pipeline, Repeat, SoftmaxHead
from lingo.learner.state import Learner, initial_state
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from params.mlperf.gnmt import gnmt
from params.mt.wmt14 import transformer
from tasks.seq2seq.task import SequenceToSequence

B, S, T, V, NUM_STEPS = 4, 6, 5, 19, 5


def small(**fields: object) -> Params:
    heads = fields.pop("heads")
    return transformer(
        dim=16, hidden_dim=24, num_layers=2, layer_dropout_rate=0.1, heads=heads, **fields
    )


def wmt14() -> Params:
    heads = {"num_heads": 2, "use_bias": True, "scale_features": True}
    head = SoftmaxHead.params(use_bias=True)
    return small(heads=heads, source_embedding=Embedding, norm=None, head=head, dropout_rate=0.1)


def mlperf() -> Params:
    heads = {"num_heads": 2, "dropout_rate": 0.1}
    return small(heads=heads, norm=LayerNorm, dropout_rate=0.1)


def in_stages() -> Params:
    model = mlperf()
    model.all(Repeat).swap(Pipeline, num_stages=2, num_micro_batches=2, remat=True)
    return model


def recurrent() -> Params:
    return gnmt(dim=16, num_layers=3)


def batches() -> dict[str, np.ndarray]:
    """Five batches of rows with two pairs, the second one shorter; the last row is padding."""
    draw = np.random.default_rng(0)

    def side(length: int, cut: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        place = np.arange(length)
        segments = np.where(place < cut, 1, np.where(place < end, 2, 0))
        positions = np.where(place < cut, place, np.where(place < end, place - cut, 0))
        shape = (NUM_STEPS, B, length)
        return tuple(np.broadcast_to(x, shape).astype(np.int32) for x in (segments, positions))

    source_segments, source_positions = side(S, 3, 5)
    segments, positions = side(T, 2, 4)
    tokens, targets = draw.integers(0, V, (2, NUM_STEPS, B, T), np.int32)
    rows = np.arange(NUM_STEPS * B, dtype=np.int32).reshape(NUM_STEPS, B)
    return {
        "source_tokens": draw.integers(0, V, (NUM_STEPS, B, S), np.int32),
        "source_segments": source_segments,
        "source_positions": source_positions,
        "tokens": tokens,
        "targets": targets,
        "segments": segments,
        "positions": positions,
        "weights": np.broadcast_to(np.arange(B) < B - 1, (NUM_STEPS, B)).astype(np.float32),
        "rows": rows % B,
    }


def trained(model: Params, runtime: Params) -> tuple[dict, dict]:
    """Returns what five steps report, and the weights after them."""
    task = SequenceToSequence.params(model=model, vocab_size=V, label_smoothing=0.1).build()
    learner = Learner(task, Sgd.params(learning_rate=0.5, max_grad_norm=5.0).build())
    program = runtime.build().start(learner, initial_state(learner))
    return program.train(batches())["scalars"], program.state().weights


@pytest.mark.parametrize(
    ("made", "mesh"),
    [
        (wmt14, Mesh.params(data=2, model=2)),
        (mlperf, Mesh.params(data=2, model=2, shard_update=True)),
        (in_stages, Mesh.params(stage=2, data=2)),
        (recurrent, Mesh.params(data=2, model=2)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_five_steps_are_those_of_one_device(made: Callable[[], Params], mesh: Params) -> None:
    one = mlperf if made is in_stages else made
    (expected, weights), (found, others) = trained(one(), Local.params()), trained(made(), mesh)
    np.testing.assert_allclose(found["loss/total"], expected["loss/total"], rtol=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
