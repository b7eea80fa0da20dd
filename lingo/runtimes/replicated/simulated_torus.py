"""A simulation of chips that fail while they train: a torus of chips on one device of this machine.

Each chip is an entry in a table: its id and its own training state, which no other chip reads. One
after the other, the chips compute the sums of their parts of the batch. The sums are flattened to a
vector per chip, the vectors are summed by an executed all-reduce plan (`lingo/mesh/allreduce`,
NumPy on the host), and each chip updates its own state. When chips fail, their states are deleted,
the all-reduce is planned again around them, the next batch is split over the other chips, which
go on from their own states. Losses equal one device's losses: sums are divided by the denominators
of the whole batch, and parts are filled up with examples of weight 0.

    for each step:
        delete the states of chips that fail now; plan the all-reduce again
        denominators = all_reduce(loss_denominators(part) of each chip)
        sums = all_reduce(batch_sums(state, part, denominators) of each chip)
        state, report = update(state, sums) of each chip

The simulation shows which chip computes what from which memory, and in which order numbers are
added; it does not measure time. Every chip holds the whole state, so any healthy chip has all of
it. With `shard_update` each chip holds one piece of the optimizer's slots, and the update is
computed once, from all pieces. A chip that fails then takes its piece with it, and the run goes
back to its last checkpoint, on the remaining chips.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.count_text import count_text
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.learner.padding import row_multiple
from lingo.learner.placement import Placement
from lingo.learner.state import Learner, TrainState, load_arrays, num_bytes
from lingo.learner.step import batch_sums, loss_denominators, step_graph
from lingo.learner.update import join_reports, update
from lingo.mesh.allreduce.execution import execute
from lingo.mesh.allreduce.grid import Grid, grid
from lingo.mesh.allreduce.plan import AllReducePlan
from lingo.mesh.allreduce.planner import fastest_plan, make_plan
from lingo.ops.add_in_order import add_in_order
from lingo.runtimes.local import LocalProgram
from lingo.runtimes.program import Arrays, Feed, LostState
from lingo.runtimes.replicated.shares import Shares, check_statistics
from lingo.runtimes.runtime import Runtime

Planner = Literal["fastest", "ring", "torus2d", "torus3d", "multiring", "row_pairs"]
MAX_CHIPS = 256
"""The most chips that are simulated: each has a copy of the state, and computes in turn."""

_log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """Chips that fail, and the grid that is left."""

    step: int  # steps done before it
    hole: str  # "2x2@1,1"
    grid: Grid


class SimulatedTorus(Runtime):
    """Trains on a simulated torus of chips with failures: see `docs/allreduce.md`.

    The chips compute one after the other on one device, so nothing is fast. A batch that they
    cannot share equally is padded as by `Replicated`.
    """

    shape: list[int] = [4, 4]  # chips along each axis
    links: Literal["torus", "mesh"] = "torus"  # torus: a link joins the ends of each row of chips
    planner: Planner = "fastest"  # of the all-reduce; fastest: lowest predicted cost
    shard_update: bool = False  # each chip keeps only one piece of the optimizer's slots
    holes: list[str] = []  # chips that failed before the start: sizes and first position, "2x2@4,6"
    failures: dict[str, str] = {}  # {"50": "2x2@1,1"}: after 50 steps these chips fail, too

    def check(self) -> None:
        if math.prod(self.p.shape) > MAX_CHIPS:
            raise ParamError(
                f"shape={self.p.shape} has {math.prod(self.p.shape):,} chips: {MAX_CHIPS} at most"
                " are simulated"
            )
        for one in self.list_grids():
            self.plan(one, 1)

    def first_grid(self) -> Grid:
        """Returns the chips that compute at first."""
        kind = "ring" if self.p.links == "torus" else "line"
        return grid(self.p.shape, kind=kind, holes=self.p.holes)

    def list_failures(self) -> list[Failure]:
        """Returns the failures in the order of their steps; raises ParamError for a wrong one."""
        failures: list[Failure] = []
        current = self.first_grid()
        for text in self.p.failures:
            if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text)):
                raise ParamError(
                    f"failures has {text!r:.40} where the number of steps before belongs: write"
                    ' {"50": "2x2@1,1"}'
                )
        for text in sorted(self.p.failures, key=int):
            hole = self.p.failures[text]
            holes = (*self.p.holes, *(failure.hole for failure in failures), hole)
            before, current = current, grid(self.p.shape, kind=current.axes[0].kind, holes=holes)
            if current.holes == before.holes:
                raise ParamError(f"failures: {hole!r} at step {text} has failed already")
            failures.append(Failure(int(text), hole, current))
        return failures

    def list_grids(self) -> list[Grid]:
        """Returns the chips that compute at first, and after each failure."""
        return [self.first_grid(), *(failure.grid for failure in self.list_failures())]

    def plan(self, one: Grid, num_elements: int) -> AllReducePlan:
        """Returns the all-reduce on a grid; raises ParamError if the planner has none."""
        if self.p.planner == "fastest":
            return fastest_plan(one, num_elements)
        return make_plan(self.p.planner, one)

    def check_learner(self, learner: Learner) -> None:
        super().check_learner(learner)
        if learner.task.parts():
            raise ParamError(
                "runtime: SimulatedTorus trains one task, and a MultiTask has several: take Local,"
                " Replicated or Mesh"
            )
        if table := next((w.path for w in learner.weights().values() if w.sparse), None):
            raise ParamError(
                f"runtime: SimulatedTorus adds up whole gradients, and {table} is a sparse table:"
                " take Local, Replicated or Mesh, or declare it without sparse"
            )
        for one in self.list_grids() if learner.specs else ():
            check_statistics(learner, _shares(one), learner.specs["rows"][0][0])

    def start(self, learner: Learner, state: TrainState) -> SimulatedTorusProgram:
        return SimulatedTorusProgram(learner, state, self)

    @property
    def compiles(self) -> bool:
        return False

    def num_replicas(self, *, devices_ready: bool) -> int | None:
        return self.num_host_devices()

    def padded_batch_size(self, batch_size: int, learner: Learner) -> int:
        multiple = row_multiple(learner)
        return -(-batch_size // multiple) * multiple

    def num_host_devices(self) -> int:
        return self.first_grid().num_healthy

    def host_bytes(self, learner: Learner) -> int:
        sizes = num_bytes(learner)
        copies = dict.fromkeys(sizes, self.num_host_devices())
        if self.p.shard_update:
            copies["slots"] = 1  # each chip has a piece
        return sum(size * copies[kind] for kind, size in sizes.items())

    def advice(self, dtype: str) -> list[str]:
        one = self.first_grid()
        chips = count_text(one.num_healthy, "chip")
        verb = "computes" if one.num_healthy == 1 else "compute"
        return [
            f"simulation: {chips} of a {one} {verb} one after the other; their"
            " gradients are summed on the host, as a plan of all-reduce says"
        ]


def _compile(function: Callable[..., Any], *args: Any) -> Any:
    """Returns a function of the rest of its arguments, which TensorFlow compiles."""
    return tf.function(add_in_order()(functools.partial(function, *args)), autograph=False)


def _shares(one: Grid) -> Shares:
    return Shares(index=0, num_processes=1, num_replicas=one.num_healthy)


class SimulatedTorusProgram(LocalProgram):
    """A learner on simulated chips, each with its own state; the first chip's is evaluated."""

    def __init__(self, learner: Learner, state: TrainState, runtime: SimulatedTorus) -> None:
        """Puts the state on every chip that has not failed by the state's step."""
        super().__init__(learner, state, Placement())
        self._runtime = runtime
        self._failures = runtime.list_failures()
        self._plan = self._make_plan(runtime.first_grid())
        while self._failures and self._failures[0].step < int(np.asarray(state.step)):
            what, plans = self._plan_without_next()
            chips = count_text(len(self._chips), "chip")
            _log.warning(f"{what}; {plans}; this run starts on {chips}")
        self._memory: dict[int, TrainState] = {}  # id of a healthy chip -> its state
        self._pieces: dict[int, np.ndarray] = {}  # of slots, by chip, with `shard_update`
        self._lost = ""  # why the state is not whole
        self.load(state)
        self._denominators = _compile(loss_denominators, learner.task)
        self._phases = [
            (_compile(batch_sums, own), _compile(update, own)) for own in learner.in_turn()
        ]

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        size = self._part_size(specs["rows"][0][0])
        batch = {k: tf.TensorSpec([size, *shape[1:]], d) for k, (shape, d) in specs.items()}
        denominators = self._denominators.get_concrete_function(batch).structured_outputs
        state = self._memory[self._chips[0]]
        for sums, _ in self._phases:
            sums.get_concrete_function(state, batch, denominators)

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step of the whole batch on one device: no chips, no sums."""
        return step_graph(self._learner, specs)

    def train(self, batches: Arrays) -> dict[str, Any]:
        before, pieces = self._memory, self._pieces
        try:
            reports = [
                self._train_step({name: values[i] for name, values in batches.items()})
                for i in range(len(batches["rows"]))
            ]
        except tf.errors.OpError:  # all steps take effect, or none; failed chips stay failed
            self._memory = {chip: before[chip] for chip in self._chips}
            self._pieces = pieces
            raise
        return tf.nest.map_structure(lambda *values: np.stack(values), *reports)

    def state(self, *, alone: bool = False) -> TrainState:
        return load_arrays(self._whole_state())

    def load(self, state: TrainState) -> None:
        tensors = tf.nest.map_structure(tf.constant, load_arrays(state))
        self._slots_like, self._lost = tensors.slots, ""
        self._store({chip: tensors for chip in self._chips})

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        """Puts a batch on the device, with the state of the chip that evaluates it."""
        self._assign(self.state())
        return super().put(batch, axis=axis, prompts=prompts)

    def _store(self, states: Mapping[int, TrainState]) -> None:
        """Puts a state on each chip; with `shard_update` only a piece of its slots."""
        self._memory = dict(states)
        if not self._runtime.p.shard_update:
            return
        slots = _to_vector(self._memory[self._chips[0]].slots)
        if slots.size:  # without slots, every chip has the whole state
            pieces = np.array_split(slots, len(states))
            self._pieces = dict(zip(self._chips, pieces, strict=True))
            self._memory = {chip: state._replace(slots={}) for chip, state in states.items()}

    def _whole_state(self) -> TrainState:
        """Returns the state of the first healthy chip, with the slots of all chips.

        Raises LostState if pieces of the slots are lost.
        """
        if self._lost:
            raise LostState(self._lost)
        state = self._memory[self._chips[0]]
        if not self._pieces:
            return state
        slots = np.concatenate([self._pieces[chip] for chip in self._chips])
        return state._replace(slots=_from_vector(slots, self._slots_like))

    # ---- steps

    @property
    def _chips(self) -> list[int]:
        """The ids of the healthy chips, ascending."""
        return self._plan.grid.healthy.tolist()

    def _make_plan(self, one: Grid) -> AllReducePlan:
        sizes = [math.prod(weight.shape) for weight in self._learner.weights().values()]
        return self._runtime.plan(one, sum(sizes))

    def _part_size(self, batch_size: int) -> int:
        """Returns how many examples each chip computes, padding included."""
        multiple = row_multiple(self._learner)
        return _shares(self._plan.grid).replica_size(batch_size, multiple_of=multiple)

    def _train_step(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        self._lose_chips()
        chips, multiple = self._chips, row_multiple(self._learner)
        split = _shares(self._plan.grid).split(batch, len(batch["rows"]), multiple_of=multiple)
        parts = [
            {name: tf.constant(values[i]) for name, values in split.items()}
            for i in range(len(chips))
        ]
        denominators = self._all_reduce([self._denominators(part) for part in parts])
        step, reports = self._memory[chips[0]].step, []
        for sum_up, move in self._phases:
            states = [self._memory[chip]._replace(step=step) for chip in chips]
            sums = self._all_reduce([*map(sum_up, states, parts, denominators)])
            if self._pieces:
                state, report = move(self._whole_state()._replace(step=step), sums[0])
                after = [(state, report)] * len(chips)
            else:
                after = [move(state, total) for state, total in zip(states, sums, strict=True)]
            self._store({chip: state for chip, (state, _) in zip(chips, after, strict=True)})
            reports.append(after[0][1])
        return join_reports(reports)

    def _lose_chips(self) -> None:
        """Deletes the states of the chips that fail before the next step, and plans without them.

        It logs what happens. Raises LostState if the remaining chips lack a piece of the state.
        """
        while self._failures and self._failures[0].step <= int(self._memory[self._chips[0]].step):
            what, plans = self._plan_without_next()
            self._memory = {chip: self._memory[chip] for chip in self._chips}
            if self._pieces:
                self._lost = f"{what}, with their pieces of the optimizer's slots; {plans}"
                raise LostState(self._lost)
            go_on = "go on from their" if len(self._chips) > 1 else "goes on from its"
            _log.warning(
                f"{what}; {plans}; {count_text(len(self._chips), 'chip')} {go_on} own memory, and"
                f" chip {self._chips[0]} is saved and evaluated"
            )

    def _plan_without_next(self) -> tuple[str, str]:
        """Plans without the chips that fail next; returns texts on these chips and on the plans."""
        failure, old = self._failures.pop(0), self._plan
        self._plan = new = self._make_plan(failure.grid)
        lost = sorted(new.grid.holes - old.grid.holes)
        what = (
            f"simulation: {'chips' if len(lost) > 1 else 'chip'} {', '.join(map(str, lost))}"
            f" ({failure.hole}) lost after step {failure.step}"
        )
        plans = (
            f"all-reduce planned again around them: {new.name}, {count_text(new.num_steps, 'step')}"
            f" in place of {old.num_steps:,} of {old.name}"
        )
        return what, plans

    def _all_reduce(self, values: Sequence[Any]) -> list[Any]:
        """Adds up the chips' structures of tensors; returns the sums that each healthy chip has.

        Failed chips have NaN, which would show in any sum that includes them.
        """
        vectors, healthy = np.stack([*map(_to_vector, values)]), self._plan.grid.healthy
        everywhere = np.full((self._plan.grid.size, vectors.shape[1]), np.nan, vectors.dtype)
        everywhere[healthy] = vectors
        return [
            _from_vector(total, values[0]) for total in execute(self._plan, everywhere)[healthy]
        ]


def _to_vector(values: Any) -> np.ndarray:
    """Returns the elements of a structure of tensors, [E]."""
    flat = [np.ravel(value) for value in tf.nest.flatten(values)]
    return np.concatenate([np.zeros(0, np.float32), *flat])


def _from_vector(vector: np.ndarray, like: Any) -> Any:
    """Returns the elements [E] as a structure of tensors with the shapes of `like`."""
    flat = tf.nest.flatten(like)
    ends = np.cumsum([math.prod(one.shape) for one in flat])
    pieces = zip(np.split(vector, ends[:-1]), flat, strict=True) if flat else ()
    tensors = [tf.constant(piece.reshape(one.shape), one.dtype) for piece, one in pieces]
    return tf.nest.pack_sequence_as(like, tensors)
