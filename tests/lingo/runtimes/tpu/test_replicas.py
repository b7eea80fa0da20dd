"""Replicas on a TPU, as far as it goes without one: every form is traced by `TPUStrategy`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data import ImageInput
from lingo.data.prompt import Prompt
from lingo.datasets import Digits
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.layers import BatchNorm, Chain
from lingo.layers.vision.image_head import ImageHead
from lingo.learner.state import initial_state
from lingo.optim import Sgd
from lingo.processes.processes import ALONE
from lingo.runtimes.replicated.program import ReplicatedProgram
from lingo.runtimes.replicated.replicated import Replicated
from tasks.image.task import ImageClassification
from tests.lingo.runtimes.tpu.conftest import Resolver, raises_without_a_tpu, torus

NUM_REPLICAS = 8
TINY = "lm.source.tiny(model_dim=16, num_layers=2)"
MIXTURE = "FeedForward=MoE(expert=_, num_experts=4)"
PIPELINE = "Stack=Pipeline(num_stages=2, num_micro_batches=2)"
SMALL = ("train_input.batch_size=16", "eval_inputs={}")


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the strategy of 8 absent cores; copies of variables are on this processor."""
    from tensorflow.python.distribute.tpu_values import TPUSyncOnReadVariable
    from tensorflow.python.tpu import tpu_strategy_util

    monkeypatch.setitem(tpu_strategy_util._INITIALIZED_TPU_SYSTEMS, "", torus())

    def variable(program: ReplicatedProgram, value: Any, kept: Any) -> Any:
        first = np.asarray(value) if kept.rows is None else np.zeros(kept.chunk_shape, np.float32)
        with tf.device("CPU:0"):
            copies = [tf.Variable(first) for _ in range(NUM_REPLICAS)]
        aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return TPUSyncOnReadVariable(program._strategy, copies, aggregation)

    monkeypatch.setattr(ReplicatedProgram, "_variable", variable)
    return tf.distribute.TPUStrategy(Resolver())


def start(strategy: Any, params: Params, **fields: Any) -> tuple[Experiment, ReplicatedProgram]:
    """Returns an experiment, and its program on the replicas of a strategy."""
    built = params.set(runtime=Replicated.params(tpu="absent", **fields)).build()
    learner = built.learner
    built.train_input.prepare()
    layout = built.runtime._layout(learner, NUM_REPLICAS) if built.runtime.p.shard_update else None
    state = initial_state(learner)
    return built, ReplicatedProgram(learner, state, strategy, ALONE, layout=layout, xla=False)


def operations(function: Any) -> Counter[str]:
    """Counts the operations of the only program of a function, by type."""
    (concrete,) = function._list_all_concrete_functions()
    graph = concrete.graph.as_graph_def()
    inside = [node.op for function in graph.library.function for node in function.node_def]
    return Counter([*inside, *(node.op for node in graph.node)])


FORMS = {
    "plain": ((), {}),
    "sharded update": ((), {"shard_update": True}),
    "gathered in bfloat16": ((), {"shard_update": True, "gather_dtype": "bfloat16"}),
    "experts": ((MIXTURE,), {}),
    "experts, sharded update": ((MIXTURE,), {"shard_update": True}),
    "pipeline": ((PIPELINE,), {}),
    "parts of a batch": (("accumulation_steps=2",), {}),
}


@pytest.mark.parametrize(("overrides", "fields"), FORMS.values(), ids=list(FORMS))
def test_steps_are_traced_with_sums_over_replicas(strategy, overrides, fields):
    built, program = start(strategy, lingo.get(TINY, *SMALL, *overrides), **fields)
    program.compile(built.train_input.specs(), num_steps=2)
    found = operations(program._train)
    assert found["CrossReplicaSum"] > 0
    assert found["TPUReplicateMetadata"] == 1
    assert not {"CollectiveReduceV2", "NcclAllReduce"} & {*found}


def test_statistics_of_groups_that_replicas_share_are_traced(strategy):
    def sums(statistics_over: int) -> int:
        norm = BatchNorm.params(dim=1, statistics_over=statistics_over)
        model = Chain.params(layers=[norm, ImageHead.params(dim=1, num_classes=10)])
        task = ImageClassification.params(model=model, num_classes=10, image_shape=(8, 8, 1))
        data = ImageInput.params(source=Digits, batch_size=16)
        sgd = Sgd.params(learning_rate=0.1)
        params = Experiment.params(task=task, train_input=data, optimizer=sgd, max_steps=1)
        built, program = start(strategy, params)
        program.compile(built.train_input.specs(), num_steps=1)
        return operations(program._train)["CrossReplicaSum"]

    assert sums(4) > sums(2)  # two replicas of two examples share a group of four


@pytest.mark.parametrize("fields", [{}, {"shard_update": True}], ids=str)
def test_evaluation_prediction_and_decoding_are_traced_and_then_want_a_tpu(strategy, fields):
    built, program = start(strategy, lingo.get(TINY, *SMALL), **fields)
    batch = built.train_input.batch(0)
    prompts = prompt_batch([Prompt(np.int32([1, 2])), Prompt(np.int32([3]))], rows=[0, 1], end_id=0)
    for call, function in (
        (lambda: program.evaluate(batch), program._evaluate),
        (lambda: program.predict(batch), program._predict),
        (lambda: program.decode(prompts, Sampling.params(max_tokens=2).build()), program._decode),
    ):
        with raises_without_a_tpu():
            call()
        assert operations(function)["TPUReplicateMetadata"] == 1
