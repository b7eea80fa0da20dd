"""Every kind of layer computes on a mesh what it computes on one device, whatever its sizes."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.layers.feed_forward import FeedForward
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.token_choice import GShardRouter, TopNRouter
from lingo.layers.norm import LayerNorm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.mask import Causal, LocalWindow
from lingo.layers.sequence.positions import Alibi, LearnedPositions, RelativeBias, Rotary
from lingo.layers.sequence.recurrent import Gru, RecurrentLayer
from lingo.layers.sequence.softmax import SoftmaxHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.wrap.remat import Remat
from lingo.layers.wrap.reweighted import Lora, WeightNorm
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.module import parse
from lingo.models.speech.conformer import ConformerLayer
from lingo.ops import blockwise_attention
from lingo.ops.blockwise_attention import BlockSize
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

Model = Callable[[], Params]

B, T, V, E = 6, 12, 19, 8


def transformer(**attention: Any) -> Params:
    """A block of four heads with dropout."""
    heads = Attention.params(**{"num_heads": 4, "positions": Rotary} | attention)
    return TransformerLayer.params(attention=heads, dropout_rate=0.1)


def model(stack: Params, **fields: Any) -> Params:
    return LanguageModeling.params(
        vocab_size=V, model=LanguageModel.params(dim=16, stack=stack, **fields)
    )


def grouped_and_gated() -> Params:
    """Two heads share keys; gated, with biases; the embedding is the head; logits in chunks."""
    layer = transformer(num_kv_heads=2, use_bias=True, qk_norm=RmsNorm, scale_features=True)
    layer.ffn.set(gated=True, activation="silu", use_bias=True, dropout_rate=0.1)
    return model(Stack.params(layer=layer)).set(chunk_size=5, z_loss=1e-3)


def odd() -> Params:
    """Three layers of three heads, one for all keys; a hidden width of 7, a head of its own."""
    layer = transformer(num_heads=3, num_kv_heads=1, head_dim=6, dropout_rate=0.1)
    layer.ffn.hidden_dim = 7
    stack = Repeat.params(layer=Remat.params(layer=layer), num_layers=3)
    return model(stack, head=SoftmaxHead)


def reweighted() -> Params:
    """Low-rank changes, a window, T5's bias; normalized weights, ALiBi; positions; LayerNorm."""
    window = transformer(positions=RelativeBias, mask=LocalWindow.params(window=4))
    layers = [
        Lora.params(layer=window, rank=3),
        WeightNorm.params(layer=transformer(positions=Alibi)),
    ]
    positions = LearnedPositions.params(max_length=20)
    return model(Repeat.params(layer=layers, num_layers=2), positions=positions, norm=LayerNorm)


def recurrent() -> Params:
    """LSTM and GRU, the first of another width than the model."""
    networks = [RecurrentLayer.params(dropout_rate=0.1) for _ in range(2)]
    networks[0].network.hidden_dim = 10
    networks[1].network = Gru
    return model(Stack.params(layer=networks, num_layers=2))


def conformer() -> Params:
    """A causal layer, and one of a window, whose convolution reads later frames, too."""
    layers = [ConformerLayer.params(dropout_rate=0.1, norm=LayerNorm) for _ in range(2)]
    for layer in layers:
        layer.attention.num_heads = 2
        layer.conv.set(kernel=4, norm=BatchNorm.params(statistics_over=B, epsilon=0.1))
    layers[0].attention.mask = Causal
    layers[0].conv.is_causal = True
    layers[1].attention.mask = LocalWindow.params(window=4)
    return model(Stack.params(layer=layers, num_layers=2))


def blocked() -> Params:
    """Two heads share keys, which are attended to by blocks, of several documents."""
    return model(Stack.params(layer=transformer(num_kv_heads=2, dropout_rate=0.1, blockwise=True)))


def mixture(router: Params, group_size: int | None = None) -> Params:
    """Two scanned layers, some of eight experts a token, dropout inside and around them."""
    expert = FeedForward.params(gated=True, use_bias=True, hidden_dim=6, dropout_rate=0.3)
    moe = MoE.params(expert=expert, num_experts=E, router=router, group_size=group_size)
    layer = transformer(num_heads=2).set(ffn=moe)
    return model(Repeat.params(layer=layer, num_layers=2))


def experts() -> Params:
    return mixture(TopNRouter.params(z_loss=1e-3))


def grouped_experts() -> Params:
    """Groups of two rows, whose choices are jittered."""
    return mixture(GShardRouter.params(jitter=0.1, z_loss=1e-3), group_size=2 * T)


MODELS = [grouped_and_gated, odd, reweighted, recurrent, experts]
PARTS = {odd: 3}
"""Parts of a batch that are computed one after the other: of 6 rows on 4 devices, too."""

MESHES = {
    "model": Mesh.params(data=2, model=2),
    "2d": Mesh.params(data=2, model=2, rules="2d_finalized", shard_weights=True),
    "whole batch": Mesh.params(data=2, model=2, rules="2d_attempt_1"),
    "update": Mesh.params(data=4, model=2, shard_update=True),
    "sequence": Mesh.params(sequence=2, expert=2, model=2),
    "data and sequence": Mesh.params(data=2, sequence=4),
    "expert": Mesh.params(expert=8),
    "data and expert": Mesh.params(data=2, expert=4),
    "split experts": Mesh.params(expert=2, model=2, rules="2d_finalized"),
    "whole batch of experts": Mesh.params(data=2, expert=4, rules="2d_attempt_1"),
}
CASES = [
    (grouped_and_gated, "model"),
    (reweighted, "model"),
    *((odd, mesh) for mesh in ("2d", "update", "sequence")),
    (recurrent, "whole batch"),
    (blocked, "sequence"),
    *((conformer, mesh) for mesh in ("model", "data and sequence")),
    *((experts, mesh) for mesh in ("expert", "split experts", "whole batch of experts")),
    (grouped_experts, "data and expert"),
]


def batch(rows: int = B) -> dict[str, np.ndarray]:
    """Two documents a row, of different lengths; the last row is padding."""
    draw = np.random.default_rng(0)
    tokens, targets = draw.integers(0, V, (2, rows, T), np.int32)
    cut = draw.integers(2, T - 2, (rows, 1))
    place = np.arange(T)[None]
    return {
        "tokens": tokens,
        "targets": targets,
        "segments": np.where(place < cut, 1, 2).astype(np.int32),
        "positions": np.where(place < cut, place, place - cut).astype(np.int32),
        "weights": (np.arange(rows) < rows - 1).astype(np.float32),
        "rows": np.arange(rows, dtype=np.int32),
    }


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise_attention, "_SQUARE", BlockSize(5, 4))


PROMPTS = ([1, 2, 3], [4, 5], [6, 7, 8, 9, 1])


def started(made: Model, mesh: Params) -> Program:
    optimizer = Sgd.params(learning_rate=0.5, max_grad_norm=1.0).build()
    learner = Learner(made().build(), optimizer, accumulation_steps=PARTS.get(made, 1))
    return mesh.build().start(learner, initial_state(learner))


class Step(NamedTuple):
    """What a program reports of a step, and its state after it."""

    scalars: dict[str, Any]
    metrics: dict[str, dict[str, Any]]
    state: TrainState


@functools.cache
def step_on_one_device(made: Model) -> Step:
    return stepped(started(made, Local.params()))


def stepped(program: Program) -> Step:
    report = program.train({name: array[None] for name, array in batch().items()})
    return Step(report["scalars"], report["metric_states"], program.state())


@pytest.mark.parametrize(
    ("made", "mesh"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_step_is_that_of_one_device(made, mesh):
    one, many = step_on_one_device(made), stepped(started(made, MESHES[mesh]))
    for name, value in one.scalars.items():
        np.testing.assert_allclose(many.scalars[name], value, rtol=1e-5, err_msg=name)
    for name, value in one.state.weights.items():
        np.testing.assert_allclose(
            many.state.weights[name], value, rtol=1e-4, atol=2e-6, err_msg=name
        )
    for name, value in one.state.state.items():
        np.testing.assert_allclose(many.state.state[name], value, rtol=1e-5, err_msg=name)
    assert_same_metrics(many.metrics, one.metrics)
    if made is grouped_experts:
        dropped = one.metrics["moe/dropped_choices_fraction"]
        assert np.sum(dropped["sum"]) > 0, "or groups of other rows would not show"


def assert_same_metrics(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, state in expected.items():
        for part, value in state.items():
            np.testing.assert_allclose(found[name][part], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "made",
    MODELS,
    ids=lambda made: made.__name__,
)
def test_metrics_and_texts_are_those_of_one_device(made):
    mesh = MESHES["data and expert" if made is experts else "update"]
    one, many = started(made, Local.params()), started(made, mesh)
    assert_same_metrics(many.evaluate(batch()), one.evaluate(batch()))
    prompts = [Prompt(np.array(prompt, np.int32)) for prompt in PROMPTS]
    prompts = prompt_batch(prompts, rows=range(len(prompts)), end_id=0)
    sampling = Sampling.params(max_tokens=5, num_samples=2).build()
    expected, found = one.decode(prompts, sampling), many.decode(prompts, sampling)
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=1e-5)


def test_attention_by_blocks_gathers_split_positions_once_not_for_each_block():
    learner = Learner(blocked().build(), Sgd.params(learning_rate=0.5).build())
    specs = {name: (array.shape, array.dtype.name) for name, array in batch(8).items()}
    program: Any = MESHES["sequence"].build().compile_program(learner, specs)
    found = [c for c in collectives(parse(program.text), program.mesh) if len(c.array.shape) > 3]
    gathered = [c for c in found if c.kind == "all-gather"]
    assert len(gathered) == 4, "queries, keys, values, and the gradient of the result"
    assert all(c.axes == ("sequence",) for c in gathered), "never the heads or the batch"


def test_tokens_travel_to_experts_and_no_expert_to_tokens():
    learner = Learner(experts().build(), Sgd.params(learning_rate=0.5).build())
    specs = {name: ((8, *array.shape[1:]), array.dtype.name) for name, array in batch().items()}
    program: Any = MESHES["expert"].build().compile_program(learner, specs)
    found = collectives(parse(program.text), program.mesh)
    vectors = [c for c in found if c.kind == "all-to-all" and c.array.dtype == "f32"]
    assert len(vectors) == 4  # there and back, and their gradients
    assert all(c.runs.times == 2 for c in vectors)  # a layer
    gathered = [c.array.shape for c in found if c.kind == "all-gather"]
    one_matrix_of_all_experts = E * 16 * 6
    assert all(np.prod(shape) < one_matrix_of_all_experts for shape in gathered), gathered
