"""A pipeline whose stages stand on devices of their own computes what one device does.

Stages send activations on, and no device sees a weight of another's stages.
"""

import functools
import itertools
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, digest
from lingo.checkpoints.store import Retention
from lingo.config.params import ParamError, Params
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import Rotary
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner, initial_state, named_tensors, restore_state
from lingo.mesh.hlo.collectives import Collective, collectives
from lingo.mesh.hlo.module import parse
from lingo.optim.adam import AdamW
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

pytestmark = pytest.mark.xdist_group("mesh_pipeline")  # each program is compiled once

B, T, V, D, H, L, NUM_STEPS = 8, 8, 24, 16, 48, 8, 3
MESH = Mesh.params(stage=4, data=2)
ONE = Local.params()

PIPELINES: dict[str, dict[str, Any]] = {
    "plain": {"num_stages": 4, "num_micro_batches": 4},
    "two stages a device": {"num_stages": 8, "num_micro_batches": 2, "remat": True},
    "circular": {"num_stages": 4, "num_micro_batches": 4, "circular_repeats": 2, "remat": True},
}
ALONG = {"vocab": ["stage"]}
SHARED = Mesh.params(stage=4, data=2, weight_rules=ALONG, activation_rules=ALONG)
over_pipelines = pytest.mark.parametrize(
    "name",
    ["plain", "circular", "two stages a device"],
)


def learner(stack: type[Stack] = Stack, **fields: Any) -> Learner:
    """Eight layers as those of `lm.source.tiny`, with dropout."""
    layer = TransformerLayer.params(
        attention=Attention.params(num_heads=4, positions=Rotary), dropout_rate=0.1
    )
    layer.ffn.set(hidden_dim=H, gated=True, activation="gelu_tanh")
    model = LanguageModel.params(dim=D, stack=stack.params(layer=layer, num_layers=L, **fields))
    task = LanguageModeling.params(vocab_size=V, model=model).build()
    return Learner(task, AdamW.params(learning_rate=0.01, max_grad_norm=1.0).build())


def batches(num_rows: int = B) -> dict[str, np.ndarray]:
    """Returns three batches of two documents a row; the last row ends in padding."""
    draw, shape = np.random.default_rng(0), (NUM_STEPS, num_rows, T)
    segments = np.where(np.arange(T) < 5, 1, 2).astype(np.int32) * np.ones(shape, np.int32)
    segments[:, -1, 6:] = 0
    return {
        "tokens": draw.integers(0, V, shape, np.int32),
        "targets": draw.integers(0, V, shape, np.int32),
        "segments": segments,
        "positions": np.arange(T, dtype=np.int32) % 5 * np.ones(shape, np.int32),
        "weights": np.ones(shape[:2], np.float32),
        "rows": np.arange(num_rows, dtype=np.int32) * np.ones(shape[:2], np.int32),
    }


class Trained(NamedTuple):
    """A program after three steps, what it reports of them, and what its devices exchange."""

    learner: Learner
    program: Any
    scalars: dict[str, np.ndarray]
    exchanged: list[Collective]

    def tensors(self) -> dict[str, np.ndarray]:
        return {k: np.asarray(v) for k, v in named_tensors(self.learner, self.program.state())}


def started(made: Learner, mesh: Params) -> Any:
    return mesh.build().start(made, initial_state(made))


@functools.cache
def trained(name: str, *, shared: bool = False) -> Trained:
    """Trains a pipeline on a mesh, which may share out what is in no stage."""
    made = learner(Pipeline, **PIPELINES[name])
    program = started(made, SHARED if shared else MESH)
    specs = {k: (v.shape[1:], v.dtype.name) for k, v in batches().items()}
    compiled = program.compile(specs, num_steps=NUM_STEPS)
    found = collectives(parse(compiled.text), compiled.mesh)
    return Trained(made, program, program.train(batches())["scalars"], found)


@functools.cache
def on_one_device() -> Trained:
    """Trains the plain stack."""
    made = learner()
    program = started(made, ONE)
    return Trained(made, program, program.train(batches())["scalars"], [])


def assert_trained_as_on_one_device(found: Trained) -> None:
    expected, tensors = on_one_device(), found.tensors()
    assert len(expected.scalars["loss/total"]) == NUM_STEPS
    for scalar, value in expected.scalars.items():
        np.testing.assert_allclose(found.scalars[scalar], value, rtol=1e-5, err_msg=scalar)
    for tensor, value in expected.tensors().items():
        # by tensors: Adam divides by the root of squares, which makes much of the rounding of a
        # single gradient near 0; its slots are of gradients at weights that already differ by that
        distance = np.linalg.norm(tensors[tensor] - value) / np.linalg.norm(value)
        assert distance <= (1e-5 if tensor.startswith("weights/") else 5e-5), tensor


@over_pipelines
def test_three_steps_are_those_of_layers_on_one_device(name):
    assert_trained_as_on_one_device(trained(name))


@pytest.mark.parametrize(
    ("num_stages", "num", "remat"), [*itertools.product((4, 8), (1, 2, 4, 8), (False, True))]
)
def test_so_are_those_of_other_numbers_of_stages_and_micro_batches(num_stages, num, remat):
    fields = {"num_stages": num_stages, "num_micro_batches": num, "remat": remat}
    made = learner(Pipeline, **fields)
    program = started(made, MESH)
    found = Trained(made, program, program.train(batches())["scalars"], [])
    assert_trained_as_on_one_device(found)


def test_what_is_in_no_stage_may_stand_in_parts_on_the_devices_of_all():
    found = trained("plain", shared=True)
    assert_trained_as_on_one_device(found)
    for where in found.learner.weights():
        array = found.program._state.weights[where]
        parts = 4 if "/layers/" in where or "embedding" in where else 1
        assert {s.data.size for s in array.addressable_shards} == {array.size // parts}, where


def test_metrics_of_rows_that_are_no_micro_batches_are_those_of_one_device():
    batch = {k: v[0] for k, v in batches(6).items()}
    made = learner(Pipeline, **PIPELINES["circular"])
    expected = started(learner(), ONE).evaluate(batch)
    found = started(made, MESH).evaluate(batch)
    assert found.keys() == expected.keys() >= {"loss", "accuracy"}
    for metric, parts in expected.items():
        for part, value in parts.items():
            np.testing.assert_allclose(found[metric][part], value, rtol=1e-5, err_msg=metric)


def test_micro_batches_are_cut_from_the_rows_of_the_batch_not_from_those_that_fill_it_up():
    program = started(learner(Pipeline, num_stages=4, num_micro_batches=3), MESH)
    found = program.train(batches(9))["scalars"]  # ten rows, for two parts along `data`
    expected = started(learner(), ONE).train(batches(9))["scalars"]
    assert len(found["loss/total"]) == NUM_STEPS
    for scalar, value in expected.items():
        np.testing.assert_allclose(found[scalar], value, rtol=1e-5, err_msg=scalar)


def test_stages_that_devices_cannot_share_evenly_are_refused():
    program = started(learner(Pipeline, num_stages=6, num_micro_batches=4), MESH)
    wanted = r"model/stack: num_stages=6 is not a multiple of the 4 parts of the mesh along"
    with pytest.raises(ParamError, match=wanted):
        program.train(batches())


@over_pipelines
def test_stages_send_activations_on_and_nobody_sends_weights(name):
    found = trained(name).exchanged
    p = PIPELINES[name]
    rows = B // p["num_micro_batches"] // 2  # of a micro-batch on one device
    num_ticks = p["num_micro_batches"] * p.get("circular_repeats", 1) + p["num_stages"] - 1
    sent = [c for c in found if c.kind == "collective-permute" and c.runs.times > NUM_STEPS]
    assert all(c.axes == ("stage",) and c.runs.times == num_ticks * NUM_STEPS for c in sent)
    vectors = [c for c in sent if c.array.dtype == "f32"]
    assert len(vectors) >= 2  # there, and the gradients back
    assert {math.prod(c.array.shape) for c in vectors} == {rows * T * D}  # of one stage

    assert not any(c.kind == "all-to-all" for c in found)
    gathered = [c for c in found if c.kind == "all-gather"]
    # the update's sums of squares, a number a layer, and the numbers of stages
    assert all(c.axes == ("stage",) and math.prod(c.array.shape) <= L for c in gathered)
    assert all(c.runs.times <= NUM_STEPS for c in gathered)
    added = [c for c in found if c.kind == "all-reduce" and c.axes != ("data",)]
    assert max(math.prod(c.array.shape) for c in added) <= 2 * rows * T * D  # activations


@over_pipelines
def test_each_device_holds_the_weights_of_its_stages(name):
    made, program, *_ = trained(name)
    for where, weight in made.weights().items():
        parts = 4 if "/layers/" in where else 1
        arrays = [program._state.weights[where], *program._state.slots[where].values()]
        for array in arrays:
            held = {shard.data.size for shard in array.addressable_shards}
            assert held == {math.prod(weight.shape) // parts}, where


def digests(made: Learner, program: Any) -> dict[str, str]:
    return {name: digest(np.asarray(v)) for name, v in named_tensors(made, program.state())}


def saved(made: Learner, program: Any, folder: pathlib.Path) -> Checkpoint:
    tensors = named_tensors(made, program.state())
    store.save(folder, step=NUM_STEPS, tensors=tensors, metadata={}, retention=Retention(1))
    return store.find(folder, None, of=folder)


@pytest.mark.parametrize("name", ["plain", "circular"])
def test_checkpoints_cross_bit_by_bit_and_come_back(name, tmp_path):
    plain, made = on_one_device(), learner(Pipeline, **PIPELINES[name])
    written, program = digests(plain.learner, plain.program), started(made, MESH)
    assert digests(made, program) != written
    program.load(restore_state(made, saved(plain.learner, plain.program, tmp_path / "there")))
    assert digests(made, program) == written
    back = started(plain.learner, ONE)
    back.load(restore_state(plain.learner, saved(made, program, tmp_path / "back")))
    assert digests(plain.learner, back) == written
