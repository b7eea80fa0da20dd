"""What all runtimes have in common: the peak of devices, static shapes."""

from typing import Any

import pytest

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.learner.state import Learner, initial_state
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.runtime import matmul_flops_per_second, peak


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
