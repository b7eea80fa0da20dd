"""The feed-forward network of a Transformer.

Axes: B batch, T positions, D model width, F hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.initial import ONES, ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import ACTIVATION_COPIES, Residual, ResidualCall
from lingo.ops.activations import Activation, activate
from lingo.ops.dropout import DropoutForm

HiddenBias = Literal["additive", "multiplicative"]
"""How a bias b changes the hidden activations: additive is f(x w_in) + b, multiplicative is
f(x w_in) * b (Zoph et al. 2022, app. C)."""


class FeedForward(Layer):
    """Two matrix products with an activation between them (Vaswani et al. 2017, sec. 3.3).

    With `gated`, there is a third product: (f(x w_gate) * (x w_in)) w_out (Shazeer 2020). With the
    activation `silu` this is SwiGLU, with `gelu` GEGLU, with `sigmoid` GLU, and with `identity` the
    bilinear layer.

    Weights:
        w_in: [D, F].
        w_gate: [D, F], if gated.
        w_out: [F, D].
        b_in, b_gate: [F], biases, with `use_bias`.
        b_out: [D], a bias, with `use_bias`.
        b_hidden: [F], with `hidden_bias`: added to the hidden activations (initially zeros), or
            multiplied with them (initially ones).
    """

    dim: int  # width of the input and of the output
    hidden_dim: int | None = None  # F; None: 4 * dim
    activation: Activation = "relu"  # f
    gated: bool = False  # whether the hidden activations are f(x w_gate) * (x w_in), not f(x w_in)
    dropout_rate: float = 0.0  # dropout rate of the hidden activations
    dropout_form: DropoutForm = "element"  # what is dropped together
    use_bias: bool = False  # whether each product has a bias
    # how b_hidden changes the hidden activations; None: there is no b_hidden
    hidden_bias: HiddenBias | None = None
    init: Initializer = FanIn  # of the matrices; biases start at zero

    positionwise = True
    products = (Product("w_in"), Product("w_gate"), Product("w_out"))

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        dim, hidden_dim, init = self.p.dim, self._hidden_dim, self.p.init.build()
        names = ("in", "gate") if self.p.gated else ("in",)
        for name in names:
            self._declare_product(name, [dim, hidden_dim], ("embed", "mlp"), init)
        self._declare_product("out", [hidden_dim, dim], ("mlp", "embed"), init)
        if self.p.hidden_bias is not None:
            start = ZEROS if self.p.hidden_bias == "additive" else ONES
            self.b_hidden = self.weight("b_hidden", [hidden_dim], axes=("mlp",), init=start)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, T, D], in the layer's dtype; x is [B, T, D], any float type."""
        x = tf.cast(x, self.p.dtype)
        hidden = self._product("in", x, "btd,df->btf")
        if self.p.gated:
            hidden *= activate(self._product("gate", x, "btd,df->btf"), self.p.activation)
        else:
            hidden = activate(hidden, self.p.activation)
        if self.p.hidden_bias == "additive":
            hidden += self.b_hidden
        elif self.p.hidden_bias == "multiplicative":
            hidden *= self.b_hidden
        hidden = dropout(self, hidden, rate=self.p.dropout_rate, form=self.p.dropout_form)
        hidden = annotate(hidden, "batch", "length", "mlp")
        return annotate(self._product("out", hidden, "btf,fd->btd"), "batch", "length", "embed")

    def flops(self, shape: Sequence[int]) -> int:
        return 2 * math.prod(shape) * self._hidden_dim * (3 if self.p.gated else 2)

    @property
    def _hidden_dim(self) -> int:
        return 4 * self.p.dim if self.p.hidden_dim is None else self.p.hidden_dim

    def _declare_product(
        self, name: str, shape: list[int], axes: tuple[str, str], init: Initializer
    ) -> None:
        self.weight(f"w_{name}", shape, axes=axes, init=init)
        if self.p.use_bias:
            self.weight(f"b_{name}", shape[1:], axes=axes[1:], init=ZEROS)

    def _product(self, name: str, x: tf.Tensor, equation: str) -> tf.Tensor:
        y = tf.einsum(equation, *self.operands(f"w_{name}", input=x))
        return y + getattr(self, f"b_{name}") if self.p.use_bias else y

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        width = next(s.shape[-1] for s in self.declarations() if s.axes[-1:] == ("mlp",))
        products = 1 + self.p.gated
        num_elementwise = ACTIVATION_COPIES[self.p.activation] + 2 * self.p.gated - products
        if call.num_slots is not None:
            hidden = Residual(products, (call.num_slots, width), ("batch", "mlp"))
        else:
            dims = call.shape[1:-1]
            names = ("length",) if len(dims) == 1 else (None,) * len(dims)
            axes = ("batch", *names, "mlp")
            hidden = Residual(products, (call.shape[0], *dims, width), axes)
        return [hidden, hidden._replace(copies=num_elementwise, is_elementwise=True)]
