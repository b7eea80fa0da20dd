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
from lingo.decode.decoding import Decoding
from lingo.learner.padding import row_multiple
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.learner.step import (
    decode_batch,
    evaluate_batch,
    predict_batch,
    step_graph,
    train_step,
)
from lingo.mesh.weight_rows import WeightRows, read_rows, split_rows, weight_rows
from lingo.metrics.metric import State, add_states, read_states
from lingo.ops import random
from lingo.ops.scan import scan
from lingo.processes.processes import Processes
from lingo.runtimes.layout import Layout
from lingo.runtimes.replicated.placement import ReplicaPlacement, ShardedUpdate
from lingo.runtimes.replicated.shares import Shares as BatchShares
from lingo.runtimes.replicated.shares import check_statistics
from lingo.runtimes.runtime import Arrays, ProgramError
from lingo.storage.shards import Index, Shards

JointComputation = Callable[[], contextlib.AbstractContextManager[None]]
"""Returns a context for computations of all processes, which a lost process may block."""

Parts = Mapping[str, tuple[Any, ...]]
"""A batch in parts: name -> a tensor of each replica of this process."""

_HOST = "CPU:0"  # of each process: holds the batches until a replica reads that of its step


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What replicas keep of a tensor: all of it, or a chunk of its rows."""

    shape: tuple[int, ...] = ()
    rows: WeightRows | None = None

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of a chunk: [*stacked axes, 1, elements]."""
        return tuple(part.stop - part.start for part in self.index(0))

    def index(self, replica: int) -> Index:
        """Returns which part of the rows, [*stacked axes, 1, all columns], a replica has."""
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


class ReplicatedProgram:
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

        With a layout (`replica_layout`), replicas have chunks of slots, else copies of everything.
        """
        self._learner, self._strategy = learner, strategy
        self._joint_computation = joint_computation
        self._row_multiple = row_multiple(learner)
        tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        self._layout = layout
        self._placement = (
            ReplicaPlacement(xla=xla, tpu=tpu) if layout is None else ShardedUpdate(layout, tpu=tpu)
        )
        self._num_processes = processes.count
        self._shares = BatchShares(
            index=processes.index,
            num_processes=processes.count,
            num_replicas=strategy.num_replicas_in_sync // processes.count,
        )
        self._check_statistics = functools.partial(check_statistics, learner, self._shares, xla=xla)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # see Local
        self._kept = _kept_tensors(state, layout)
        with self._joint_computation():
            self._variables = tf.nest.map_structure(self._variable, state, self._kept)
        if layout is not None:
            self.load(state)
        self._train = tf.function(self._steps, autograph=False, reduce_retracing=True)
        self._evaluate = tf.function(self._states, autograph=False)
        self._predict = tf.function(self._predictions, autograph=False)
        self._decode = tf.function(self._texts, autograph=False, reduce_retracing=True)
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

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step on a single replica, without sums over replicas."""
        return step_graph(self._learner, specs)

    def train(self, batches: Arrays) -> dict[str, Any]:
        num_steps = len(batches["rows"])
        with self._joint_computation(), self._all_or_nothing(num_steps):
            sizes = self._agree(batches["rows"].shape[1])
            self._check_statistics(sum(sizes))
            batch = self._shares.split(batches, max(sizes), axis=1, multiple_of=self._row_multiple)
            return self._train(_tensors(batch))

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        with self._joint_computation():
            sizes = self._agree(len(batch["rows"]))
            states = self._evaluate(_tensors(self._shares.split(batch, max(sizes))), weights)
        return add_states(sums, states)

    def read_sums(self, sums: Mapping[str, State]) -> dict[str, dict[str, np.ndarray]]:
        with self._joint_computation():
            return read_states(sums)

    def predict(self, batch: Arrays, *, weights: WhichWeights = "trained") -> dict[str, np.ndarray]:
        with self._joint_computation():
            sizes = self._agree(len(batch["rows"]))
            results = self._predict(_tensors(self._shares.split(batch, max(sizes))), weights)
        return {k: self._shares.join(value.numpy(), sizes) for k, value in results.items()}

    def decode(
        self, batch: Arrays, decoding: Decoding, *, seed: int = 0, weights: WhichWeights = "trained"
    ) -> dict[str, np.ndarray]:
        key = random.Key(*map(tf.constant, random.root_key(seed)))
        with self._joint_computation():
            sizes = self._agree(len(batch["rows"]))
            prompts = _tensors(self._shares.split(batch, max(sizes), repeat=True))
            texts = self._decode(prompts, decoding, key, weights)
        return {k: self._shares.join(value.numpy(), sizes) for k, value in texts.items()}

    def example_slice(self, size: int) -> slice:
        return self._shares.example_slice(size)

    def state(self, *, alone: bool = False) -> TrainState:
        if self._layout is not None and alone and self._num_processes > 1:
            raise ProgramError("parts of the state are in other processes only")
        return tf.nest.map_structure(self._host_value, self._variables, self._kept)

    def load(self, state: TrainState) -> None:
        flattened = (tf.nest.flatten(self._kept), tf.nest.flatten(state))
        for copies, kept, value in zip(self._copies(), *flattened, strict=True):
            if kept.rows is None:
                value = np.asarray(value)
            for variable, index in zip(copies, self._indices(kept), strict=True):
                variable.assign(read_rows(value, index, kept.rows) if kept.rows else value)

    # ---- variables ---------------------------------------------------------------------------

    def _variable(self, value: Any, kept: _Kept) -> tf.Variable:
        """Returns a variable that every replica has its own copy, or chunk, of."""
        with self._strategy.scope():
            return tf.Variable(
                tf.constant(np.asarray(value)) if kept.rows is None else tf.zeros(kept.chunk_shape),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _indices(self, kept: _Kept) -> list[Index]:
        """Returns which part of a tensor in rows each replica of this process has."""
        first, num = self._shares.index * self._shares.num_replicas, self._shares.num_replicas
        return [kept.index(replica) for replica in range(first, first + num)]

    def _host_value(self, variable: Any, kept: _Kept) -> np.ndarray | Shards:
        """Returns what this process saves of a variable."""
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
            return (), self._on_replicas(self._one, batch)

        with tf.device(_HOST):
            num = tf.shape(batches["rows"][0])[0]
            return scan(tf.function(step, autograph=False), (), dict(batches), num)[1]

    def _one(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        state = tf.nest.map_structure(tf.convert_to_tensor, self._variables)
        after, report = train_step(self._learner, state, batch, self._placement)
        with tf.control_dependencies(tf.nest.flatten((after, report))):  # assigns all, or none
            tf.nest.map_structure(lambda v, value: v.assign(value), self._variables, after)
        return report

    def _states(self, batch: Parts, weights: WhichWeights) -> dict[str, Any]:
        def states(batch: Mapping[str, tf.Tensor]) -> Any:
            state, task, place = self._read(weights), self._learner.task, self._placement
            return place.total(
                place.compute(
                    lambda: evaluate_batch(task, state.weights, state.state, batch, place)
                )
            )

        return self._on_replicas(states, batch)

    def _predictions(self, batch: Parts, weights: WhichWeights) -> dict[str, tf.Tensor]:
        def predictions(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            state, task, place = self._read(weights), self._learner.task, self._placement
            return _gather(
                place.compute(lambda: predict_batch(task, state.weights, state.state, batch, place))
            )

        return self._on_replicas(predictions, batch)

    def _texts(
        self, batch: Parts, decoding: Decoding, key: random.Key, weights: WhichWeights
    ) -> dict[str, tf.Tensor]:
        def texts(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            state, task, place = self._read(weights), self._learner.task, self._placement
            return _gather(
                place.compute(
                    lambda: decode_batch(
                        task, state.weights, state.state, batch, decoding, key, place
                    )
                )
            )

        return self._on_replicas(texts, batch)

    def _all_sizes(self, size: tf.Tensor) -> tf.Tensor:
        """Returns the int32 scalar of every process, as int32 [number of processes]."""

        def total(own: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(own))

        copies = self._shares.num_replicas
        own = tf.one_hot(self._shares.index, self._num_processes, size, 0)
        return self._on_replicas(total, (own, *[tf.zeros_like(own)] * (copies - 1)))

    def _read(self, weights: WhichWeights) -> TrainState:
        state = tf.nest.map_structure(tf.convert_to_tensor, self._variables)
        return self._placement.state_for_evaluation(state, weights)

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
    """Returns results [B, ...] of this replica, name -> tensor, with those of all others."""
    replica = tf.distribute.get_replica_context()
    gathered: dict[str, tf.Tensor] = {}
    for name, value in results.items():
        # Collectives take no booleans, and no argument of the program as it is.
        number = tf.identity(tf.cast(value, tf.int32) if value.dtype == tf.bool else value)
        gathered[name] = tf.cast(replica.all_gather(number, axis=0), value.dtype)
    return gathered


def _tensors(batch: Mapping[str, tuple[np.ndarray, ...]]) -> dict[str, tuple[tf.Tensor, ...]]:
    with tf.device(_HOST):
        return {name: tuple(map(tf.constant, values)) for name, values in batch.items()}
