"""A learner on replicas: each computes the step of one device; sums are over all replicas.

    for each step, on every replica:
        denominators = total(task.loss_denominators(its part of the batch))
        sums = total(gradients, losses, ... of its part)     # all tensors of a dtype at once
        its variables = update(its variables, sums)          # equal everywhere, or its chunks

The loop over steps is outside the replicas, because TensorFlow's all-reduce works neither in loops
nor in conditionals.

Axes: K steps, B examples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.learner.padding import row_multiple
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.learner.step import train_step
from lingo.mesh.weight_rows import WeightRows, read_rows, split_rows, weight_rows
from lingo.ops.scan import scan
from lingo.processes.processes import Processes
from lingo.runtimes.layout import Layout
from lingo.runtimes.program import Arrays, Computation, Feed, Program, ProgramError
from lingo.runtimes.replicated.placement import ReplicaPlacement, ShardedUpdate
from lingo.runtimes.replicated.shares import Shares as BatchShares
from lingo.runtimes.replicated.shares import check_statistics
from lingo.storage.shards import Index, Shards

JointComputation = Callable[[], contextlib.AbstractContextManager[None]]
"""Returns a context for computations of all processes, which a lost process may block."""

Parts = Mapping[str, tuple[Any, ...]]
"""A batch split over replicas: name -> one tensor for each replica of this process."""

_HOST = "CPU:0"  # of each process: holds the batches until a replica reads its step's batch


@dataclasses.dataclass(frozen=True)
class _Kept:
    """The part of a tensor that a replica keeps: all of it, or a chunk of its rows."""

    shape: tuple[int, ...] = ()
    rows: WeightRows | None = None

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of a chunk: [*stacked axes, 1, elements]."""
        return tuple(part.stop - part.start for part in self.index(0))

    def index(self, replica: int) -> Index:
        """Returns the index of a replica's chunk in the rows, [*stacked axes, 1, all columns]."""
        if self.rows is None:
            return ()
        stacked = self.shape[: len(self.shape) - len(self.rows.shape)]
        columns = slice(replica * self.rows.chunk_size, (replica + 1) * self.rows.chunk_size)
        return (*(slice(0, n) for n in stacked), slice(0, 1), columns)


def _kept_tensors(state: TrainState, layout: Layout | None) -> TrainState:
    """Returns the `_Kept` of each tensor of a state."""
    if layout is None:
        return tf.nest.map_structure(lambda value: _Kept(), state)
    return layout.map(
        lambda v, split: _Kept(v.shape, weight_rows(v.shape, split, layout.mesh)), state
    )


class ReplicatedProgram(Program):
    """Runs steps in a loop in one graph; each replica reads and assigns its own variables."""

    def __init__(
        self,
        learner: Learner,
        state: TrainState,
        strategy: tf.distribute.Strategy,
        processes: Processes,
        *,
        layout: Layout | None = None,
        joint_computation: JointComputation = contextlib.nullcontext,
        xla: bool,
    ) -> None:
        """Puts the first state, the same in all `processes`, on every replica.

        With a layout (`replica_layout`), each replica has chunks of slots; without, copies of all.
        """
        tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        super().__init__(
            learner,
            ShardedUpdate(layout, tpu=tpu) if layout else ReplicaPlacement(xla=xla, tpu=tpu),
        )
        self._strategy, self._layout = strategy, layout
        self._joint_computation = joint_computation
        self._row_multiple = row_multiple(learner)
        self._num_processes = processes.count
        self._shares = BatchShares(
            index=processes.index,
            num_processes=processes.count,
            num_replicas=strategy.num_replicas_in_sync // processes.count,
        )
        self._check_statistics = functools.partial(check_statistics, learner, self._shares, xla=xla)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # see Local
        self._kept = _kept_tensors(state, layout)
        with self.call_context():
            self._variables = tf.nest.map_structure(self._variable, state, self._kept)
        if layout is not None:
            self.load(state)
        self._sizes = tf.function(self._all_sizes, autograph=False)

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        self._check_statistics(specs["rows"][0][0])
        shares, largest = self._shares, self._shares.largest(specs["rows"][0][0])
        size = shares.replica_size(largest, multiple_of=self._row_multiple)
        traced = {
            name: (tf.TensorSpec([None, size, *shape[1:]], dtype),) * shares.num_replicas
            for name, (shape, dtype) in specs.items()
        }
        self._train.get_concrete_function(traced)

    def train(self, batches: Arrays) -> dict[str, Any]:
        # A call assigns after each step. If a step fails, the state before the call is restored.
        with self.call_context(), self._all_or_nothing(len(batches["rows"])):
            return self._train(*self.put(batches, axis=1).args)

    def example_slice(self, size: int) -> slice:
        return self._shares.example_slice(size)

    def state(self, *, alone: bool = False) -> TrainState:
        if self._layout is not None and alone and self._num_processes > 1:
            raise ProgramError("parts of the state are only in other processes")
        return tf.nest.map_structure(self._host_value, self._variables, self._kept)

    def load(self, state: TrainState) -> None:
        flattened = (tf.nest.flatten(self._kept), tf.nest.flatten(state))
        for copies, kept, value in zip(self._copies(), *flattened, strict=True):
            if kept.rows is None:
                value = np.asarray(value)
            for variable, index in zip(copies, self._indices(kept), strict=True):
                variable.assign(read_rows(value, index, kept.rows) if kept.rows else value)

    def compile_steps(self) -> Any:
        return tf.function(self._steps, autograph=False, reduce_retracing=True)

    def compile_call(self, computation: Computation) -> Any:
        place = self._place

        def call(weights: WhichWeights, batch: Parts, *args: Any) -> Any:
            def on_replica(own: Mapping[str, tf.Tensor]) -> Any:
                state = place.state_for_evaluation(self._read(), weights)
                results = place.compute(lambda: self._compute(computation, state, own, *args))
                return place.total(results) if computation.is_sum else _gather(results)

            return self._on_replicas(on_replica, batch)

        return tf.function(call, autograph=False, reduce_retracing=computation.takes_prompts)

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        sizes, multiple_of = self._agree(batch["rows"].shape[axis]), 1
        if axis == 1:  # to train
            self._check_statistics(sum(sizes))
            multiple_of = self._row_multiple
        parts = self._shares.split(
            batch, max(sizes), axis=axis, multiple_of=multiple_of, repeat=prompts
        )
        with tf.device(_HOST):
            tensors = {name: tuple(map(tf.constant, values)) for name, values in parts.items()}
        return Feed((tensors,), sizes)

    def get(self, results: Mapping[str, Any], feed: Feed) -> dict[str, np.ndarray]:
        arrays = super().get(results, feed)
        return {name: self._shares.join(value, feed.sizes) for name, value in arrays.items()}

    def call_context(self) -> contextlib.AbstractContextManager[None]:
        return self._joint_computation()

    # ---- variables ---------------------------------------------------------------------------

    def _variable(self, value: Any, kept: _Kept) -> tf.Variable:
        """Returns a variable with a copy, or a chunk, on every replica."""
        with self._strategy.scope():
            return tf.Variable(
                tf.constant(np.asarray(value)) if kept.rows is None else tf.zeros(kept.chunk_shape),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _indices(self, kept: _Kept) -> list[Index]:
        """Returns the index of each local replica's chunk in a tensor in rows."""
        first, num = self._shares.index * self._shares.num_replicas, self._shares.num_replicas
        return [kept.index(replica) for replica in range(first, first + num)]

    def _host_value(self, variable: Any, kept: _Kept) -> np.ndarray | Shards:
        """Returns the part of a variable that this process saves."""
        copies = self._own(variable)
        if (rows := kept.rows) is None:
            return copies[0].numpy()
        pieces = [
            piece
            for copy, index in zip(copies, self._indices(kept), strict=True)
            for piece in split_rows(copy.numpy(), index, rows, kept.shape)
        ]
        if self._num_processes > 1:
            return Shards(kept.shape, [(index, np.array(piece)) for index, piece in pieces])
        value = np.empty(kept.shape, np.float32)
        for index, piece in pieces:
            value[index] = piece
        return value

    def _own(self, value: Any) -> tuple[Any, ...]:
        """Returns the values of the replicas of this process."""
        return self._strategy.experimental_local_results(value)

    @contextlib.contextmanager
    def _all_or_nothing(self, num_steps: int) -> Iterator[None]:
        """Restores the variables if one of several steps fails."""
        if num_steps == 1:  # a step assigns only when nothing can fail any more
            yield
            return
        variables = [variable for copies in self._copies() for variable in copies]
        before = [variable.read_value() for variable in variables]  # copy on write
        try:
            yield
        except tf.errors.OpError:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            raise

    def _copies(self) -> list[tuple[tf.Variable, ...]]:
        """Returns each variable's copies on the replicas of this process."""
        return [self._own(variable) for variable in tf.nest.flatten(self._variables)]

    # ---- on all replicas ---------------------------------------------------------------------

    def _steps(self, batches: Parts) -> dict[str, Any]:
        def step(i: tf.Tensor, carry: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
            return (), self._on_replicas(self._replica_step, batch)

        with tf.device(_HOST):
            num = tf.shape(batches["rows"][0])[0]
            return scan(tf.function(step, autograph=False), (), dict(batches), num)[1]

    def _replica_step(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        after, report = train_step(self._learner, self._read(), batch, self._place)
        with tf.control_dependencies(tf.nest.flatten((after, report))):  # assigns all, or none
            tf.nest.map_structure(lambda v, value: v.assign(value), self._variables, after)
        return report

    def _all_sizes(self, size: tf.Tensor) -> tf.Tensor:
        """Gathers an int32 scalar from every process; returns int32 [number of processes]."""

        def total(own: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(own))

        copies = self._shares.num_replicas
        own = tf.one_hot(self._shares.index, self._num_processes, size, 0)
        return self._on_replicas(total, (own, *[tf.zeros_like(own)] * (copies - 1)))

    def _read(self) -> TrainState:
        return tf.nest.map_structure(tf.convert_to_tensor, self._variables)

    def _on_replicas(self, function: Callable[[Any], Any], each: Any) -> Any:
        """Runs a function on all replicas; returns the result of this process's first replica."""
        strategy, shares = self._strategy, self._shares

        def replica_input(context: tf.distribute.experimental.ValueContext) -> Any:
            i = context.replica_id_in_sync_group - shares.index * shares.num_replicas
            if isinstance(each, tuple):
                return each[i]
            return {name: values[i] for name, values in each.items()}

        args = (strategy.experimental_distribute_values_from_function(replica_input),)
        results = strategy.run(function, args=args)
        return tf.nest.map_structure(lambda value: self._own(value)[0], results)

    def _agree(self, size: int) -> list[int]:
        """Returns how many examples each process has; the largest number decides all shapes."""
        if self._num_processes == 1:
            return [size]
        return self._sizes(tf.constant(size)).numpy().tolist()


def _gather(results: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Gathers a replica's part of results, name -> tensor; returns the [B, ...] of all replicas."""
    replica = tf.distribute.get_replica_context()
    gathered: dict[str, tf.Tensor] = {}
    for name, value in results.items():
        # Collectives take neither booleans nor an unchanged argument of the program.
        number = tf.identity(tf.cast(value, tf.int32) if value.dtype == tf.bool else value)
        gathered[name] = tf.cast(replica.all_gather(number, axis=0), value.dtype)
    return gathered
