"""What all runtimes have in common: errors of graphs, the peak of devices, static shapes."""

from typing import Any

import pytest

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.learner.state import Learner, initial_state
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.runtime import (
    ProgramError,
    explain_program_errors,
    matmul_flops_per_second,
    peak,
)


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


def test_the_peak_is_that_of_the_first_size_that_takes_long_enough():
    def timed_product(size: int) -> Any:
        return lambda: 0.02 if size == 2048 else 0.002

    assert peak(timed_product) == 2 * 2048**3 / 0.02


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_is_measured_once_in_a_process(dtype):
    assert matmul_flops_per_second(dtype) == matmul_flops_per_second(dtype) > 0


class Recorder(Task):
    """Records in each call whether XLA compiles it."""

    def setup(self) -> None:
        self.w = self.weight("w", [], axes=())

    def loss(self, batch: Any) -> dict[str, Any]:
        RECORDS.append(context.current().compiled)
        return {"loss": tf.reduce_sum(batch["weights"]) * self.w}


RECORDS: list[bool] = []


@pytest.mark.parametrize("kind", [Local, Replicated])
@pytest.mark.parametrize("xla", [False, True])
def test_layers_know_whether_shapes_must_be_static(kind, xla):
    learner = Learner(Recorder.params().build(), Sgd.params(learning_rate=1.0).build())
    program = kind.params(xla=xla).build().start(learner, initial_state(learner))
    RECORDS.clear()
    program.compile({"rows": ((2,), "int32"), "weights": ((2,), "float32")}, num_steps=1)
    assert set(RECORDS) == {xla}
