"""Lifted layers give what their copies give one after the other.

Axes: K copies, B batch, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Layer, context
from lingo.layers.context import annotate
from lingo.layers.dropout import dropout
from lingo.layers.stacks.lift import call_copies, one_of, vmap_layer
from lingo.ops import random

K, B, D = 3, 4, 8
X = np.random.default_rng(0).normal(size=[K, B, D]).astype(np.float32)
W = np.random.default_rng(1).normal(size=[K, D]).astype(np.float32)
MEAN = np.random.default_rng(2).normal(size=[K, D]).astype(np.float32)
ROWS = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [12, 13, 14, 15]], "i")


class Noisy(Layer):
    """A layer with a weight, a state, noise and side outputs."""

    def setup(self) -> None:
        self.w = self.weight("w", [D], axes=("embed",))
        self.mean = self.state("mean", [D], decay=0.5)

    def __call__(self, x: Any, *, shift: Any = 0.0) -> Any:
        y = annotate(x * self.w - self.mean + shift, "batch", "embed")
        y = dropout(self, y, rate=0.5)
        self.batch_statistic("mean", tf.reduce_sum(y, 0), tf.constant(B))
        self.side_loss("size", tf.reduce_sum(y))
        self.side_metric("level", {"sum": tf.reduce_sum(y * y), "weight": tf.constant(1.0)})
        return y


class SideBySide(Layer):
    """Copies along a lifted axis; each has its own rows if they are given."""

    child: Noisy = Noisy  # what is copied

    def setup(self) -> None:
        self.child = self.copies("children", self.p.child.build(), K, axis="stage")

    def __call__(self, x: Any, *, rows: Any = None, **inputs: Any) -> Any:
        return vmap_layer(self.child, K, x, axis="stage", rows=rows, **inputs)

    def unrolled(self, x: Any, *, rows: Any) -> Any:
        return tf.stack(call_copies(self.child, list(x), rows=list(rows)))

    def one(self, index: Any, x: Any) -> Any:
        return one_of(self.child, index, x)


class OneByOne(Layer):
    """The same copies, one after the other."""

    child: Noisy = Noisy  # what is copied

    def setup(self) -> None:
        self.children = [self.p.child.build() for _ in range(K)]

    def __call__(self, x: Any, *, rows: Any = None) -> Any:
        call, outputs = context.current(), []
        for i, copy in enumerate(self.children):
            inner = call.derive(rows=call.rows if rows is None else rows[i], sides=call.sides)
            with context.enter_call(inner):
                outputs.append(copy(x[i]))
        return tf.stack(outputs)


CALL = {"training": True, "key": random.root_key(0), "rows": tf.range(B)}


def lifted(**inputs: Any) -> Any:
    state = {"children/[0:3]/mean": MEAN}
    layer = SideBySide.params().build()
    return context.apply(layer, {"children/[0:3]/w": W}, X, call={**CALL, "state": state}, **inputs)


def alone(**inputs: Any) -> Any:
    weights = {f"children/{i}/w": W[i] for i in range(K)}
    state = {f"children/{i}/mean": MEAN[i] for i in range(K)}
    return context.apply(
        OneByOne.params().build(), weights, X, call={**CALL, "state": state}, **inputs
    )


@pytest.mark.parametrize(
    ("method", "rows"), [("__call__", None), ("__call__", ROWS), ("unrolled", ROWS)]
)
def test_outputs_and_side_outputs_are_those_of_the_copies(method: str, rows: Any) -> None:
    (y, sides), (expected, apart) = lifted(rows=rows, method=method), alone(rows=rows)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sides.losses["size"], apart.losses["size"], rtol=1e-4, atol=1e-5)
    for part, value in apart.metrics["level"].items():
        np.testing.assert_allclose(sides.metrics["level"][part], value, rtol=1e-5)
    moment = sides.batch_statistics["children/[0:3]/mean"]
    for i in range(K):
        for part, value in apart.batch_statistics[f"children/{i}/mean"].items():
            np.testing.assert_allclose(moment[part][i], value, rtol=1e-5, atol=1e-6)


def test_rows_decide_what_is_dropped() -> None:
    assert (lifted()[0] == lifted(rows=np.tile(np.arange(B, dtype="i"), (K, 1)))[0]).numpy().all()
    assert (lifted()[0] != lifted(rows=ROWS)[0]).numpy().any()


def test_inputs_by_name_are_cut_like_the_others() -> None:
    shift = np.arange(K, dtype=np.float32)
    is_kept = lifted(shift=0 * shift)[0] != 0
    more = lifted(shift=shift)[0] - lifted(shift=0 * shift)[0]
    np.testing.assert_allclose(
        more, np.where(is_kept, 2 * shift[:, None, None], 0), rtol=1e-4, atol=1e-5
    )


def test_annotations_inside_name_the_lifted_axis_first() -> None:
    activations, weights = set(), set()

    class Asked:
        def activation(self, x: Any, axes: tuple[str | None, ...]) -> Any:
            activations.add((axes, x.shape.rank))
            return x

        def weight(self, x: Any, axes: tuple[str | None, ...]) -> Any:
            weights.add((axes[0], x.shape.rank))
            return x

    layer = SideBySide.params().build()
    call = {**CALL, "state": {"children/[0:3]/mean": MEAN}, "rules": Asked()}
    context.apply(layer, {"children/[0:3]/w": W}, X, call=call)
    assert activations == {(("stage", "batch", "embed"), 2)}
    assert {first for first, _ in weights} == {"stage"}


def test_one_copy_computes_what_it_does_alone() -> None:
    layer, state = SideBySide.params().build(), {"children/[0:3]/mean": MEAN}
    call = {**CALL, "state": state}
    for i, expected in enumerate(alone()[0]):
        weights = {"children/[0:3]/w": W}
        y, _ = context.apply(layer, weights, tf.constant(i), X[i], method="one", call=call)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
