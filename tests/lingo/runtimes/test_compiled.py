"""A runtime tells layers whether XLA compiles them."""

from __future__ import annotations

from typing import Any

import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import context
from lingo.learner.state import Learner, initial_state
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.replicated import Replicated

SPECS = {"rows": ((2,), "int32"), "weights": ((2,), "float32")}
TOLD: list[bool] = []


class Asks(Task):
    """Notes in each call what it is told."""

    def setup(self) -> None:
        self.w = self.weight("w", [], axes=())

    def loss(self, batch: Any) -> dict[str, Any]:
        TOLD.append(context.current().compiled)
        return {"loss": tf.reduce_sum(batch["weights"]) * self.w}


@pytest.mark.parametrize("kind", [Local, Replicated])
@pytest.mark.parametrize("xla", [False, True])
def test_layers_are_told_whether_shapes_have_to_be_known(kind: type[Params], xla: bool) -> None:
    learner = Learner(Asks.params().build(), Sgd.params(learning_rate=1.0).build())
    program = kind.params(xla=xla).build().start(learner, initial_state(learner))
    TOLD.clear()
    program.compile(SPECS, num_steps=1)
    assert set(TOLD) == {xla}
