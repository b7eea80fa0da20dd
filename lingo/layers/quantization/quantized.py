"""A wrapper that quantizes the factors of all matrix products and convolutions inside a layer.

for product in products of the layer inside:        # at setup
    declare states for each activation's range, such as w_in_input_low and w_in_input_high
call the layer inside, whose products ask the call context for their (rounded) factors
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast, get_args

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.regex import check_regex
from lingo.layers import context, path
from lingo.layers.initial import ONES, Constant
from lingo.layers.inputs import BatchRequirements
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.quantization.domain import PassiveAsymQDomain, Progress, QDomain
from lingo.layers.wrap.reweighted import split_dims
from lingo.layers.wrap.wrapper import Wrapper
from lingo.ops import quantization

_NATURAL = get_args(quantization.NaturalRange)
_MINUS_ONE = Constant.params(value=-1.0).build()


class LayerProduct(NamedTuple):
    """A product, with the path of its layer in a tree."""

    path: str  # the layer's path, then the product's name
    product: Product
    sum_axes: tuple[int, ...]  # axes of the weight that the product sums over; () without a weight
    stack_axes: tuple[str, ...]  # logical axes along which the layer is stacked

    def stacked_sum_axes(self, where: str) -> list[int]:
        """Returns `sum_axes` as axes of the stacked weight, whose program path is `where`."""
        return [len(path.stack_shape(where)) + axis for axis in self.sum_axes]

    @property
    def activations_to_measure(self) -> list[str]:
        """The names of the activations whose range has to be measured."""
        return [name for name in self.product.activations if name not in _NATURAL]


class Quantized(Wrapper):
    """Rounds the factors of products inside to a few bits, in training, too (Jacob et al. 2018).

    Weights are stored as float32 and rounded each time they are used. Gradients ignore the rounding
    (straight-through). Norms, and the products of routers and softmax layers, keep their precision.
    If a layer inside has its own `Quantized`, this inner wrapper decides. The default domain,
    `PassiveAsymQDomain`, follows Lingvo's quantization.

    States, where the range of the activation x of a product p is measured:
        <p>_<x>_low: a scalar, the moving average of the least value, initially -1.
        <p>_<x>_high: a scalar, the moving average of the largest value, initially 1.
        steps: a scalar, the number of training steps, if the domain depends on it.
    """

    domain: QDomain = PassiveAsymQDomain  # how weights and activations are rounded
    # regex for the products to quantize; it must match a product's whole path from the layer inside
    pattern: str = ".*"

    def check(self) -> None:
        check_regex(self.p.pattern)

    def setup(self) -> None:
        super().setup()
        self.domain = self.p.domain.build()
        inside = [p for p in find_products(self.layer) if not p.product.exact]
        self.quantized_products = [p for p in inside if self._matches(p)]
        if not self.quantized_products:
            names = ", ".join(p.path for p in inside[:5]) or "none"
            raise ParamError(
                f"pattern={self.p.pattern!r} matches no product of the"
                f" {type(self.layer).__name__} inside; it has {names}"
            )
        if self.domain.decay is not None:
            for product in self.quantized_products:
                for name in product.activations_to_measure:
                    self._declare_range(product, name, self.domain.decay)
        if self.domain.counts_steps:
            self.state("steps", [], decay=0.0)

    def call_wrapped(self, method: str, *args: Any, **inputs: Any) -> Any:
        call = context.current()
        now = Progress(self._count_step(), call.training, call.constant_ranges)
        changes = {
            path.join(self.path, product.path): partial(self._quantize, product, now)
            for product in self.quantized_products
        }
        scales = {}
        # a converter, which reads constant ranges, rounds added constants itself
        if not (call.training or call.constant_ranges):
            scales = {
                path.join(self.path, product.path): partial(self._product_scale, product)
                for product in self.quantized_products
                if product.product.has_weight
            }
        inner = call.derive(
            operands={**call.operands, **changes},
            result_scales={**call.result_scales, **scales},
            sides=call.sides,
        )
        with context.enter_call(inner):
            return getattr(self.layer, method)(*args, **inputs)

    def result_scale(self, product: str) -> tf.Tensor | None:
        return self.call_wrapped("result_scale", product)

    def rounded_weights(self) -> dict[str, tf.Tensor]:
        """Returns path -> rounded weight, [stacked axes, ...], for the current call's weights.

        Stacked layers have one tensor.
        """
        now = Progress(self._steps_done(), training=False)
        return {
            where: self.domain.weight(w, product.stacked_sum_axes(where), now)
            for where, product, w in self._product_weights()
        }

    def weight_channels(self) -> dict[str, quantization.Channels]:
        """Returns path -> 8-bit levels and scale of a weight, for the current call's weights.

        Stacked layers have one tensor. Levels times scale is the domain's rounded weight if the
        domain has 8-bit levels. Otherwise the rounded weight is rounded once more, to such levels.
        """
        now, by_path = Progress(self._steps_done(), training=False), {}
        for where, product, w in self._product_weights():
            axes = product.stacked_sum_axes(where)
            if (channels := self.domain.channels(w, axes)) is None:
                channels = quantization.quantize_channels(self.domain.weight(w, axes, now), axes)
            by_path[where] = channels
        return by_path

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        if self.domain.decay is None:
            return BatchRequirements()
        size = self.domain.group_size
        return BatchRequirements(examples_together=size or 1, examples_counted=size or 0)

    def _matches(self, product: LayerProduct) -> bool:
        matched = {bool(re.fullmatch(self.p.pattern, name)) for name in path.names(product.path)}
        if len(matched) > 1:
            raise ParamError(
                f"pattern={self.p.pattern!r} matches some of the layers stacked in {product.path}"
                " and not others: put the wrapper inside the stack, or match all"
            )
        return matched.pop()

    def _declare_range(self, product: LayerProduct, activation: str, decay: float) -> None:
        names = _range_names(product, activation)
        for name, init in zip(names, (_MINUS_ONE, ONES), strict=True):
            self.state(name, [], decay=decay, init=init)
            self._state[name] = self._state[name]._replace(stack_axes=product.stack_axes)

    def _product_weights(self) -> Iterator[tuple[str, LayerProduct, tf.Tensor]]:
        weights = context.current().weights
        for product in self.quantized_products:
            if product.product.has_weight:
                where = path.join(self.path, product.path)
                yield where, product, weights[where]

    def _steps_done(self) -> tf.Tensor | None:
        """Returns how many training steps came before, a float32 scalar.

        None: the domain does not count steps.
        """
        return self.steps if self.domain.counts_steps else None

    def _count_step(self) -> tf.Tensor | None:
        """Returns how many training steps came before; in training, counts the current step.

        None: the domain does not count steps.
        """
        steps = self._steps_done()
        if steps is not None and context.current().training:
            self.batch_statistic("steps", steps + 1.0, tf.ones([]))
        return steps

    def _quantize(
        self, product: LayerProduct, now: Progress, operands: Mapping[str, tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the quantized factors of a product; `operands` are name -> factor."""
        return [self._operand(product, name, x, now) for name, x in operands.items()]

    def _operand(self, product: LayerProduct, name: str, x: tf.Tensor, now: Progress) -> tf.Tensor:
        if name == product.product.name:
            is_ready = context.current().weights_ready
            return x if is_ready else self.domain.weight(x, product.sum_axes, now)
        if name in _NATURAL:
            return self.domain.natural(x, cast("quantization.NaturalRange", name), now)
        if self.domain.decay is None:
            return self.domain.activation(x, None, now)
        if not now.training:
            limits = self._moving_range(product, name)
            if now.constant_ranges and product.product.multiplies_activations:
                limits = quantization.center_range(limits)
            return self.domain.activation(x, limits, now)
        limits = self.domain.measure(x)
        # the sum, not the extremes: a NaN or inf may not show in the least value
        finite = tf.math.is_finite(tf.reduce_sum(tf.cast(x, tf.float32), range(1, len(x.shape))))
        for state, values in zip(_range_names(product, name), limits, strict=True):
            self._add_range(state, tf.reshape(values, [-1]), finite)
        return self.domain.activation(x, limits, now)

    def _moving_range(self, product: LayerProduct, activation: str) -> quantization.Range:
        state, names = context.current().state, _range_names(product, activation)
        return quantization.Range(*(state[path.join(self.path, name)] for name in names))

    def _product_scale(self, product: LayerProduct, w: tf.Tensor) -> tf.Tensor | None:
        """Returns `Layer.result_scale` of a product with the weight w: float32 [channels] or None.

        None: the input's range is not measured, or the weight has no 8-bit levels.
        """
        names = product.activations_to_measure
        if self.domain.decay is None or not names:
            return None
        if (channels := self.domain.channels(w, product.sum_axes)) is None:
            return None
        limits = self._moving_range(product, names[0])
        input_scale = quantization.range_scale(limits, bits=self.domain.level_bits)
        return tf.reshape(channels.scale * input_scale, [-1])

    def _add_range(self, name: str, values: tf.Tensor, finite: tf.Tensor) -> None:
        """Adds the lower or upper ends of examples' ranges to the moving average `name`.

        `values` are float32 [examples or 1]. `finite`, bool [examples], says which examples have
        only finite values; only their ranges are added.
        """
        if values.shape[0] == 1:  # one range for all
            finite = tf.reduce_all(finite)[None]
        elif (size := self.domain.group_size or 1) > 1:  # a group is finite if all examples are
            finite = tf.repeat(tf.reduce_all(tf.reshape(finite, [-1, size]), axis=1), size)
        total = tf.reduce_sum(tf.where(finite, values, 0.0))
        self.batch_statistic(name, total, tf.reduce_sum(tf.cast(finite, tf.float32)))


def _range_names(product: LayerProduct, activation: str) -> list[str]:
    """Returns the names of the states that hold the ends of an activation's range."""
    return [f"{product.path}_{activation}_{end}" for end in ("low", "high")]


def find_products(layer: Layer) -> Iterator[LayerProduct]:
    """Yields the products of a layer and the layers inside, except products in a `Quantized`."""
    inside: set[int] = set()
    for part in layer.tree():
        if isinstance(part, Quantized):
            inside.update(map(id, part.tree()))
        if id(part) not in inside:
            yield from layer_products(part)


def layer_products(layer: Layer) -> Iterator[LayerProduct]:
    """Yields the products of a layer itself; a product whose weight is not declared is skipped."""
    weights = {spec.path: spec for spec in layer.declarations() if spec.decay is None}
    for product in layer.products:
        spec = weights.get(product.name)
        if product.has_weight and spec is None:
            continue
        sum_axes = product.sum_axes or ()
        if spec is not None and product.sum_axes is None:
            sum_axes = tuple(range(len(split_dims(spec).inputs)))
        where = path.join(layer.path, product.name)
        yield LayerProduct(where, product, sum_axes, layer.stack_axes)
