"""The layer contract: what may be declared, what it is called, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.base.types import Wrapped
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Attention, Layer, Remat, Repeat, Stack, TransformerLayer, context
from lingo.layers.tree import MAX_TENSORS
from lingo.learner.task import Task
from lingo.ops import random


class Scale(Layer):
    """Multiplies by a weight."""

    dim: int = 2  # width
    axes: list[str | None] = ["embed"]  # of the weight

    positionwise = True

    def setup(self) -> None:
        self.scale = self.weight("scale", [self.p.dim], axes=self.p.axes)

    def __call__(self, x: Any) -> Any:
        return x * self.scale


class Noise(Layer):
    """Adds one random number of its own."""

    def __call__(self, x: Any) -> Any:
        return x + random.uniform(self.random_key())


class Around(Layer):
    """Adds a random number to what the layer inside makes."""

    layer: Wrapped  # what it stands around

    def setup(self) -> None:
        self.layer = self.p.layer.build()

    def __call__(self, x: Any) -> Any:
        return self.layer(x) + 10 * random.uniform(self.random_key())


class Declares(Layer):
    """Declares what a test tells it to."""

    child: Scale = Scale  # to build and misplace

    def setup(self) -> None:
        DECLARE[0](self)


DECLARE: list[Any] = []


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda x: (x.weight("w", [2], axes=[None]), x.cache("w", [2], axes=[None])),
            "declares 'w' twice",
        ),
        (
            lambda x: setattr(x, "v", x.state("w", [2], decay=0.5)),
            r"'w' is declared, but assigned to self\.v",
        ),
        (lambda x: x.p.child.build(), "builds a Scale that no attribute holds"),
        (
            lambda x: (setattr(x, "a", x.p.child.build()), setattr(x, "b", x.a)),
            "'b' is a layer that Declares has already",
        ),
        (lambda x: x.weight("w", [2, 3], axes=()), r"w: 0 axes .* for shape \(2, 3\)"),
        (lambda x: x.weight("w", [2], axes=("embed", None)), r"w: 2 axes .* for shape \(2,\)"),
        (lambda x: x.weight("w", [3, 0], axes=[None] * 2), r"\(3, 0\) .* is not an int from 1"),
        (lambda x: x.weight("w", [2.0], axes=[None]), r"\(2\.0,\) .* is not an int from 1"),
        (lambda x: x.weight("w", [True], axes=[None]), r"\(True,\) .* is not an int from 1"),
        (lambda x: x.cache("w", [-1], axes=[None]), r"w: \(-1,\) .* is not an int from 0"),
    ],
)
def test_wrong_declarations_are_refused(declare: Any, message: str) -> None:
    DECLARE[:] = [declare]
    with pytest.raises(ParamError, match=message):
        Declares.params().build()


def test_names_of_the_contract_are_taken() -> None:
    DECLARE[:] = [lambda x: setattr(x, "weights", 1)]
    with pytest.raises(AttributeError, match=r"Declares\.weights: the name is taken by Layer"):
        Declares.params().build()


def test_only_a_vector_can_be_shown_over_time() -> None:
    class Shown(Layer):
        shape: list[int] = [3]  # of the statistic

        def setup(self) -> None:
            self.a = self.state("a", self.p.shape, decay=0.5, shown=True)
            self.b = self.state("b", [3], decay=0.5)

    specs = Shown.params().build().states()
    assert {where: spec.shown for where, spec in specs.items()} == {"a": True, "b": False}
    for shape in ([], [2, 3]):
        with pytest.raises(ParamError, match="only vectors can be shown"):
            Shown.params(shape=shape).build()


class Remembers(Layer):
    """Caches of every kind."""

    def setup(self) -> None:
        axes = ("heads", "head_dim")
        self.state_of_row = self.cache("state_of_row", [2, 3], axes=axes)
        self.first = self.cache("first", [2, 3], axes=axes, per_position=True)
        self.later = self.cache("later", [2, 3], axes=axes, per_position=True, position_axis=1)
        self.empty = self.cache("empty", [2, 0], axes=axes)


def test_positions_stand_in_a_cache_where_it_says() -> None:
    layer = Repeat.params(layer=Remembers, num_layers=4).build()
    caches = layer.empty_caches(batch_size=5, length=7)
    assert {where.rpartition("/")[2]: tuple(c.shape) for where, c in caches.items()} == {
        "state_of_row": (4, 5, 2, 3),
        "first": (4, 5, 7, 2, 3),
        "later": (4, 5, 2, 7, 3),
        "empty": (4, 5, 2, 0),
    }


def test_errors_say_which_layer_is_meant() -> None:
    inner = Stack.params(layer=Scale.params(axes=[]), num_layers=2)
    with pytest.raises(ParamError, match=r"^layer\.layer: scale: 0 axes"):
        Stack.params(layer=inner).build()


def test_children_in_lists_and_dicts_have_the_index_or_key_in_their_path() -> None:
    class Parent(Layer):
        """Has children in every way."""

        child: Scale = Scale  # all of them

        def setup(self) -> None:
            self.one = self.p.child.build()
            self.some = [self.p.child.build() for _ in range(2)]
            self.named = {"a": self.p.child.build()}
            self.alike = self.copies("alike", self.p.child.build(), 3, start=1, step=2)

    weights = Parent.params().build().weights()
    assert list(weights) == [
        "one/scale", "some/0/scale", "some/1/scale", "named/a/scale", "alike/[1:6:2]/scale",
    ]  # fmt: skip
    stacked = weights["alike/[1:6:2]/scale"]
    assert (stacked.program_shape, stacked.shape, stacked.num_stacked) == ((3, 2), (2,), 1)
    assert (stacked.size, stacked.stack_axes, stacked.axes) == (6, ("layer",), ("embed",))


def test_a_wrapped_layer_has_the_paths_that_it_has_alone() -> None:
    assert list(Around.params(layer=Scale.params()).build().weights()) == ["scale"]


def test_two_layers_of_one_path_may_not_share_a_name() -> None:
    class Double(Around):
        """Declares what the layer inside declares."""

        def setup(self) -> None:
            super().setup()
            self.scale = self.weight("scale", [1], axes=[None])

    with pytest.raises(ParamError, match="two layers declare scale"):
        Double.params(layer=Scale.params()).build().weights()


def test_a_weight_outside_a_call_is_refused() -> None:
    with pytest.raises(RuntimeError, match="weights exist only in a call"):
        _ = Scale.params().build().scale


def test_a_weight_that_the_context_lacks_is_refused_by_name() -> None:
    stack = Stack.params(layer=Scale.params()).build()
    with pytest.raises(KeyError, match=r"layers/0/scale: .* no such entry among its weights"):
        context.apply(stack, {}, tf.ones([2]))


def test_weights_are_read_in_the_type_of_the_computation() -> None:
    layer = Scale.params(dtype="bfloat16").build()
    y, _ = context.apply(layer, {"scale": tf.ones([2])}, tf.ones([2], tf.bfloat16))
    assert y.dtype == tf.bfloat16


def test_a_positionwise_layer_steps_by_computing() -> None:
    weights = {"scale": tf.constant([2.0, 3.0])}
    y, _ = context.apply(Scale.params().build(), weights, tf.ones([1, 1, 2]), 5, method="step")
    np.testing.assert_array_equal(y, [[[2.0, 3.0]]])


def test_a_layer_that_computes_nothing_says_so() -> None:
    class Empty(Layer):
        """Has no __call__."""

    with pytest.raises(ParamError, match="Empty has no `__call__`"):
        Empty.params().build()(1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("build", r"`setup\(self\)`"), ("call", "`__call__"), ("forward", "`__call__")],
)
def test_a_method_named_as_in_another_library_is_refused(name: str, meant: str) -> None:
    method = {name: lambda self, *args: None}
    message = f"^Mine.{name} would never be called. Rename it: {meant}"
    for base in (Layer, Stack):
        with pytest.raises(TypeError, match=message):
            type("Mine", (base,), method)


def test_a_method_that_others_of_the_class_may_call_has_any_name() -> None:
    class Mine(Layer):
        def __call__(self, x: Any) -> Any:
            return self.forward(x)

        def forward(self, x: Any) -> Any:
            return x

    class Twice(Mine):
        def forward(self, x: Any) -> Any:
            return 2 * x

    class Fit(Task):
        def forward(self, x: Any) -> Any:
            return x

    assert Twice.params().build()(3) == 6
    assert Fit.forward


def test_random_numbers_need_a_key() -> None:
    with pytest.raises(RuntimeError, match="layers/0: random numbers need a key"):
        context.apply(Stack.params(layer=Noise.params()).build(), {}, tf.zeros([]))


def test_wrappers_and_what_they_wrap_draw_different_numbers() -> None:
    layer = Around.params(layer=Around.params(layer=Noise.params())).build()
    with context.enter_call(context.Call({}, key=random.root_key(0))):
        layers = layer, layer.layer, layer.layer.layer
        keys = [each.random_key(name) for each in layers for name in ("", "named")]
    assert len(set(keys)) == 6


def test_a_wrapper_draws_the_same_numbers_inside_another() -> None:
    alone = Around.params(layer=Noise.params()).build()
    inside = Remat.params(layer=Around.params(layer=Remat.params(layer=Noise.params()))).build()
    with context.enter_call(context.Call({}, key=random.root_key(0))):
        assert alone.random_key() == inside.layer.random_key()


def test_more_weights_than_can_be_named_are_refused() -> None:
    named = Repeat.params(layer=Scale, num_layers=MAX_TENSORS).build()
    assert len(named.weights()) == 1
    with pytest.raises(
        ParamError, match=r"1,000,000,000 weights with separate names are more than 500"
    ):
        Repeat.params(layer=Scale, num_layers=10**9).build().weights()


def test_a_size_that_does_not_fit_the_parent_is_refused_at_build() -> None:
    block = TransformerLayer.params(dim=8, attention=Attention.params(num_heads=2))
    block.ffn.dim = 4
    with pytest.raises(ParamError, match=r"^ffn\.dim=4, but TransformerLayer, .* has dim=8"):
        block.build()


def test_operations_have_the_names_of_their_layers() -> None:
    layer = Stack.params(layer=Stack.params(layer=Scale), num_layers=2).build()
    graph = tf.Graph()
    with graph.as_default():
        weights = {where: tf.ones(spec.shape) for where, spec in layer.weights().items()}
        context.apply(layer, weights, tf.zeros([2]))
    products = [op.name for op in graph.get_operations() if op.type == "Mul"]
    assert products == ["layers/0/layers/0/mul", "layers/1/layers/0/mul"]
