"""A file as a user writes it, with a mistake in every class whose docstring says so."""

import numpy as np

from lingo import Experiment, experiment
from lingo.config.lazy import tf
from lingo.data.input import Input
from lingo.layers import Layer
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd


class Numbers(Input):
    """Random numbers, [B, 3, 2]."""

    def prepare(self, *, progress=None):
        pass

    def num_examples(self):
        return 16

    def fingerprint(self):
        return {"numbers": 16}

    def specs(self):
        return {**super().specs(), "x": ((self.p.batch_size, 3, 2), "float32")}

    def examples(self, numbers):
        values = [np.random.RandomState(number % 16).normal(size=[3, 2]) for number in numbers]
        return {"x": np.array(values, np.float32)}


class RandomNumbers(Numbers):
    """Draws from a generator of its own."""

    def examples(self, numbers):
        return {"x": np.random.default_rng().normal(size=[len(numbers), 3, 2]).astype("float32")}


class CountingNumbers(Numbers):
    """Depends on how often it was asked, from the second batch on."""

    def examples(self, numbers):
        self.count = vars(self).get("count", 0) + 1
        scale = 1.0 if self.count < 9 else 2.0
        return {"x": (scale * super().examples(numbers)["x"]).astype("float32")}


class Matrix(Layer):
    """A matrix that mixes no positions."""

    positionwise = True

    def setup(self):
        self.w = self.weight("w", [2, 2], axes=("embed", "mlp"))

    def __call__(self, x):
        return x @ self.w


class RunningSum(Matrix):
    """Adds what comes before."""

    def setup(self):
        super().setup()
        self.total = self.cache("total", [2], axes=(None,))

    def __call__(self, x):
        return tf.cumsum(x @ self.w, axis=1)

    def step(self, x, index):
        y = self.total[:, None] + self(x)
        self.new_cache("total", y[:, -1])
        return y


class WrongStep(RunningSum):
    """Forgets what came before: a mistake."""

    def __call__(self, x):
        return tf.cumsum(x @ self.w, axis=1)

    def step(self, x, index):
        return self(x)


class MixingRows(Matrix):
    """Subtracts the mean of the batch: a mistake."""

    def __call__(self, x):
        return x @ self.w - tf.reduce_mean(x, axis=0, keepdims=True)


class UnusedWeight(Matrix):
    """Declares a weight that has no gradient: a mistake."""

    def setup(self):
        super().setup()
        self.b = self.weight("b", [2], axes=(None,))

    def __call__(self, x):
        return x @ self.w + tf.stop_gradient(self.b)


class HiddenVariable(Matrix):
    """Makes a variable: a mistake."""

    def __call__(self, x):
        return x @ self.w * tf.Variable(tf.ones([2]))


class HiddenNoise(Matrix):
    """Draws from a generator of TensorFlow: a mistake."""

    def __call__(self, x):
        return x @ self.w + tf.random.normal([2])


class Crash(Matrix):
    """Multiplies what does not fit together: a mistake."""

    def __call__(self, x):
        return x @ self.w[:1]


class Fit(Task):
    """Makes the results of some layers, one after the other, zero."""

    layers: list[Layer] = [Matrix.params()]

    def setup(self):
        self.layers = [layer.build() for layer in self.p.layers]

    def errors(self, batch):
        y = batch["x"]
        for layer in self.layers:
            y = layer(y)
        return batch["weights"] * tf.reduce_sum(tf.sin(y), [1, 2])

    def loss(self, batch):
        return {"loss": tf.reduce_sum(self.errors(batch))}


class MeanFit(Fit):
    """Its loss is a mean: a mistake."""

    def loss(self, batch):
        return {"loss": tf.reduce_mean(self.errors(batch))}


class ForgetfulFit(Fit):
    """Counts padding as examples."""

    def errors(self, batch):
        return tf.reduce_sum(tf.sin(self.layers[0](batch["x"])), [1, 2])


def _experiment(*layers, task=Fit, data=Numbers):
    return Experiment.params(
        task=task.params(layers=[layer.params() for layer in layers]),
        train_input=data.params(batch_size=4),
        optimizer=Sgd.params(learning_rate=0.1),
        max_steps=2,
    )


@experiment
def right():
    """No mistake."""
    return _experiment(Matrix, RunningSum)


@experiment
def wrong():
    """A mistake in the task, its input and its layers."""
    layers = (WrongStep, MixingRows, UnusedWeight)
    return _experiment(*layers, task=MeanFit, data=RandomNumbers)


@experiment
def hidden():
    """Layers with state of their own."""
    return _experiment(HiddenVariable, HiddenNoise)


@experiment
def forgetful():
    """A loss without the weights of examples."""
    return _experiment(Matrix, task=ForgetfulFit)


@experiment
def counting():
    """An input with state."""
    return _experiment(Matrix, data=CountingNumbers)


@experiment
def crashing():
    """A layer that cannot be computed."""
    return _experiment(Crash)
