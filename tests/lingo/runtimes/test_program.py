"""What all programs share: calls made of what a runtime supplies, errors of graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.learner.placement import ONE_DEVICE
from lingo.learner.state import Learner, TrainState, initial_state, load_arrays
from lingo.runtimes.program import (
    Arrays,
    Computation,
    Feed,
    Program,
    ProgramError,
    explain_program_errors,
)


class Eager(Program):
    """Computes on one device, one operation after the other; says only what a runtime has to."""

    def __init__(self, learner: Learner, state: TrainState) -> None:
        super().__init__(learner, ONE_DEVICE)
        self.load(state)
        self.contexts = 0

    def compile(self, specs: Any, *, num_steps: int) -> None:
        pass

    def state(self, *, alone: bool = False) -> TrainState:
        return load_arrays(self._state)

    def load(self, state: TrainState) -> None:
        self._state = tf.nest.map_structure(tf.constant, load_arrays(state))

    def compile_steps(self) -> Any:
        def steps(batches: dict[str, tf.Tensor]) -> dict[str, Any]:
            reports = []
            for i in range(len(batches["rows"])):
                batch = {name: values[i] for name, values in batches.items()}
                self._state, report = self._scan_step(i, self._state, batch)
                reports.append(report)
            return tf.nest.map_structure(lambda *values: tf.stack(values), *reports)

        return steps

    def compile_call(self, computation: Computation) -> Any:
        return lambda weights, *args: self._compute(computation, self._state.select(weights), *args)

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        return Feed((tensors,), [batch["rows"].shape[axis]])

    @contextlib.contextmanager
    def call_context(self) -> Iterator[None]:
        self.contexts += 1
        yield


def test_a_runtime_that_says_only_how_it_computes_has_all_calls_of_one_device(experiment, text):
    built = experiment(text).build()
    state = initial_state(built.learner)
    eager, local = Eager(built.learner, state), built.runtime.start(built.learner, state)
    batches = [built.train_input.batch(step) for step in range(2)]
    prompts = prompt_batch([Prompt(np.int32([1, 2])), Prompt(np.int32([3]))], rows=[0, 1], end_id=0)
    decoding = Sampling.params(max_tokens=2).build()

    def calls(program: Program) -> list[Any]:
        report = program.train({k: np.stack([batch[k] for batch in batches]) for k in batches[0]})
        sums = program.evaluate(batches[0], weights="ema")
        sums = program.evaluate(batches[1], weights="ema", sums=sums)
        return [
            report["scalars"],
            program.state(),
            program.read_sums(sums),
            program.predict(batches[0]),
            program.decode(prompts, decoding, seed=3),
        ]

    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        calls(eager),
        calls(local),
    )
    assert eager.example_slice(7) == slice(0, 7)


def test_every_call_computes_in_the_context_of_its_runtime(experiment, text):
    built = experiment(text).build()
    eager = Eager(built.learner, initial_state(built.learner))
    batch = built.train_input.batch(0)
    eager.read_sums(eager.evaluate(batch))
    eager.predict(batch)
    eager.train({name: value[None] for name, value in batch.items()})
    assert eager.contexts == 4


def test_a_program_that_lacks_what_a_runtime_has_to_say_cannot_be_made():
    with pytest.raises(TypeError, match=r"compile_call.*compile_steps.*load.*put.*state"):
        type("Nothing", (Program,), {})(None, ONE_DEVICE)


def look_up(table: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("model/embedding"):
        return tf.gather(table, index)


def test_an_error_of_a_graph_says_what_and_in_which_layer():
    function = tf.function(look_up, autograph=False)
    with pytest.raises(ProgramError) as caught, explain_program_errors("step 3"):
        function(tf.zeros([3]), tf.constant([300]))
    assert str(caught.value) == (
        "step 3: InvalidArgumentError: indices[0] = 300 is not in [0, 3),"
        " in model/embedding/GatherV2"
    )
    assert caught.value.exit_code == 1


def test_an_error_under_xla_says_what():
    function = tf.function(lambda x, n: tf.reshape(x, [n]), autograph=False, jit_compile=True)
    with pytest.raises(ProgramError) as caught, explain_program_errors("evaluation"):
        function(tf.zeros([3]), tf.constant(300))
    said = "Input to reshape is a tensor with 3 values, but the requested shape has 300"
    assert str(caught.value) == f"evaluation: InvalidArgumentError: {said}, in Reshape"


def test_advice_on_memory_for_programmers_of_tensorflow_is_left_out():
    hint = "\nHint: If you want to see a list of allocated tensors when OOM happens\n [Op:Add]"
    with (
        pytest.raises(ProgramError, match=r"ResourceExhaustedError: OOM when allocating a tensor$"),
        explain_program_errors("step 1"),
    ):
        raise tf.errors.ResourceExhaustedError(None, None, f"OOM when allocating a tensor{hint}")


def test_an_error_without_a_message_is_still_one():
    with (
        pytest.raises(ProgramError, match=r"step 1: AbortedError: no message$"),
        explain_program_errors("step 1"),
    ):
        raise tf.errors.AbortedError(None, None, "")
