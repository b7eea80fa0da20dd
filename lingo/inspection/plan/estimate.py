"""Predicts the bytes on a device and the seconds of a step, for a way to run an experiment.

Bytes of weights, optimizer slots and gradients are exact, since they follow from how the mesh
splits them. The rest is a model:

- *Arithmetic* (a roofline). A matrix product takes the longer of two times: its FLOPs on a device
  divided by the peak, with matrices padded to whole tiles of the matrix unit, or the bytes that it
  reads and writes divided by the memory's bandwidth. A backward pass takes twice as long as a
  forward pass. A recomputed layer takes one more forward pass.
- *Exchange*: the collectives that XLA's partitioner inserts (`exchange.py`, `memory.py`). Small
  collectives of weights, and of gradients, are combined. No collective overlaps with arithmetic.
- *Memory*: the residuals of each layer (`Layer.residuals`), and the largest phase of a step
  (`memory.py`).

A *turn* is one iteration of a pipeline's loop: each stage computes one micro-batch, or is idle.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lingo.contract import Experiment
from lingo.inspection.plan import memory
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.exchange import Exchange, Exchanges, UnitPart, unit_part
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.network import Network
from lingo.inspection.plan.workload import Unit, Workload
from lingo.layers.residual import ITEM_BYTES
from lingo.mesh.rules import RECIPES, Recipe, Rules
from lingo.mesh.topology import Topology
from lingo.runtimes.sharded import Sharded

Build = Callable[[Sequence[str]], Experiment]
"""A function that builds the experiment with more overrides, as `--set` takes them.

The experiment is built again for each candidate, since e.g. a pipeline stacks weights differently.
"""


class ExchangeTime(NamedTuple):
    """All collectives of one kind and purpose in a step, and the time that they take."""

    exchange: Exchange
    seconds: float


class Estimate(NamedTuple):
    """The predicted memory and time of a step, for one way to run the experiment."""

    candidate: Candidate
    bytes: dict[str, float]  # kind, such as "weights" -> bytes on a device
    seconds: dict[str, float]  # kind, such as "arithmetic" -> seconds of a step
    exchanges: tuple[ExchangeTime, ...]  # those that take the longest first
    flops: float  # FLOPs of matrix products per device and step, recomputation included
    bubble: float  # the share of their time in which the stages of a pipeline are idle, 0..1
    utilization: float  # the model's FLOPs over the devices' peak FLOPs in the step's time

    @property
    def total_bytes(self) -> float:
        return sum(self.bytes.values())

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


class _Layers(NamedTuple):
    """The layers of one unit (a group of alike layers) that one device computes."""

    unit: Unit
    part: UnitPart  # the device's part of one of these layers, for all examples of a step
    number: float  # number of layers
    idle_factor: float  # a pipeline stage's turns over its turns that are not idle; 1: no pipeline
    calls: float  # calls of a layer per step, those in idle turns of a pipeline included
    num_recomputed: int  # how often the gradient computes a forward pass again

    @property
    def passes(self) -> int:
        """The cost of a layer in a step, in forward passes; a backward pass counts as two."""
        return 3 + self.num_recomputed

    @property
    def flops(self) -> float:
        """The FLOPs of all these layers on the device in a step."""
        return self.passes * self.number * self.idle_factor * self.part.flops


class Estimator:
    """Predicts memory and time of a step, for ways to run one experiment on one hardware."""

    def __init__(self, workload: Workload, hardware: Hardware, build: Build) -> None:
        self._workload, self._hardware = workload, hardware
        self._experiment: Callable[[tuple[str, ...]], Experiment] = functools.cache(build)
        self._network: Callable[[Topology], Network] = functools.cache(
            functools.partial(Network, hardware)
        )
        self._units = functools.cache(self._find_units)
        self._state = functools.cache(self._find_state)
        self._residuals = functools.cache(self._find_residuals)

    def estimate(self, candidate: Candidate) -> Estimate:
        """Predicts memory and time; raises ParamError if the experiment does not fit the mesh."""
        state, layers = self._state_of(candidate), self._layers(candidate)
        exchanges = self._exchanges(candidate, state, layers)
        seconds = self._seconds(candidate, state, layers, exchanges)
        rate = self._hardware.rate(self._workload.dtype) * candidate.mesh.num_devices
        return Estimate(
            candidate,
            bytes={**state.bytes, **self._memory(candidate, state, layers)},
            seconds=seconds,
            exchanges=tuple(sorted(exchanges, key=lambda one: -one.seconds)),
            flops=sum(one.flops for one in layers),
            bubble=candidate.bubble,
            utilization=3 * self._workload.flops / (rate * sum(seconds.values())),
        )

    def rules(self, recipe: Recipe) -> Rules:
        """Returns a recipe's sharding rules, with the experiment's own rules taking precedence."""
        rules, runtime = RECIPES[recipe], self._experiment(()).runtime
        if not isinstance(runtime, Sharded):
            return rules
        weights, activations = runtime.p.weight_rules, runtime.p.activation_rules
        return Rules(
            {**rules.weights, **{name: tuple(axes) for name, axes in weights.items()}},
            {**rules.activations, **{name: tuple(axes) for name, axes in activations.items()}},
        )

    # ---- layers and state of a device

    def _layers(self, candidate: Candidate) -> list[_Layers]:
        """Returns the layers that a device computes, one entry per unit.

        The gradient of a pipeline recomputes each step of the stack's pattern of layers. If the
        pipeline keeps only the inputs of turns, the gradient first recomputes each whole turn.
        """
        stages, turns = candidate.num_stages, 1 / (1 - candidate.bubble)
        parts, all_layers = candidate.accumulation_steps, []
        for unit, part in self._units(candidate.mesh, candidate.rules).items():
            number, num_recomputed = self._workload.units[unit], int(unit.is_recomputed)
            if unit.in_stack:
                num_recomputed = max(num_recomputed, candidate.remat, stages > 1)
                num_recomputed += stages > 1 and self._workload.keeps_turns
                calls = parts * candidate.micro_batches * turns
                all_layers.append(
                    _Layers(unit, part, number / stages, turns, calls, num_recomputed)
                )
            else:
                all_layers.append(_Layers(unit, part, number, 1.0, parts, num_recomputed))
        return all_layers

    def _find_units(self, mesh: Topology, recipe: Recipe) -> dict[Unit, UnitPart]:
        rules, rows = self.rules(recipe), self._workload.batch_size
        share = math.ceil(rows / mesh.size(rules.activations["batch"])) / rows
        tile = self._hardware.matrix_tile
        return {
            unit: unit_part(unit, mesh, rules, share=share, tile=tile, is_tpu=self._hardware.is_tpu)
            for unit in self._workload.units
        }

    def _state_of(self, candidate: Candidate) -> memory.StatePart:
        is_loop_with_remat = candidate.remat and self._workload.stack == "Stack"
        plain = candidate._replace(micro_batches=candidate.num_stages, remat=is_loop_with_remat)
        return self._state(plain._replace(accumulation_steps=1))

    def _find_state(self, candidate: Candidate) -> memory.StatePart:
        settings = candidate.model_settings(self._workload)
        return memory.state_part(
            self._experiment(tuple(settings)).learner,
            candidate.mesh,
            self.rules(candidate.rules),
            shard_update=candidate.shard_update,
            shard_weights=candidate.shard_weights,
            combined_bytes=self._hardware.combined_bytes,
            is_tpu=self._hardware.is_tpu,
        )

    # ---- time

    def _exchanges(
        self, candidate: Candidate, state: memory.StatePart, layers: Sequence[_Layers]
    ) -> list[ExchangeTime]:
        """Returns the times of all collectives in a step."""
        sums, turns = Exchanges(candidate.mesh), 1 / (1 - candidate.bubble)
        calls = candidate.accumulation_steps * candidate.micro_batches * turns
        _exchange_weights(candidate, state, sums, self._steps_per_turn(candidate))
        for layer in layers:
            number = layer.number * layer.idle_factor
            for one in (*layer.part.forward * (1 + layer.num_recomputed), *layer.part.backward):
                sums.add_exchange(one, calls=layer.calls * layer.number, number=number)
        if candidate.num_stages > 1:
            passed = self._boundary_bytes(candidate) * candidate.repeats * turns
            sums.add("permute", ["stage"], "stages", 3 * passed, 3 * candidate.repeats * calls)
            sums.add("all-reduce", ["stage"], "stages", 2 * passed, 2 * candidate.repeats * calls)
        network = self._network(candidate.mesh)
        return [ExchangeTime(one, one.seconds(network)) for one in sums]

    def _seconds(
        self,
        candidate: Candidate,
        state: memory.StatePart,
        layers: Sequence[_Layers],
        exchanges: Sequence[ExchangeTime],
    ) -> dict[str, float]:
        """Returns the seconds of a step by kind: "arithmetic", "bubble", "update", ..."""
        busy = idle = 0.0
        for one in layers:
            # each call after the first reads the weights again
            again = (one.calls / one.idle_factor - 1) * one.part.weight_bytes
            time = max(
                one.part.padded_flops / self._hardware.rate(one.unit.dtype),
                (one.part.moved_bytes + again) / self._hardware.memory_bandwidth,
            )
            busy += time * one.number * one.passes
            idle += time * one.number * one.passes * (one.idle_factor - 1)
        written = state.bytes["weights"] + state.bytes["slots"] - state.sparse_bytes
        moved = 2 * written + state.bytes["gradients"]
        seconds = {
            "arithmetic": busy,
            "bubble": idle,
            "update": moved / self._hardware.memory_bandwidth,
        }
        for one in exchanges:
            purpose = one.exchange.purpose
            seconds[purpose] = seconds.get(purpose, 0.0) + one.seconds
        return seconds

    # ---- memory

    def _memory(
        self, candidate: Candidate, state: memory.StatePart, layers: Sequence[_Layers]
    ) -> dict[str, float]:
        """Returns the bytes of a step by kind, without the state, as `working_bytes` does."""
        parts = candidate.accumulation_steps
        gathered = max(one.part.weight_bytes for one in layers)
        if self._steps_per_turn(candidate) == 1:  # all turns use weights gathered before the loop
            gathered = max(gathered, state.stack_gathered_bytes)
        return memory.working_bytes(
            self._residuals(
                candidate.mesh,
                candidate.rules,
                parts,
                candidate.micro_batches,
                self._is_loop_that_keeps_all(candidate),
            ),
            self._loop(candidate, state),
            gradients=state.bytes["gradients"],
            new_state=state.bytes["weights"] + state.bytes["slots"] - state.sparse_bytes,
            gathered=gathered + state.gathered_bytes,
            is_accumulated=parts > 1,
        )

    def _find_residuals(
        self, mesh: Topology, recipe: Recipe, parts: int, micro_batches: int, loop_keeps_all: bool
    ) -> memory.ResidualBytes:
        rules = self.rules(recipe)
        return memory.residual_bytes(
            self._workload,
            mesh,
            rules,
            parts=parts,
            micro_batches=micro_batches,
            is_tpu=self._hardware.is_tpu,
            loop_keeps_all=loop_keeps_all,
        )

    def _is_loop_that_keeps_all(self, candidate: Candidate) -> bool:
        """Whether the stack is a loop over layers whose gradient recomputes nothing."""
        is_recomputed = candidate.remat or self._workload.is_recomputed or candidate.num_stages > 1
        return self._workload.stack not in ("", "Stack") and not is_recomputed

    def _loop(self, candidate: Candidate, state: memory.StatePart) -> memory.Loop:
        """Returns the loop in which a device computes its layers of the stack."""
        stages, calls = candidate.num_stages, candidate.micro_batches * candidate.repeats
        is_recomputed = candidate.remat or self._workload.is_recomputed
        is_loop = self._workload.stack not in ("", "Stack") or is_recomputed
        weights = state.stack_bytes
        boundary = self._boundary_bytes(candidate) / candidate.accumulation_steps
        if stages > 1:
            turns = calls / (1 - candidate.bubble)
            size = boundary / candidate.micro_batches
            steps = self._steps_per_turn(candidate)
            share = 1 / (candidate.repeats * steps)
            return memory.Loop(
                turns,
                weights,
                size,
                share,
                is_recomputed=True,
                num_steps=steps,
                keeps_turns=self._workload.keeps_turns,
            )
        stacks = self._workload.stacks
        number = sum(one.num_steps for one in stacks) if is_loop else 0
        if self._hardware.is_tpu:
            weights = 0.0  # iterations read them from the state
        share = 1 / max(1, number)
        if number:  # several stacks: the mean of their boundaries
            elements = sum(one.num_steps * one.boundary for one in stacks) / number
            boundary *= elements / math.prod(self._workload.boundary)
        return memory.Loop(number, share * weights, boundary, share, is_recomputed)

    def _steps_per_turn(self, candidate: Candidate) -> int:
        """Returns how many steps of the stack's pattern a stage computes per turn; 0: no pipeline.

        The pattern is the group of layers that the stack applies again and again.
        """
        stages = candidate.num_stages
        return math.ceil(self._workload.num_steps / (stages * candidate.repeats)) * (stages > 1)

    def _boundary_bytes(self, candidate: Candidate) -> float:
        """Returns a device's bytes of the tensor that one layer of the stack passes to the next."""
        table = self.rules(candidate.rules).activations
        axes = {axis for name in ("batch", "length", "embed") for axis in table[name]}
        whole = math.prod(self._workload.boundary) * ITEM_BYTES[self._workload.dtype]
        return whole / candidate.mesh.size(axes)


def _exchange_weights(
    candidate: Candidate, state: memory.StatePart, sums: Exchanges, steps_per_turn: int
) -> None:
    """Adds the exchanges of weights and their gradients to `sums`.

    A stack's weights are gathered for each part of a batch that gradient accumulation computes. If
    a pipeline computes several steps of the stack's pattern per turn, they are gathered in each
    turn. Weights outside the stack are gathered once, and so are the weights of a pipeline that
    computes one step of the pattern per turn.
    """
    parts = candidate.accumulation_steps
    uses: float = parts
    if steps_per_turn:
        uses *= candidate.micro_batches * candidate.repeats / (1 - candidate.bubble)
    for one in state.stack_uses:
        number = uses
        if one.purpose == "gradients":
            number /= candidate.repeats  # a turn has the gradients of one repeat
        elif steps_per_turn == 1:
            number = 0.5  # a use gathers forward and backward
        sums.add_exchange(one, calls=number, number=number)
    for one in state.other_uses:
        number = 1 if one.purpose == "weights" else parts
        sums.add_exchange(one, calls=number, number=number)
    for one in state.updates:
        sums.add_exchange(one)
