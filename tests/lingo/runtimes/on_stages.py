"""Trains unlike layers in stages on three devices, and on one; `test_staged.py` runs it.

It prints what was computed as JSON. A process of its own, because TensorFlow chooses its devices
once a process.

Axes: B batch, V tokens, D width. No weight has the shape of anything else that a step computes.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorflow.python.eager import context as eager

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_sound
from lingo.checkpoints.store import Retention
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data.array_spec import ArraySpec, Specs
from lingo.data.input import Input
from lingo.decode.sampling import Sampling
from lingo.layers.dropout import dropout
from lingo.layers.layer import Layer
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.stack import Chain
from lingo.learner.state import TrainState, initial_state, named_tensors, restore_state
from lingo.learner.task import Batch, Task
from lingo.optim.adam import AdamW
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local

B, V, WIDTHS, CLASSES = 12, 17, (5, 7, 11, 13), 19
STAGES, MICRO_BATCHES, STEPS = 3, 3, 3


class Lookup(Layer):
    """Rows of a table: its gradient has only those that were read."""

    def setup(self) -> None:
        self.table = self.weight("table", [V, WIDTHS[0]], axes=("vocab", "embed"))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.table, x)

    def output_shape(self, shape: Any) -> Any:
        return (*shape, WIDTHS[0])


class OneHot(Layer):
    """As Lookup, without a weight."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.one_hot(x % WIDTHS[0], WIDTHS[0])

    def output_shape(self, shape: Any) -> Any:
        return (*shape, WIDTHS[0])


class Dense(Layer):
    """A map with dropout, a statistic and a loss of its own."""

    dim: int  # width of the input
    output_dim: int  # width of the output

    def setup(self) -> None:
        self.w = self.weight("w", [self.p.dim, self.p.output_dim], axes=("embed", None))
        self.mean = self.state("mean", [self.p.output_dim], decay=0.5)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        y = dropout(self, tf.tanh(x @ self.w), rate=0.3) - 0.1 * self.mean
        self.batch_statistic("mean", tf.reduce_sum(y, 0), tf.cast(tf.shape(y)[0], tf.float32))
        self.side_loss("size", tf.reduce_sum(y * y))
        return y

    def flops(self, shape: Any) -> int:
        return 2 * shape[0] * self.p.dim * self.p.output_dim

    def output_shape(self, shape: Any) -> Any:
        return (shape[0], self.p.output_dim)


class Classes(Task):
    """A chain, and a weight outside of it."""

    chain: Chain  # from tokens to vectors

    def setup(self) -> None:
        self.chain = self.p.chain.build()
        self.head = self.weight("head", [WIDTHS[-1], CLASSES], axes=("embed", "vocab"))

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        logits, labels = self.chain(batch["tokens"]) @ self.head, batch["labels"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return {"cross_entropy": tf.reduce_sum(losses * batch["weights"])}

    def batch_flops(self, specs: Specs) -> int:
        return self.chain.flops(specs["tokens"][0])

    def decode(self, batch: Batch, decoding: Any) -> dict[str, tf.Tensor]:
        return {"tokens": tf.argmax(self.chain(batch["tokens"]) @ self.head, axis=-1)}


class Tokens(Input):
    """A token of each example, and a class."""

    def specs(self) -> dict[str, ArraySpec]:
        size = (self.p.batch_size,)
        return super().specs() | {"tokens": (size, "int32"), "labels": (size, "int32")}

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        tokens = (7 * numbers + numbers // 5) % V
        return {"tokens": tokens.astype("i"), "labels": (3 * tokens % CLASSES).astype("i")}


def experiment(num_devices: int, first: type[Layer] = Lookup, **fields: Any) -> Params:
    layers = [first.params()]
    layers += [Dense.params(dim=a, output_dim=b) for a, b in itertools.pairwise(WIDTHS)]
    fields = {"num_stages": STAGES, "num_micro_batches": MICRO_BATCHES} | fields
    chain = PipelinedChain.params(layers=layers, **fields)
    return Experiment.params(
        task=Classes.params(chain=chain),
        train_input=Tokens.params(batch_size=B),
        optimizer=AdamW.params(
            learning_rate=0.1,
            weight_decay=0.1,
            max_grad_norm=0.5,
            max_weight_grad_norm=0.4,
            ema_decay=0.5,
            ema_warmup=True,
        ),
        runtime=Local.params(stage_devices=num_devices),
    )


def batches(built: Any, steps: range) -> dict[str, np.ndarray]:
    some = [built.train_input.batch(step) for step in steps]
    return {name: np.stack([batch[name] for batch in some]) for name in some[0]}


def number(device: str) -> int:
    """Returns the number at the end of a device's name; 0 if it has none."""
    return int(device.rpartition(":")[2] or 0)


def placed(program: Any, built: Any) -> dict[str, list[Any]]:
    """Does a step and returns what stood where: in the graph that was cut up and executed.

    Returns:
        `stood`, [name, shape, device] of each tensor that something takes; `sent`, [name, shape] of
        each that goes from one device to another. A shape is None where the step's graph does not
        have the tensor: of control edges, and of what is inside conditions. `functions`, for
        each function that the step's graph calls: the devices of all calls.
    """
    shapes = {
        f"{op.name}:{i}": value.shape.as_list()
        for op in program.graph(built.train_input.specs()).get_operations()
        for i, value in enumerate(op.outputs)
        if value.shape.rank is not None
    }
    context = eager.context()
    context.enable_run_metadata()
    program.train(batches(built, range(1)))
    functions = context.export_run_metadata().function_graphs
    context.disable_run_metadata()
    nodes = [node for f in functions for graph in f.partition_graphs for node in graph.node]
    taken = {name if ":" in name else f"{name}:0" for node in nodes for name in node.input}
    devices = {node.name: number(node.device) for node in nodes}
    stood = [
        [name, shape, devices[of]]
        for name, shape in shapes.items()
        if name in taken and (of := name.partition(":")[0]) in devices
    ]
    sent: list[Any] = []
    for node in nodes:
        ends = {node.attr[end].s for end in ("send_device", "recv_device")}
        if node.op == "_Send" and len(ends) == 2:
            name = node.input[0] if ":" in node.input[0] else f"{node.input[0]}:0"
            sent.append([name, shapes.get(name)])
    called: dict[str, list[int]] = {}
    for node in nodes:
        if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            called.setdefault(node.attr["f"].func.name, []).append(devices[node.name])
    return {"stood": stood, "sent": sent, "functions": [*called.values()]}


def variables(program: Any) -> dict[str, list[Any]]:
    """Returns [path, device] of each variable, by what it is."""
    state = program._variables
    slots = [(k, v) for k, kept in state.slots.items() for v in kept.values()]
    kinds = {"weights": state.weights.items(), "slots": slots, "state": state.state.items()}
    return {kind: [[k, number(v.device)] for k, v in found] for kind, found in kinds.items()}


def trained(program: Any, built: Any) -> dict[str, Any]:
    """Returns the state after some steps, what they report, and what evaluation and decoding do."""
    reports = [program.train(batches(built, steps)) for steps in (range(2), range(2, STEPS))]
    batch = built.train_input.batch(9)
    sampling = Sampling.params(max_tokens=1).build()
    return {
        "state": flat(program.state()),
        "reports": [
            {tag: value.numpy().tolist() for tag, value in report["scalars"].items()}
            for report in reports
        ],
        "evaluated": {
            weights: tf.nest.map_structure(float, program.evaluate(batch, weights=weights))
            for weights in ("trained", "ema")
        },
        "decoded": program.decode(batch, sampling)["tokens"].tolist(),
    }


def taken_back(program: Any, built: Any) -> bool:
    """Returns whether a call that fails after its first step leaves the state as it was."""
    before, step = program.state(), program._train
    calls: list[int] = []

    def fails(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise tf.errors.UnavailableError(None, None, "lost")
        return step(batch)

    program._train = fails
    try:
        program.train(batches(built, range(3)))
    except tf.errors.UnavailableError:
        program._train = step
        same = tf.nest.map_structure(np.array_equal, before, program.state())
        return len(calls) == 2 and all(tf.nest.flatten(same))
    return False


def flat(state: TrainState) -> list[list[float]]:
    return [np.ravel(value).tolist() for value in tf.nest.flatten(state)]


def handed_over(programs: Mapping[int, Any], built: Any, order: tuple[int, int]) -> Any:
    """Returns the state after two steps on some devices, and one on others from a checkpoint."""
    first, second = (programs[num_devices] for num_devices in order)
    first.load(initial_state(built.learner))
    first.train(batches(built, range(2)))
    with tempfile.TemporaryDirectory() as folder:
        tensors = named_tensors(built.learner, first.state())
        written = store.save(
            pathlib.Path(folder), step=2, tensors=tensors, metadata={}, retention=Retention(1)
        )
        second.load(restore_state(built.learner, open_sound(written)))
    second.train(batches(built, range(2, STEPS)))
    return flat(second.state())


def main() -> None:
    split_processor(STAGES)
    found: dict[str, Any] = {}
    programs: dict[int, Any] = {}
    for num_devices in (1, STAGES):
        built = experiment(num_devices).build()
        programs[num_devices] = built.runtime.start(built.learner, initial_state(built.learner))
    several = programs[STAGES]
    found["placed"] = placed(several, built)
    other = experiment(STAGES, OneHot, times=[2.0, 1.0, 1.0, 2.0]).build()
    program = other.runtime.start(other.learner, initial_state(other.learner))
    found["placed/no weight in the first"] = placed(program, other)
    found["variables"] = variables(several)
    found["taken_back"] = taken_back(several, built)
    for num_devices, program in programs.items():
        program.load(initial_state(built.learner))
        found[f"trained/{num_devices}"] = trained(program, built)
    found["handed_over"] = [handed_over(programs, built, to) for to in ((1, STAGES), (STAGES, 1))]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
