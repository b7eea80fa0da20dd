"""Memory: what cannot fit is refused before anything is drawn."""

import json
import resource
import types

import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.inspection import memory
from lingo.inspection.memory import (
    check_memory,
    check_step,
    kept_bytes,
    memory_bytes,
    size,
    step_memory,
)
from lingo.layers import Layer, Linear, Remat, Repeat, Stack
from lingo.learner.state import Learner, num_bytes
from lingo.learner.step import step_graph
from lingo.learner.task import Task
from lingo.optim import Sgd
from lingo.runtimes.layout import bytes_per_device
from lingo.runtimes.mesh import mesh


def built(*overrides: str):
    return lingo.get("lm.source.tiny", *overrides).build()


def test_the_state_is_weights_and_slots():
    adam, plain = built(), built("optimizer=Sgd(learning_rate=0.1)")
    number = 824_832
    sizes = [sum(num_bytes(one.learner).values()) for one in (adam, plain)]
    assert sizes == [3 * 4 * number, 4 * number]
    check_memory(adam)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("exp.model_dim=16777216", "task: weights and .* take .* PiB, but this machine has"),
        ("train_input.batch_size=1000000000000", "train_input: a batch takes .* PiB, but this"),
        ("train_input.length=1000000000000", "smaller batch_size or length"),
    ],
)
def test_what_is_larger_than_the_machine_is_refused(override, message):
    with pytest.raises(ParamError, match=message):
        check_memory(built(override))


def test_on_a_mesh_each_virtual_device_has_its_part_in_this_machine(monkeypatch):
    split = built("runtime=Mesh(model=8,shard_weights=True)", "exp.model_dim=65536")
    layout = split.runtime.layout(split.learner)
    found = bytes_per_device(split.learner, layout)
    one = sum(found[kind].per_device for kind in ("weights", "slots", "statistics"))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2 * one)
    check_memory(split)  # on other devices than processors
    monkeypatch.setattr(type(split.runtime), "num_host_devices", lambda _: 3)
    with pytest.raises(ParamError, match=r"task: weights(,| and) .* take"):
        check_memory(split)


def test_virtual_devices_are_shared_out_among_the_workers(monkeypatch):
    runtime = built("runtime=Mesh(data=8)").runtime
    virtual = types.SimpleNamespace(config=types.SimpleNamespace(jax_platforms="cpu"))
    monkeypatch.setattr(mesh, "engine", lambda: virtual)
    assert runtime.num_host_devices() == 8
    workers = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 1}})
    monkeypatch.setenv("TF_CONFIG", workers)
    assert runtime.num_host_devices() == 4
    virtual.config.jax_platforms = None  # accelerators have memory of their own
    assert runtime.num_host_devices() == 1


def test_a_limit_of_the_container_or_of_the_shell_counts(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMITS", (str(limit), str(tmp_path / "none")))
    limit.write_text("max\n")
    assert memory_bytes() > 2**20
    limit.write_text("1048576\n")
    assert memory_bytes() == 2**20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**19, 2**19))
    assert memory_bytes() == 2**19


def test_sizes_have_few_digits_and_a_unit():
    sizes = (0, 1023, 1024, 1500 * 2**20, 2**60)
    assert [*map(size, sizes)] == ["0 B", "1023 B", "1 KiB", "1.46 GiB", "1024 PiB"]


# ---- what a gradient keeps -----------------------------------------------------------------------


B, D, HIDDEN = 60, 5, 7


class Squares(Task):
    """The sum of squares of what layers make of [B, D] numbers."""

    model: Layer

    def setup(self):
        self.model = self.p.model.build(dim=D)

    def loss(self, batch):
        return {"main": tf.reduce_sum(tf.square(self.model(batch["x"])))}


def traced(model, *, accumulation_steps=1):
    """Returns the graph of a step of some layers."""
    learner = Learner(
        Squares.params(model=model).build(),
        Sgd.params(learning_rate=0.1).build(),
        accumulation_steps=accumulation_steps,
    )
    specs = {"x": ((B, D), "float32"), "weights": ((B,), "float32"), "rows": ((B,), "int32")}
    return step_graph(learner, specs)


def kept(model, **fields):
    return kept_bytes(traced(model, **fields))


class FeedForward(Layer):
    """Two products with ReLU between them; both keep their inputs, and ReLU its output."""

    dim: int
    inner: Linear = Linear.params(output_dim=HIDDEN)
    outer: Linear = Linear.params(dim=HIDDEN)

    def setup(self):
        self.inner = self.p.inner.build(dim=self.p.dim)
        self.outer = self.p.outer.build(output_dim=self.p.dim)

    def __call__(self, x):
        return self.outer(tf.nn.relu(self.inner(x)))

    def output_shape(self, shape):
        return shape


def test_a_gradient_keeps_what_it_reads_of_the_forward_pass_once():
    inputs = 4 * B * (HIDDEN + D)  # of the second product, and of the square
    assert kept(FeedForward) == pytest.approx(inputs, abs=16)  # and of the division by the weight


def test_a_loop_over_layers_keeps_about_what_separate_layers_keep():
    layers = {kind: kind.params(layer=FeedForward, num_layers=4) for kind in (Stack, Repeat)}
    separate, loop = (kept(layers[kind]) for kind in (Stack, Repeat))
    assert separate == pytest.approx(4 * kept(FeedForward), rel=0.02)
    assert separate <= loop <= 1.5 * separate


def test_recomputed_layers_keep_less():
    plain = kept(Repeat.params(layer=FeedForward, num_layers=8))
    recomputed = Remat.params(layer=FeedForward)
    assert kept(Repeat.params(layer=recomputed, num_layers=8)) < 0.6 * plain


def test_parts_of_a_batch_are_kept_one_after_the_other():
    for model in (FeedForward, Repeat.params(layer=FeedForward, num_layers=4)):
        assert kept(model, accumulation_steps=3) == pytest.approx(kept(model) / 3, rel=0.2)


def test_a_step_larger_than_memory_is_warned_of_and_one_twice_as_large_refused(monkeypatch):
    experiment = built()
    graph = step_graph(experiment.learner, experiment.train_input.specs())
    needed = step_memory(experiment, graph)
    assert needed.activations > 50 * 2**20  # more than state and batch
    total, messages = needed.state + needed.activations, []
    for available in (2 * total, total, total // 2):
        monkeypatch.setattr(memory, "memory_bytes", lambda available=available: available)
        check_step(step_memory(experiment, graph), tell=messages.append)
    assert len(messages) == 2
    assert "MiB of activations for the gradient; this machine has" in messages[0]
    assert "of memory, and the kernel may end the run: set a smaller batch_size" in messages[0]
    monkeypatch.setattr(memory, "memory_bytes", lambda: total // 2 - 1)
    with pytest.raises(ParamError, match=r"a step holds about .*accumulation_steps, or Remat"):
        check_step(step_memory(experiment, graph), tell=messages.append)
    assert len(messages) == 2
