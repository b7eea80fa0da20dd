"""A layer or model of Keras 3 as a layer: its variables become weights and states.

    def mobile_net():
        import keras
        return keras.applications.MobileNetV3Small((64, 64, 3), weights=None, classes=10)

    Keras.params(factory=mobile_net)

Keras holds values in variables. Here a call takes each variable's value from the call context. The
value in the variable itself is only the initial value.

    variable of Keras              lingo
    trainable weight               weight: trained, averaged, frozen and saved by its path
    non-trainable weight           state: set by each step, saved
    state of a seed generator      set by each call from the layer's random key, never saved

The factory is called when the weights are first asked for, and again to draw their initial values.
It is not called when an experiment is built, since a run must choose its devices before Keras
computes anything.

Axes: B batch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random as python_random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config.base.types import Function
from lingo.config.importing import user_code
from lingo.config.lazy import keras, tf
from lingo.config.node.label import label
from lingo.config.params import ParamError
from lingo.config.regex import check_regex
from lingo.layers import context, path
from lingo.layers.inputs import BatchRequirements
from lingo.layers.layer import Layer
from lingo.ops import random
from lingo.ops.shape import size_of

SIDE_LOSS = "keras"
"""The loss term that regularizers and `add_loss` add to."""

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


class _Variables(NamedTuple):
    """A layer of Keras and its variables: dicts of Keras's variable path -> variable."""

    layer: Any  # keras.Layer
    weights: dict[str, Any]
    states: dict[str, Any]
    seeds: dict[str, Any]

    def all(self) -> dict[str, Any]:
        """Returns path -> variable, for weights, states and seeds."""
        return self.weights | self.states | self.seeds


class Keras(Layer):
    """Computes a layer or model of Keras, which a function in the user's file returns.

    The layer has to be built, so that its variables are known. A functional model is built, and so
    is a `Sequential` with a `keras.Input`; for other layers, call `build(shape)`. Variables start
    with the values that they have when the function returns. These values are loaded, or Keras's
    initializers draw them from the experiment's seed and the layer's path. The `dtype` sets Keras's
    dtype policy for the function.

    Keras's dropout draws per call, not per example, and its batch normalization computes statistics
    per call. So both depend on how a batch is split into calls (by replicas, micro-batches or
    accumulation). If several calls of a step set a state, the step sets it to the mean of their
    values, weighted by the number of examples. Regularizers and `add_loss` add to the loss term
    `keras`, a mean over examples. Masks pass between Keras's layers, but lingo's inputs, such as
    segments, do not reach Keras's layers.

    Weights and states have the paths of Keras's variables: conv/kernel, conv_bn/moving_mean.
    """

    factory: Function  # returns a built keras.Layer or keras.Model
    arguments: dict[str, Any] = {}  # keyword arguments of the factory
    axes: dict[str, list[str | None]] = {}  # regex for weight paths -> logical axis of each dim

    _late: ClassVar[bool] = True

    def check(self) -> None:
        for pattern in self.p.axes:
            check_regex(pattern)
        try:
            inspect.signature(self.p.factory).bind(**self.p.arguments)
        except TypeError as error:
            given = f"arguments={self.p.arguments!r:.80}"
            raise ParamError(f"{given} do not fit {label(self.p.factory)}: {error}") from None

    def setup(self) -> None:
        self.variables = functools.cache(self._find_variables)
        self.initial_values = functools.cache(self._draw_values)

    def declare_late(self) -> None:
        if "_weights" in self.__dict__:
            return
        found = self.variables()
        axes = self._match_axes(found.weights)
        self.__dict__.update(_weights={}, _state={})
        for name, variable in found.weights.items():
            init = _FactoryValue(self.initial_values, name)
            self.weight(name, variable.shape, axes=axes[name], init=init, dtype="float32")
        for name, variable in found.states.items():
            init = _FactoryValue(self.initial_values, name)
            self.state(name, variable.shape, decay=0.0, init=init)

    def __call__(self, x: Any) -> Any:
        """Calls the layer of Keras with the call context's `training`.

        Args:
            x: a tensor [B, ...], or a structure of tensors, as the layer of Keras takes it.

        Returns:
            The layer's results: float tensors of any shapes, of the policy's compute type.

        Raises:
            ParamError: if the layer of Keras returns anything but float tensors, creates variables,
                changes variables that are not its own, or draws random numbers outside training.
        """
        call, found = context.current(), self.variables()
        variables = found.all()
        # Not Keras's `stateless_call`: it does not convert the inputs of the outermost layer, and
        # fails if only layers inside have an argument `training`.
        scope = keras.StatelessScope(
            [(v, _cast(self._value(found, name), v.dtype)) for name, v in variables.items()],
            collect_losses=True,
        )
        before = {name: scope.get_current_value(v) for name, v in variables.items()}
        with scope, self._fix_frozen_norms(found):
            y = found.layer(x, training=call.training)
            losses = found.layer.losses
        changed = {
            name: value
            for name, v in variables.items()
            if (value := scope.get_current_value(v)) is not before[name]
        }
        self._check_call(y, found, scope, changed)
        num_examples = tf.cast(size_of(tf.nest.flatten(x)[0], 0), tf.float32)
        if losses:
            mean = tf.add_n([tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in losses])
            self.side_loss(SIDE_LOSS, mean * num_examples)
        if call.training:
            for name in (name for name in changed if name in found.states):
                value = tf.cast(changed[name], tf.float32)
                self.batch_statistic(name, value * num_examples, num_examples)
        return y

    @contextlib.contextmanager
    def _fix_frozen_norms(self, found: _Variables) -> Iterator[None]:
        """Makes batch normalizations with frozen weights compute as outside training.

        In the `with` block their `trainable` is False, so Keras uses their moving statistics.
        """
        frozen = context.current().frozen_weights
        norms = [
            layer
            for layer in found.layer._flatten_layers()
            if isinstance(layer, keras.layers.BatchNormalization)
            and layer.trainable_weights
            and all(path.join(self.path, v.path) in frozen for v in layer.trainable_weights)
        ]
        for layer in norms:
            layer.trainable = False
        try:
            yield
        finally:
            for layer in norms:
                layer.trainable = True

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for an input that is a single tensor of shape `shape`."""
        return tuple(self.variables().layer.compute_output_shape(tuple(shape)))

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        return BatchRequirements(examples_counted=0 if self.variables().states else None)

    def _where(self) -> str:
        return f"{self.path or type(self).__name__}: {label(self.p.factory)}"

    def _value(self, found: _Variables, name: str) -> tf.Tensor:
        """Returns the value that the variable `name` has in this call, of the variable's shape.

        The state of a seed generator is made from the layer's random key; it is zero outside
        training.
        """
        if name in found.weights:
            return self._read("weights", self._weights[name])
        if name in found.states:
            return self._read("state", self._state[name])
        call = context.current()
        if not call.training:
            return tf.zeros([2], tf.int64)
        key = self.random_key(name)
        if call.rows is not None:
            # each replica and micro-batch draws its own numbers
            key = random.fold(key, call.rows[0])
        return tf.cast(tf.stack([key.high, key.low]), tf.int64)

    def _check_call(
        self, y: Any, found: _Variables, scope: Any, changed: Mapping[str, Any]
    ) -> None:
        """Raises ParamError if a call did something that a step cannot repeat or train."""
        own = {id(v) for v in found.all().values()}
        if len(found.layer.variables) > len(own):
            raise ParamError(
                f"{self._where()} creates variables when it is called, which would never be"
                " trained: create them in build(), and build its layers there, too"
            )
        if scope.state_mapping.keys() - own:
            raise ParamError(
                f"{self._where()} changes a variable that is not among its layer's, such as the"
                " seed of keras.random without seed=: pass a keras.random.SeedGenerator"
            )
        if not context.current().training and changed.keys() & found.seeds.keys():
            raise ParamError(f"{self._where()} draws random numbers though training=False")
        for tensor in tf.nest.flatten(y):
            if not tf.is_tensor(tensor) or not tensor.dtype.is_floating:
                kind = getattr(tensor, "dtype", None) or type(tensor)
                raise ParamError(f"{self._where()} returns {kind!r}, not tensors of floats")

    def _find_variables(self) -> _Variables:
        layer = self._make(seed=0)
        found = _Variables(layer, {}, {}, {})
        kept, trained = ({id(v) for v in vs} for vs in (layer.weights, layer.trainable_weights))
        for variable in {id(v): v for v in layer.variables}.values():
            if variable.path in found.all():
                raise ParamError(
                    f"{self._where()} has two variables {variable.path!r}: give its layers names"
                )
            kind = found.seeds
            if id(variable) in kept:
                kind = found.weights if id(variable) in trained else found.states
            kind[variable.path] = variable
        return found

    def _draw_values(self, key: random.Key) -> dict[str, np.ndarray]:
        """Returns path -> initial value, float32 of any shape, for all weights, from their key."""
        layer = self._make(seed=int(key.high) << 32 | int(key.low))
        return {v.path: np.asarray(v).astype(np.float32) for v in layer.weights}

    def _make(self, seed: int) -> Any:
        """Calls the factory and returns its layer; raises ParamError if lingo cannot use it."""
        p = self.p
        layer = _call_factory(p.factory, p.arguments, policy=_POLICIES[p.dtype], seed=seed)
        if not isinstance(layer, keras.Layer):
            raise ParamError(
                f"{self._where()} returns {type(layer).__name__}, not a layer or model of Keras"
            )
        if not layer.built:
            raise ParamError(
                f"{self._where()} returns {layer.name!r}, which is not built, so its variables are"
                " unknown: begin with keras.Input(shape), or call its build(shape)"
            )
        if layer.metrics:
            raise ParamError(
                f"{self._where()} returns {layer.name!r} with metrics, as from compile(): leave"
                " them out, since a Task has the loss and the metrics"
            )
        return layer

    def _match_axes(self, weights: Mapping[str, Any]) -> dict[str, Sequence[str | None]]:
        """Returns path -> logical axis of each dim, for all weights, as the field `axes` says."""
        axes: dict[str, Sequence[str | None]] = {
            n: [None] * len(v.shape) for n, v in weights.items()
        }
        owners: dict[str, str] = {}
        for pattern, own in self.p.axes.items():
            names = [name for name in weights if re.fullmatch(pattern, name)]
            if not names:
                raise ParamError(
                    f"{self.path}.axes: {pattern!r} matches none of {len(weights)} weights; a"
                    f" pattern matches a whole path such as {next(iter(weights), '')!r}"
                )
            for name in names:
                if name in owners:
                    raise ParamError(
                        f"{self.path}.axes: {owners[name]!r} and {pattern!r} match {name!r}"
                    )
                if len(own) != len(axes[name]):
                    raise ParamError(
                        f"{self.path}.axes[{pattern!r}] has {len(own)} axes, and {name!r} has the"
                        f" shape {tuple(weights[name].shape)}"
                    )
                axes[name], owners[name] = own, pattern
        return axes


class _FactoryValue:
    """Initial value of one weight or state: the variable's value when the factory returns.

    One call of the factory draws the values of all its variables.
    """

    def __init__(
        self, values: Callable[[random.Key], Mapping[str, np.ndarray]], variable: str
    ) -> None:
        self._values, self._variable = values, variable

    def key(self, root: random.Key, name: str) -> random.Key:
        """Returns the random key of the layer, which all of its variables share."""
        return path.key(root, name.removesuffix(self._variable).removesuffix("/"))

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        return self._values(key)[self._variable][tuple(index)]


def _call_factory(
    factory: Callable[..., Any], arguments: Mapping[str, Any], *, policy: str, seed: int
) -> Any:
    """Returns a factory's result, with the same paths and values in every call.

    The factory runs in a new thread, since Keras keeps its dtype policy and the numbers in the
    names of unnamed layers per thread. Keras draws its seeds by Python's `random`, which is seeded
    with `seed`.
    """

    def call() -> Any:
        with tf.device("CPU:0"):
            if (backend := keras.backend.backend()) != "tensorflow":
                raise ParamError(
                    f"Keras computes with {backend!r}: set the environment variable"
                    " KERAS_BACKEND=tensorflow before it is imported"
                )
            keras.config.set_dtype_policy(policy)
            return factory(**arguments)

    file = Path(factory.__code__.co_filename)
    with user_code(file), _seed_generators(seed), ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


@contextlib.contextmanager
def _seed_generators(seed: int) -> Iterator[None]:
    """Seeds the global generators of Python and NumPy in a `with` block, and restores them."""
    python, numpy = python_random.getstate(), np.random.get_state()
    python_random.seed(seed)
    np.random.seed([seed >> 32, seed & 0xFFFFFFFF])
    try:
        yield
    finally:
        python_random.setstate(python)
        np.random.set_state(numpy)


def _cast(value: tf.Tensor, dtype: str) -> tf.Tensor:
    """Casts a value to a variable's dtype, with rounding if it is an integer type.

    lingo keeps all states as floats, even if Keras's variable holds integers.
    """
    return tf.cast(value if tf.as_dtype(dtype).is_floating else tf.round(value), dtype)
