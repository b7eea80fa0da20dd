"""Tests with TensorFlow's kernels for TPUs: each operation of a program has one, without a TPU.

Only `tensorflow-tpu` has these kernels. `make tpu-env` runs this file; other runs do not find it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.learner.state import initial_state
from lingo.learner.step import train_step
from lingo.ops import random
from lingo.runtimes.program import DECODE, EVALUATE, PREDICT, Computation
from lingo.runtimes.replicated.placement import ReplicaPlacement, ShardedUpdate
from lingo.runtimes.replicated.program import _kept_tensors
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.tpu.core_program import CoreProgram
from lingo.runtimes.tpu.tpu_mesh import TpuMesh
from tests.lingo.runtimes.tpu.test_replicas import (
    FORMS,
    MIXTURE,
    NUM_REPLICAS,
    PIPELINE,
    SMALL,
    TINY,
    strategy,
)

__all__ = ["strategy"]  # a fixture
NUM_STEPS = 2


def lower(function: Callable[..., Any], *arguments: Any) -> str:
    """Returns the HLO of a function for a TPU; arguments are structures of `tf.TensorSpec`s.

    Raises ValueError with the names of operations for which a TPU has no kernel.
    """

    def flat(*tensors: Any) -> list[Any]:
        return tf.nest.flatten(function(*tf.nest.pack_sequence_as(arguments, tensors)))

    compiled = tf.function(flat, jit_compile=True, autograph=False)
    ir = compiled.experimental_get_compiler_ir(*tf.nest.flatten(arguments))
    return ir(stage="hlo", platform_name="TPU")


def spec(value: Any) -> Any:
    return tf.TensorSpec(np.shape(value), np.asarray(value).dtype)


def types_made(text: str) -> set[str]:
    """Returns the types that a program computes; it may pass arguments of others on."""
    made = re.findall(
        r"= (\w+)\[[^ ]* (?!parameter|reshape|get-tuple-element|tuple)[a-z-]+\(", text
    )
    return set(made)


# ---- a mesh --------------------------------------------------------------------------------------


def cores(built: Experiment) -> tuple[CoreProgram, Any]:
    """Returns the program of the cores, and the specs of a state."""
    core = CoreProgram(built.learner, built.runtime.layout(built.learner))
    state = tf.nest.map_structure(lambda cut: tf.TensorSpec(cut.padded, tf.float32), core.cuts)
    return core, state._replace(step=tf.TensorSpec([], tf.int32))


SHARDED = "data=2,model=4,shard_update=True"
MESHES = {
    "plain": ((TINY, *SMALL), "data=2,model=4"),
    "sharded update": ((TINY, *SMALL), SHARDED),
    "gathered": ((TINY, *SMALL, "task.dtype=bfloat16"), f"{SHARDED},gather_dtype=bfloat16"),
    "scanned": ((TINY, *SMALL, "Stack=Repeat"), SHARDED),
    "experts": ((TINY, *SMALL, MIXTURE), "data=2,expert=4"),
    "pipeline": ((TINY, *SMALL, PIPELINE), "data=4,stage=2"),
    "parts of a batch": ((TINY, *SMALL, "accumulation_steps=2"), SHARDED),
    "pairs": (("seq2seq.source.signatures",), "data=8"),
    "tables": (("click.dlrm.clicks",), "data=8"),
    "images": (("image.unet.blobs",), "data=8"),
}


@pytest.mark.parametrize(("experiment", "mesh"), MESHES.values(), ids=list(MESHES))
def test_every_operation_of_a_mesh_has_a_kernel(experiment, mesh):
    built = lingo.get(*experiment, f"runtime=TpuMesh({mesh})").build()
    assert isinstance(built.runtime, TpuMesh)
    core, state = cores(built)
    specs = built.train_input.specs()
    batches = {k: tf.TensorSpec((NUM_STEPS, *shape), dtype) for k, (shape, dtype) in specs.items()}
    text = lower(core.train, state, batches)
    assert 'custom_call_target="Sharding"' in text
    assert "f64" not in types_made(text)  # a TPU computes float64 slowly
    batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
    for computation in (EVALUATE, PREDICT):
        compute(built, core, computation, state, batch)


def test_every_operation_of_decoding_has_a_kernel():
    built = lingo.get(TINY, *SMALL, f"runtime=TpuMesh({SHARDED})").build()
    prompts = prompt_batch([Prompt(np.int32([1, 2])), Prompt(np.int32([3]))], rows=[0, 1], end_id=0)
    batch = {name: spec(value) for name, value in prompts.items()}
    key = random.Key(*map(spec, random.root_key(0)))
    core, state = cores(built)
    compute(built, core, DECODE, state, batch, Sampling.params(max_tokens=4).build(), key)


def compute(
    built: Experiment, core: CoreProgram, computation: Computation, state: Any, *args: Any
) -> None:
    """Lowers a computation; of (batch, decoding, key) all but the decoding are tensors."""
    batch, *decoding, key = args if len(args) > 1 else (*args, ())

    def call(state: Any, batch: Any, key: Any) -> Any:
        read, task = core.select(state, "trained"), built.learner.task
        rest = (batch, *decoding, key) if decoding else (batch,)
        return computation.function(task, read.weights, read.state, *rest, core.placement)

    assert "ENTRY" in lower(call, state, batch, key)


# ---- replicas ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overrides", "fields"), FORMS.values(), ids=list(FORMS))
def test_every_operation_of_a_replica_has_a_kernel_and_sums_are_over_all(
    strategy, monkeypatch, overrides, fields
):
    from tensorflow.python.distribute import tpu_util
    from tensorflow.python.distribute.tpu_strategy import _TPUReplicaContext
    from tensorflow.python.tpu.tpu_function import tpu_shard_context

    # As inside of `strategy.run`, whose graph has the program of all replicas.
    monkeypatch.setattr(tpu_util, "enclosing_tpu_context", lambda: strategy)
    runtime = Replicated.params(tpu="absent", **fields)
    built = lingo.get(TINY, *SMALL, *overrides).set(runtime=runtime).build()
    learner = built.learner
    layout = built.runtime._layout(learner, NUM_REPLICAS) if fields else None
    place = ShardedUpdate(layout, tpu=True) if layout else ReplicaPlacement(xla=False, tpu=True)

    def step(replica: Any, state: Any, batch: Any) -> Any:
        context = _TPUReplicaContext(strategy, replica_id_in_sync_group=replica)
        with tpu_shard_context(NUM_REPLICAS), context:
            return train_step(learner, state, batch, place)

    first = initial_state(learner)
    state = tf.nest.map_structure(
        lambda v, kept: spec(v) if kept.rows is None else tf.TensorSpec(kept.chunk_shape),
        first,
        _kept_tensors(first, layout),
    )
    size = 16 // NUM_REPLICAS
    specs = built.train_input.specs()
    batch = {k: tf.TensorSpec((size, *shape[1:]), dtype) for k, (shape, dtype) in specs.items()}
    text = lower(step, tf.TensorSpec([], tf.int32), state, batch)
    groups = re.findall(r" all-reduce\(.*?replica_groups=(\S+?), ", text)
    assert set(groups) == {"{{0,1,2,3,4,5,6,7}}"}
    assert "f64" not in types_made(text)
