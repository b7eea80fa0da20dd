"""A file as a user writes it, with all that a run needs; `test_own_code.py` puts mistakes in it."""

import numpy as np

from lingo import Experiment, experiment
from lingo.config.lazy import tf
from lingo.data.input import Input
from lingo.layers import Layer
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd


class Points(Input):
    """Points on a circle."""

    def prepare(self, *, progress=None):
        pass

    def num_examples(self):
        return 16

    def fingerprint(self):
        return {"points": 16}

    def specs(self):
        return {**super().specs(), "x": ((self.p.batch_size, 2), "float32")}

    def examples(self, numbers):
        return {"x": np.stack([np.cos(numbers), np.sin(numbers)], -1).astype("float32")}


class Body(Layer):
    """A matrix."""

    def setup(self):
        self.w = self.weight("w", [2, 2], axes=("embed", "mlp"))

    def __call__(self, x):
        return x @ self.w


class Fit(Task):
    """Makes the matrix zero."""

    body: Layer = Body

    def setup(self):
        self.body = self.p.body.build()

    def errors(self, batch):
        y = self.body(batch["x"])
        return batch["weights"] * tf.reduce_sum(y * y, -1)

    def loss(self, batch):
        return {"loss": tf.reduce_sum(self.errors(batch))}

    def metrics(self, batch):
        error = {
            "sum": tf.reduce_sum(self.errors(batch)),
            "weight": tf.reduce_sum(batch["weights"]),
        }
        return {"error": error}


@experiment
def mine():
    """Two steps."""
    return Experiment.params(
        task=Fit,
        train_input=Points.params(batch_size=4),
        eval_inputs={"all": Points.params(batch_size=4, repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
        max_steps=2,
    )
