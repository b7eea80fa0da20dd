"""A pipeline in a model: losses, gradients, metrics and texts are those of the plain stack.

`test_repeat.py` compares all that a layer may do in a stack; here are models, and what is refused.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.inspection.conformance.layer_call import by_name
from lingo.layers import Attention, FeedForward, Linear, MoE, Pipeline, Stack, TopNRouter, context
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.sequence.positions import RelativeBias
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.learner.state import Learner, initial_state, initial_value
from lingo.learner.step import decode_batch, evaluate_batch, local_sums
from lingo.ops import random
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tasks.seq2seq.task import SequenceToSequence
from tests.lingo.layers.stacks.compare import assert_same

B, T, V = 8, 4, 11

Found = dict[str, np.ndarray]


def rows(num: int) -> dict[str, np.ndarray]:
    """Returns a batch of two documents a row; the last row is all padding, one ends in it."""
    draw = np.random.default_rng(0)
    segments = np.tile(np.array([1, 1, 2, 2], "i"), (num, 1))
    segments[0, 3], segments[-1] = 0, 0
    return {
        "tokens": draw.integers(0, V, [num, T], np.int32),
        "targets": draw.integers(0, V, [num, T], np.int32),
        "segments": segments,
        "positions": np.tile(np.array([0, 1, 0, 1], "i"), (num, 1)),
        "weights": np.array([*[1] * (num - 1), 0], "f"),
        "rows": np.arange(num, dtype=np.int32),
    }


def model(stack: type[Stack] = Stack, *, num_layers: int = 8, **fields: Any) -> Params:
    """Returns a Transformer of width 8 with dropout."""
    layer = TransformerLayer.params(
        attention=Attention.params(num_heads=2), dropout_rate=0.1, ffn=FeedForward.params()
    )
    layer.ffn.hidden_dim = 16
    made = stack.params(layer=layer, num_layers=num_layers, **fields)
    return LanguageModeling.params(vocab_size=V, model=LanguageModel.params(dim=8, stack=made))


def sparse(stack: type[Stack] = Stack, *, group_size: int | None, **fields: Any) -> Params:
    """Returns two layers whose every expert has room for half the tokens of a group."""
    params = model(stack, num_layers=2, **fields)
    router = TopNRouter.params(z_loss=1e-2)
    mixture = {"router": router, "group_size": group_size, "min_capacity": 1}
    params.all(FeedForward).wrap(MoE, "expert", num_experts=2, capacity_factor=1.0, **mixture)
    return params


def pairs(stack: type[Stack] = Stack, **fields: Any) -> Params:
    """Returns an encoder-decoder of two layers on each side, each side with one bias."""
    params = SequenceToSequence.params(vocab_size=V)
    params.model.set(dim=8, dropout_rate=0.1)
    params.all(DotProductAttention).set(num_heads=2)
    params.all(TransformerLayer).set(dropout_rate=0.1)
    bias = RelativeBias.params(num_buckets=4, max_distance=3, shared=True)
    params.all(Attention).set(positions=bias)
    params.all(Stack).swap(stack, num_layers=2, **fields)
    return params


def weights_of(layer: Any) -> dict[str, Any]:
    return {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}


def step(params: Params, batch: Mapping[str, np.ndarray], *, any_length: bool = False) -> Found:
    """Returns all that a training step adds up on one device.

    Args:
        params: of the task.
        batch: of it.
        any_length: whether the trace is one for rows of any length.
    """
    task = params.build()
    shapes = {k: v.shape if v.ndim < 2 or not any_length else (B, None) for k, v in batch.items()}
    specs = {k: tf.TensorSpec(shapes[k], v.dtype) for k, v in batch.items()}
    weights = weights_of(task)

    @tf.function(autograph=False, input_signature=[specs])
    def sums(batch: Any) -> Any:
        return local_sums(
            task, weights, {}, batch, task.loss_denominators(batch), random.root_key(1)
        )

    found = sums(tf.nest.map_structure(tf.constant, dict(batch)))
    metrics = {f"{k}/{part}": v for k, m in found["metrics"].items() for part, v in m.items()}
    kinds = {"loss": found["losses"], "d": found["gradients"], "metric": metrics}
    return {
        f"{kind} {k}": v for kind, tensors in kinds.items() for k, v in by_name(tensors).items()
    }


def evaluation(params: Params, batch: Mapping[str, np.ndarray]) -> Found:
    task = params.build()
    found = evaluate_batch(
        task, weights_of(task), {}, tf.nest.map_structure(tf.constant, dict(batch))
    )
    return {f"{k}/{part}": v.numpy() for k, m in found.items() for part, v in m.items()}


@functools.cache
def plain(make: Callable[..., Params], **fields: Any) -> Found:
    return step(make(**fields), rows(B))


SIZES = [*itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (False, True))]


@pytest.mark.parametrize(("num_stages", "num", "remat"), SIZES)
def test_losses_and_gradients_are_those_of_the_stack(num_stages, num, remat):
    fields = {"num_stages": num_stages, "num_micro_batches": num, "remat": remat}
    assert_same(step(model(Pipeline, **fields), rows(B)), plain(model))


def test_rows_may_be_of_any_length() -> None:
    params = model(Pipeline, num_stages=2, num_micro_batches=2, remat=True)
    assert_same(step(params, rows(B), any_length=True), plain(model))


@pytest.mark.parametrize(("num", "remat"), [(2, False), (8, True)])
def test_so_are_those_of_two_repeats(num: int, remat: bool) -> None:
    fields = {"num_micro_batches": num, "circular_repeats": 2, "remat": remat}
    assert_same(step(model(Pipeline, num_stages=2, **fields), rows(B)), plain(model))


def test_metrics_of_a_batch_that_is_no_micro_batches_are_those_of_the_stack() -> None:
    found = evaluation(model(Pipeline, num_stages=4, num_micro_batches=4), rows(7))
    assert {"loss/sum", "accuracy/sum"} <= found.keys()
    assert_same(found, evaluation(model(), rows(7)))


def test_greedy_texts_are_those_of_the_stack() -> None:
    prompts = [Prompt(np.array(ids, "i")) for ids in ([2, 5, 6], [3, 4], [7, 8, 9, 1])]
    batch = prompt_batch(prompts, rows=range(len(prompts)), end_id=0)
    sampling = Sampling.params(max_tokens=5, temperature=0.0).build()

    def texts(params: Params) -> Any:
        task = params.build()
        given = tf.nest.map_structure(tf.constant, batch)
        return decode_batch(task, weights_of(task), {}, given, sampling, random.root_key(0))

    fields = {"num_stages": 2, "num_micro_batches": 2, "circular_repeats": 2}
    found, expected = texts(model(Pipeline, num_layers=4, **fields)), texts(model(num_layers=4))
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=1e-5, atol=1e-6)


def test_the_graph_grows_with_neither_micro_batches_nor_layers() -> None:
    def num_nodes(num_layers: int, num: int) -> int:
        params = model(Pipeline, num_layers=num_layers, num_stages=2, num_micro_batches=num)
        params.model.dim, params.model.stack.layer.ffn.hidden_dim = 4, 8
        learner = Learner(params.build(), Sgd.params(learning_rate=0.1).build())
        program = Local.params().build().start(learner, initial_state(learner))
        specs = {k: (v.shape, v.dtype.name) for k, v in rows(B).items()}
        graph = program.graph(specs).as_graph_def()
        return len(graph.node) + sum(len(f.node_def) for f in graph.library.function)

    # weights of less than a thousand numbers: zeros of more are two nodes in place of one
    assert num_nodes(4, 2) == num_nodes(16, 8)


@pytest.mark.parametrize(("rows_of_a_group", "remat"), [(None, False), (2, True)])
def test_experts_see_the_groups_that_they_do_in_the_stack(rows_of_a_group, remat):
    group_size = rows_of_a_group and rows_of_a_group * T
    fields = {"num_stages": 2, "num_micro_batches": 4, "remat": remat}
    expected = plain(sparse, group_size=group_size)
    assert expected["metric moe/dropped_fraction/sum"] > 0  # groups of other tokens would show
    assert_same(step(sparse(Pipeline, group_size=group_size, **fields), rows(B)), expected)


def test_the_memory_goes_along_and_the_bias_is_the_same_for_all() -> None:
    source = {f"source_{name}": rows(B)[name] for name in ("tokens", "segments", "positions")}
    source["source_tokens"] = source["source_tokens"][:, ::-1]
    fields = {"num_stages": 2, "num_micro_batches": 4, "remat": True}
    expected = step(pairs(), rows(B) | source)
    for table in ("encoder_table", "decoder_table"):
        assert np.abs(expected[f"d model/{table}"]).max() > 1e-4
    assert_same(step(pairs(Pipeline, **fields), rows(B) | source), expected)


def linear(**fields: Any) -> Params:
    return Pipeline.params(layer=Linear.params(dim=2, output_dim=2), **fields)


def trained(params: Params, num_rows: int) -> None:
    layer = params.build()
    x = tf.ones([num_rows, T, layer.p.layer.dim])
    context.apply(layer, weights_of(layer), x, call={"training": True})


def test_repeats_need_a_micro_batch_for_every_stage() -> None:
    fields = {"num_layers": 8, "num_stages": 4, "circular_repeats": 2}
    with pytest.raises(ParamError, match="num_micro_batches=3 is less than num_stages=4"):
        linear(num_micro_batches=3, **fields).build()
    linear(num_micro_batches=4, **fields).build()


def test_a_repeat_without_layers_is_refused() -> None:
    fields = {"num_stages": 2, "num_micro_batches": 2, "circular_repeats": 3}
    with pytest.raises(ParamError, match="num_layers=8: 2 for each of num_stages=2 leave no layer"):
        linear(num_layers=8, **fields).build()
    linear(num_layers=9, **fields).build()


def test_a_group_that_is_no_part_of_a_micro_batch_is_refused() -> None:
    mixture = MoE.params(dim=2, num_experts=2, group_size=4 * T)
    params = Pipeline.params(layer=mixture, num_layers=2, num_stages=2, num_micro_batches=4)
    wanted = r"8 rows .*=4 equal parts of whole groups of 4 neighbouring rows.* multiple of 16"
    with pytest.raises(ParamError, match=wanted):
        trained(params, 8)
