"""The stages of a `PipelinedChain` on devices of their own: weights, slots and states included.

    in each step                            on the device of a stage
    read its variables                      yes
    compute, forward and backward           yes; activations pass from one device to the next
    add up gradients over micro-batches     yes
    clip, update, average, select           yes; sums of squares go to the first, scalars come back
    assign its variables                    yes

A loop over steps would move the state through the loop's device, so each step is a call of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.layers.stacks.micro_batches import micro_batch_shape
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.incoming import first_calls
from lingo.learner.placement import Placement
from lingo.learner.state import Learner
from lingo.learner.step import train_step
from lingo.ops.device import on_device, on_device_of_inputs
from lingo.runtimes.local_program import LocalProgram


def stages(learner: Learner) -> dict[str, int]:
    """Returns path of a layer in a PipelinedChain -> the number of its stage.

    Raises:
        ParamError: if a chain balances its stages by FLOPs and its input shape is unknown, or if
            its batch does not divide into equal micro-batches.
    """
    task = learner.task
    chains = [layer for layer in task.tree() if isinstance(layer, PipelinedChain)]
    asking = [chain for chain in chains if chain.p.times is None]
    answers = first_calls(task, learner.specs, asking) if asking else {}
    shapes = {chain: micro_batch_shape(chain, answer.shape) for chain, answer in answers.items()}
    return {
        layer.path: number
        for chain in chains
        for number, places in enumerate(chain.blocks(shapes.get(chain))[0])
        for layer in chain.layers[places.start : places.stop]
    }


class StagePlacement(Placement):
    """Places tensors of a stage's layers on its device, everything else on the first device."""

    def __init__(self, first: str, devices: Mapping[str, str]) -> None:
        """Places nothing yet.

        Args:
            first: name of the first device.
            devices: path of a layer in a stage -> name of its device.
        """
        super().__init__()
        self._first, self._devices = first, devices

    def call_fields(self) -> dict[str, Any]:
        return {**super().call_fields(), "devices": self._devices}

    def device(self, where: str) -> str:
        """Returns the device of a weight or state: that of its stage, or the first device.

        Args:
            where: program path.
        """
        while where and where not in self._devices:
            where = where.rpartition("/")[0]
        return self._devices.get(where, self._first)

    def device_scope(self, where: str) -> contextlib.AbstractContextManager[Any]:
        return on_device(self.device(where))

    def update_scope(self) -> contextlib.AbstractContextManager[Any]:
        return on_device_of_inputs(self._first)

    def shard_for_update(self, where: str, value: Any) -> Any:
        with self.device_scope(where):
            return tf.identity(value)

    def select(self, condition: tf.Tensor, new: Any, old: Any) -> Any:
        found: Any = tuple({} for _ in new)
        for device in dict.fromkeys((self._first, *self._devices.values())):
            mine, others = self._of(device, new), self._of(device, old)
            with on_device(device):  # a single cond would copy all tensors to its own device
                part = tf.cond(condition, lambda mine=mine: mine, lambda others=others: others)
            for values, more in zip(found, part, strict=True):
                values.update(more)
        return found

    def _of(self, device: str, parts: Any) -> Any:
        """Returns those entries of structures, keyed by program path, that are on a device."""
        return tuple(
            {where: value for where, value in part.items() if self.device(where) == device}
            for part in parts
        )


class StagedProgram(LocalProgram):
    """Runs one step per call; every variable is read and assigned on its own device."""

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        del num_steps
        self.graph(specs)

    def graph(self, specs: Specs) -> tf.Graph:
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        return self._train.get_concrete_function(batch).graph

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        # Either all steps take effect or none: on failure the state before them is restored.
        several = len(batches["rows"]) > 1
        before = tf.nest.map_structure(lambda v: v.value(), self._variables) if several else None
        try:
            reports = [self._train(batch) for batch in _each(batches)]
        except tf.errors.OpError:
            if before is not None:
                self._assign(before)
            raise
        return tf.nest.map_structure(lambda *values: tf.stack(values), *reports)

    def _steps(self, batches: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        def tensor(where: str, variable: tf.Variable) -> tf.Tensor:
            with self._place.device_scope(where):
                return tf.identity(variable)

        state = self._variables.map(tensor)
        state, report = train_step(self._learner, state, batches, self._place)
        with tf.control_dependencies([tf.group(tf.nest.flatten((state, report)))]):
            self._assign(state)  # only after everything has been computed: all, or none
        return report


def _each(batches: Mapping[str, np.ndarray]) -> Iterator[dict[str, tf.Tensor]]:
    """Yields the batch of each step."""
    for i in range(len(batches["rows"])):
        yield {name: tf.constant(values[i]) for name, values in batches.items()}
