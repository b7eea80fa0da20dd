"""The base class of layers: `setup` declares, `__call__` computes.

`setup` builds the layers inside and declares weights, states and caches in pure Python. It needs
neither TensorFlow nor memory for tensors, so a trillion parameters are counted in no time.
`__call__` is a function of its inputs and of the call context (`lingo.layers.context`). A layer
never stores a tensor.

Axes: B batch, C positions of a chunk, D model width, S positions of a cache.

    class Linear(Layer):
        dim: int
        output_dim: int

        def setup(self):
            self.w = self.weight("w", [self.p.dim, self.p.output_dim], axes=("embed", "mlp"))

        def __call__(self, x):
            return tf.einsum("btd,df->btf", x, self.w)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from lingo.config.base.errors import note_place
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.config.roots.user_line import is_lingos
from lingo.layers import context, path
from lingo.layers.flops import record_calls, record_outputs
from lingo.layers.initial import FAN_IN, ZEROS, InitialValue
from lingo.layers.inputs import NO_INPUTS, BatchRequirements, CallInputs, accept_inputs
from lingo.layers.product import Product
from lingo.layers.recomputed_step import recompute_step
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.results import check_result, explain
from lingo.layers.tree import LayerTree, ParamSpec
from lingo.ops import random

Dtype = Literal["float32", "bfloat16", "float16"]

_SETUP = "`setup(self)` declares weights and builds children, and reads parameters as `self.p.dim`"
_CALL = "`__call__(self, x)` computes the layer"
_OTHER_NAMES = {"build": _SETUP, "call": _CALL, "forward": _CALL}


class Layer(LayerTree, Configurable, interface=True):
    """Base class of layers: a computation with weights, which `setup` declares."""

    dtype: Dtype = "float32"  # of the computation; weights are stored as float32

    positionwise: ClassVar[bool] = False
    """Whether, outside training, a result depends only on the inputs at its own position.

    It describes the class itself. Layers inside have their own `positionwise`. A subclass that
    redefines `__call__` inherits neither `positionwise` nor `step`, since both may be wrong for the
    new `__call__`."""

    products: ClassVar[tuple[Product, ...]] = ()
    """The matrix products and convolutions in `__call__`, which gets their factors by `operands`.

    A product is skipped if its weight is not declared, such as the weight of an optional gate.
    Layers inside have their own `products`."""

    _fits_parent: ClassVar[bool] = True
    _never_called: ClassVar[dict[str, str]] = _OTHER_NAMES  # a name in another library -> lingo's

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_other_names(cls)
        own = _own_attributes(cls)
        if "step" in own:
            cls.step = accept_inputs(own["step"])
        if "__call__" in own:
            cls.__call__ = _with_name_scope(accept_inputs(own["__call__"]))
            cls.positionwise = own.get("positionwise", False)
            cls.step = cls.step if "step" in own else Layer.step
        if "flops" in own:
            cls.flops = record_calls(own["flops"])
        if "output_shape" in own:
            cls.output_shape = record_outputs(own["output_shape"])

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed:
            raise AttributeError(
                f"{type(self).__name__}.{name}: a layer stores nothing after setup: set attributes"
                " in setup, and declare what changes by self.state or self.cache"
            )
        if hasattr(Layer, name):
            raise AttributeError(
                f"{type(self).__name__}.{name}: the name is taken by Layer: choose another"
            )
        if isinstance(value, ParamSpec):  # `self.w` later reads the context
            if value.path != name:
                raise ParamError(
                    f"{value.path!r} is declared, but assigned to self.{name}: use one name"
                )
            return
        self._add_children(name, value)
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        for kind in ("weights", "state", "caches"):
            spec = self.__dict__.get(f"_{kind}", {}).get(name)
            if spec is not None:
                return self._read(kind, spec)
        return super().__getattr__(name)

    # ---- declarations, for `setup`

    def weight(
        self,
        name: str,
        shape: Sequence[int],
        *,
        axes: Sequence[str | None],
        init: InitialValue | None = None,
        fan_in: int | None = None,
        dtype: Dtype | None = None,
        sparse: bool = False,
    ) -> Any:
        """Declares a trained tensor; assign the result to the attribute of the same name.

        Args:
            name: attribute and last part of the path.
            shape: shape for one layer, without the axis along which `Repeat` stacks layers.
            axes: logical axis of each dim of `shape`.
            init: distribution of the initial value; None: `FanIn`.
            fan_in: number of inputs that each output sums; None: the size of the first dim.
            dtype: dtype in which `self.<name>` is read; None: the layer's.
            sparse: whether a training step updates only the rows that its batch looks up. Training
                then reads the tensor, [V, D], by `look_up` alone.
        """
        spec = self._declare("weights", name, shape, axes, init or FAN_IN, fan_in, dtype)
        if sparse and len(shape) != 2:
            raise ParamError(f"{name}: sparse=True is for a table, [V, D], not for {tuple(shape)}")
        spec = self._weights[name] = spec._replace(sparse=sparse)
        return spec

    def state(
        self,
        name: str,
        shape: Sequence[int],
        *,
        decay: float,
        init: InitialValue | None = None,
        shown: bool = False,
    ) -> Any:
        """Declares a moving statistic, float32; a step sets it to decay * old + (1 - decay) * mean.

        The mean is the weighted mean of all values that the step's calls pass to
        `self.batch_statistic(name, ...)`. If their weights sum to 0, the statistic does not change.
        With `decay=0` the statistic is the latest mean. It starts at the value that `fit` returns,
        or else at `init`, by default zeros.
        With `shown`, TensorBoard shows the statistic's elements over time, relative to their mean.
        This is for a vector of shares, such as the load per expert; other shapes raise ParamError.
        """
        if shown and len(shape) != 1:
            raise ParamError(
                f"{name}: {tuple(shape)} is not a vector, and only vectors can be shown"
            )
        axes = [None] * len(shape)
        spec = self._declare("state", name, shape, axes, init or ZEROS, 1, "float32")
        spec = self._state[name] = spec._replace(decay=decay, shown=shown)
        return spec

    def cache(
        self,
        name: str,
        shape: Sequence[int],
        *,
        axes: Sequence[str | None],
        per_position: bool = False,
        position_axis: int = 0,
        dtype: Dtype | Literal["int8"] | None = None,
    ) -> Any:
        """Declares a tensor that `step` keeps from one step to the next; it starts as zeros.

        Args:
            name: attribute and last part of the path.
            shape: shape for one example, or with `per_position` for one position of one example.
                The first step sets the size of a dim that is 0 here.
            axes: logical axis of each dim of `shape`.
            per_position: whether each position has an entry. If so, `self.<name>` is
                [B, S, *shape], where decoding has room for S positions. Otherwise it is
                [B, *shape].
            position_axis: index in `shape` before which S is inserted.
            dtype: dtype of the cache; None: the layer's.
        """
        spec = self._declare("caches", name, shape, axes, ZEROS, 1, dtype)
        spec = spec._replace(per_position=per_position, position_axis=position_axis)
        self._caches[name] = spec
        return spec

    # ---- for `__call__`

    def operands(self, product: str, **activations: tf.Tensor) -> list[tf.Tensor]:
        """Returns the factors of the product named `product`: its activations, then its weight.

        A wrapper around the layer, such as `Quantized`, may change these tensors. The result has
        the activations in the order of the arguments. Activations are [B, ...], any float type.
        """
        values = dict(activations)
        if product in self.__dict__.get("_weights", {}):
            values[product] = getattr(self, product)
        change = context.current().operands.get(path.join(self.path, product))
        return list(values.values()) if change is None else change(values)

    def look_up(self, name: str, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a weight, a table [V, D], for ids: [..., D], in the weight's dtype.

        ids: int32 [...], each in 0..V-1.

        In a training step, the gradient of a weight declared with `sparse` consists of the rows
        that the step looked up, and the step updates no others. Raises ParamError if such rows are
        looked up in a loop over layers or in a layer that is recomputed.
        """
        return context.look_up(path.join(self.path, name), self._weights[name], ids)

    def result_scale(self, product: str) -> tf.Tensor | None:
        """Returns the scale of a product's integer results, float32 [channels], or None.

        Outside training, a product inside a `Quantized` multiplies integers. Each exact result is
        then an integer times this scale, which is the input's scale times the weight's scale. The
        scale is None in training, and for a product whose factors are not scaled integers.
        """
        scale = context.current().result_scales.get(path.join(self.path, product))
        return None if scale is None else scale(getattr(self, product))

    def batch_statistic(self, name: str, total: tf.Tensor, weight: tf.Tensor) -> None:
        """Adds this call's contribution to the mean that updates a state.

        `total` is the weighted sum over examples, with the state's shape. `weight`, a scalar, is
        the sum of the examples' weights. Both have any number type. Pass the weight 1 for a value
        that does not depend on examples.
        """
        value = {"sum": tf.cast(total, tf.float32), "weight": tf.cast(weight, tf.float32)}
        context.current().sides.add({"batch_statistics": {path.join(self.path, name): value}})

    def has_frozen_weights(self) -> bool:
        """Returns whether the layer itself declares weights, and training changes none of them.

        In a scan over layers, a weight counts as frozen if it is frozen in every layer.
        """
        frozen = context.current().frozen_weights
        return bool(self._weights) and all(
            path.join(self.path, name) in frozen for name in self._weights
        )

    def side_loss(self, term: str, total: tf.Tensor) -> None:
        """Adds an auxiliary loss to the step's loss.

        `total`, a scalar of any float type, is the sum of the loss over the call's examples.
        """
        context.current().sides.add({"losses": {term: tf.cast(total, tf.float32)}})

    def side_metric(self, name: str, state: Mapping[str, tf.Tensor]) -> None:
        """Adds to a metric's sums, such as {"sum": ..., "weight": ...}, over all layers and calls.

        The tensors have any shape and type. For one value per layer, use `state(shown=True)`.
        """
        value = {part: tf.cast(v, tf.float32) for part, v in state.items()}
        context.current().sides.add({"metrics": {name: value}})

    def new_cache(self, name: str, value: tf.Tensor) -> None:
        """Sets the value that `self.<name>`, a cache, has in the next step.

        `value`, [B, ...], has the shape in which the cache is read.
        """
        context.current().sides.caches[path.join(self.path, name)] = value

    def random_key(self, name: str = "") -> random.Key:
        """Returns this layer's random key in this step; keys with different names are independent.

        A layer gets the same key in a scan over stacked layers as outside of it. Raises
        RuntimeError if the call context has no key.
        """
        call = context.current()
        if call.key is None:
            where = self.path or type(self).__name__
            raise RuntimeError(f"{where}: random numbers need a key in the call context")
        if self._wrapped:
            name = path.join(self._name_at_path(), name)
        return path.key(call.key, path.join(self.path, name), call.indices)

    @accept_inputs
    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next positions; reads what earlier steps cached.

        One step returns [B, C, ...]. The results of steps over consecutive chunks of any lengths,
        joined, equal the result of `__call__` for the whole input.

        By default, a step calls the layer if it and all layers inside are `positionwise`. Otherwise
        the step computes all positions so far again. That is slow, and is correct only if the layer
        is causal, which means that no result depends on later positions.

        Args:
            x: [B, C, D], any float type: positions index, ..., index + C - 1 of the input.
            index: int32 scalar, the number of positions computed before.
            inputs: further inputs of `__call__`, for these positions.
        """
        if all(layer.positionwise for layer in self.tree()):
            return self(x, inputs=inputs)
        return recompute_step(self, x, index, inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the layer; each class documents the shapes of its inputs and results."""
        raise self._missing_method(
            "__call__", "it computes the layer (the name `call` or `forward` means nothing here)"
        )

    # ---- for callers

    def fit(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the values of states that depend on the training data: {state: value}.

        The trainer calls it once, before step 1, and never in a resumed run. Subclasses that define
        it declare the states by `self.state(..., decay=1.0)`, so that no step changes them. `x` is
        the first input of the layer's call, [B, ...], for training examples.
        """
        return {}

    @record_calls
    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations of one call's matrix products; a multiply-add counts as two.

        `shape` is the shape of the input. Layers inside count only if this method calls their
        `flops`.
        """
        return 0

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the tensors that a call's forward pass keeps for the gradient; None: unknown.

        Layers inside return their own tensors. But if `flops` does not call the `flops` of a layer
        inside, this list also has that layer's tensors. If the result is None, memory plans name
        the class as unknown. The default is [] for one of lingo's own layers that has layers inside
        and no `products`, else None.
        """
        is_known = is_lingos(type(self)) and not self.products and any(self.inner_layers())
        return [] if is_known else None

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        """Returns the requirements of the layer itself on a batch; `shape` is its input's shape.

        Unknown sizes in `shape` are None.
        """
        return BatchRequirements()

    def empty_caches(self, *, batch_size: Any, length: Any) -> dict[str, tf.Tensor]:
        """Returns path -> zeros, for each cache of this layer and of the layers inside.

        Decoding starts with these caches. Stacked layers have one tensor. A cache is
        [stacked axes, B, *shape], or with `per_position` [stacked axes, B, S, *shape], which has
        room for S positions. `batch_size` is B and `length` is S, both ints or int32 scalars.
        """
        caches = {}
        for where, spec in self.caches().items():
            shape: list[Any] = list(spec.shape)
            if spec.per_position:
                shape.insert(spec.position_axis, length)
            caches[where] = tf.zeros([*path.stack_shape(where), batch_size, *shape], spec.dtype)
        return caches

    def _declare(
        self,
        kind: str,
        name: str,
        shape: Sequence[int],
        axes: Sequence[str | None],
        init: InitialValue,
        fan_in: int | None,
        dtype: str | None,
    ) -> ParamSpec:
        if len(axes) != len(shape):
            raise ParamError(f"{name}: {len(axes)} axes {tuple(axes)} for shape {tuple(shape)}")
        least = 0 if kind == "caches" else 1
        if any(type(n) is not int or n < least for n in shape):
            raise ParamError(f"{name}: {tuple(shape)} has a size that is not an int from {least}")
        if not (hasattr(init, "draw") and hasattr(init, "key")):
            raise ParamError(
                f"{name}: init={init!r:.80} does not draw values: give an Initializer that is"
                " built, such as Constant.params(value=1.0).build()"
            )
        if fan_in is None:
            fan_in = shape[0] if shape else 1
        spec = ParamSpec(name, tuple(shape), tuple(axes), dtype or self.p.dtype, init, fan_in)
        if any(name in self.__dict__.get(f"_{k}", {}) for k in ("weights", "state", "caches")):
            raise ParamError(f"{type(self).__name__} declares {name!r} twice")
        self.__dict__.setdefault(f"_{kind}", {})[name] = spec
        return spec

    def _read(self, kind: str, spec: ParamSpec) -> tf.Tensor:
        return context.read(kind, path.join(self.path, spec.path), spec)


def _refuse_other_names(cls: type[Layer]) -> None:
    """Raises TypeError if a class defines a method by its name in Keras or PyTorch.

    A method that another one of the same class or of a base may call is no mistake: the class has
    lingo's method, too, or a base has a method of the same name.
    """
    for name, meant in cls._never_called.items():
        is_new = name in vars(cls) and not any(hasattr(base, name) for base in cls.__bases__)
        if is_new and meant[1:].partition("(")[0] not in vars(cls):
            raise TypeError(f"{cls.__name__}.{name} would never be called. Rename it: {meant}.")


def _own_attributes(cls: type[Layer]) -> dict[str, Any]:
    """Returns name -> value of the attributes that a class, or a non-layer mixin, redefines.

    Only the attributes that `Layer.__init_subclass__` treats are returned.
    """
    own = {}
    for name in ("__call__", "step", "positionwise", "flops", "output_shape"):
        owner = next((base for base in cls.__mro__ if name in vars(base)), Layer)
        if owner is cls or not issubclass(owner, Layer):
            own[name] = vars(owner)[name]
    return own


def _with_name_scope(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a layer's `__call__` in a name scope, so that graphs, profiles and errors name it."""

    @functools.wraps(call)
    def call_in_scope(self: Layer, *args: Any, **kwargs: Any) -> Any:
        current = context.observe(self, args, kwargs)
        is_outermost = type(self).__call__ is call_in_scope  # not `super().__call__`
        try:
            if not self._scope:  # a root, or a layer that shares its path with its wrapper
                result = call(self, *args, **kwargs)
            else:
                with tf.name_scope(self._scope):
                    result = call(self, *args, **kwargs)
        except Exception as error:
            note_place(error, vars(self.p)["_path"])
            if (explained := explain(error, self, current)) is not error:
                raise explained from error
            raise
        if is_outermost:
            check_result(self, args, result, current)
        return result

    return call_in_scope
