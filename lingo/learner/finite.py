"""Finds the first quantity of a step that is not finite: devices return its index, Python names it.

Every tensor that a step computes is summed, weight by weight; a sum is finite only if all its terms
are. The sums form one vector, in the order in which NaN and infinity spread:

    batch/<array>               the input
    loss/<term>                 forward
    batch_statistics/<state>
    gradients/<weight>          backward: the weights nearest to the loss come first
    learner/grad_norm           finite gradients whose squares add up to more than float32 holds
    weights/..., slots/..., state/...    values after the update

So the index of the first entry that is not finite tells where to look, for a few bytes per step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.layers import path
from lingo.learner.state import Learner
from lingo.optim.optimizer import Weight

GRAD_NORM = "learner/grad_norm"


class FiniteCheck(NamedTuple):
    """The result of `check_finite`.

    `is_finite`, a bool scalar, says whether the update may be applied. The arrays of the batch do
    not count: a NaN there may be masked, and otherwise shows in the loss. `first_non_finite`, an
    int32 scalar, is an index into `quantity_names`; -1 if the update may be applied.
    `num_quantities`, an int32 scalar, is the number of these names.
    """

    is_finite: tf.Tensor
    first_non_finite: tf.Tensor
    num_quantities: tf.Tensor


def quantity_names(
    learner: Learner, *, arrays: Collection[str], terms: Collection[str]
) -> list[str]:
    """Returns the name of each checked quantity, in the order of `FiniteCheck.first_non_finite`.

    `arrays` are the floating-point arrays of a batch, `terms` the loss's terms, `total` included.
    """
    if learner.phase is None and learner.task.phases():
        return [
            name
            for own in learner.in_turn()
            for name in quantity_names(own, arrays=arrays, terms=_terms_of(own, terms))
        ]
    weights, states = list(learner.weights()), list(learner.statistics())
    return [
        *_qualify("batch", sorted(arrays)),
        *_qualify("loss", _order_terms(terms)),
        *_qualify("batch_statistics", states),
        *_qualify("gradients", reversed(weights)),
        GRAD_NORM,
        *_qualify("weights", weights),
        *(name for where, slot in _slots(learner) for name in _qualify(f"slots/{slot}", [where])),
        *_qualify("state", states),
    ]


def name_first_non_finite(
    learner: Learner, first: int, *, batch: Mapping[str, np.ndarray], scalars: Collection[str]
) -> str | None:
    """Returns the name of the first quantity of a step that is not finite; None if `first` is -1.

    Only names and dtypes of the batch, {name: [B, ...] array}, are used; `scalars` are the tags of
    the step's report, and the names of its metrics.
    """
    if first < 0:
        return None
    arrays = [name for name, array in batch.items() if tf.as_dtype(array.dtype).is_floating]
    terms = [tag.removeprefix("loss/") for tag in scalars if tag.startswith("loss/")]
    return quantity_names(learner, arrays=arrays, terms=terms)[first]


def check_finite(
    learner: Learner,
    *,
    sums: Mapping[str, Any],
    squares: Mapping[str, tf.Tensor],
    norm: tf.Tensor,
    new: tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]], Mapping[str, Any]],
    total: Callable[[Any], Any],
) -> FiniteCheck:
    """Checks every tensor that a step computes, with the results of `local_sums` and `square_sums`.

    `norm` is the norm of all gradients, a float32 scalar; `new` are weights, slots and state after
    the update, with the shapes of `TrainState` or split into rows (`Weight.row_columns`). `total`
    adds up sums over the devices that have shards of weights and slots.
    """
    weights, slots, state = new
    weight_sums, slot_sums = total(
        (
            [_sum_per_layer(where, weights[where]) for where in learner.weights()],
            [_sum_per_layer(where, slots[where][slot]) for where, slot in _slots(learner)],
        )
    )
    arrays = [sums["arrays"][name] for name in sorted(sums["arrays"])]
    rest = [
        *(sums["losses"][term] for term in _order_terms(sums["losses"])),
        *(_sum_statistic(where, sums["batch_statistics"]) for where in learner.statistics()),
        *(squares[where] for where in reversed(list(learner.weights()))),
        norm,
        *weight_sums,
        *slot_sums,
        *(_sum_per_layer(where, state[where]) for where in learner.statistics()),
    ]
    is_finite = tf.math.is_finite(
        tf.concat([tf.reshape(entry, [-1]) for entry in (*arrays, *rest)], axis=0)
    )
    applied = tf.reduce_all(is_finite[len(arrays) :])
    first = tf.argmax(tf.cast(~is_finite, tf.int32), output_type=tf.int32)
    return FiniteCheck(applied, tf.where(applied, -1, first), tf.size(is_finite))


def array_sums(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the float32 sum of each floating-point array, [B, ...], of a batch."""
    return {
        name: tf.reduce_sum(tf.cast(value, tf.float32))
        for name, value in batch.items()
        if value.dtype.is_floating
    }


def square_sums(
    weights: Mapping[str, Weight], gradients: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the sum of squares of each layer's gradient, by path, with stacked layers as one.

    Gradients are float32 [*weight.shape], or split into rows (`Weight.row_columns`); results are
    [*weight.stack_shape].
    """
    return {where: _square_sum(weight, gradients[where]) for where, weight in weights.items()}


def _square_sum(weight: Weight, gradient: tf.Tensor) -> tf.Tensor:
    if weight.num_stacked:
        return tf.reduce_sum(gradient * gradient, axis=weight.axes)
    return 2.0 * tf.nn.l2_loss(gradient)  # unlike the above, it stores no squares


def _terms_of(learner: Learner, terms: Collection[str]) -> list[str]:
    """Returns the loss terms of a learner's phase, `total` included."""
    return [term for term in terms if term == "total" or term.startswith(f"{learner.phase}/")]


def _slots(learner: Learner) -> list[tuple[str, str]]:
    """Returns (program path of its weight or state, slot's name) of each slot, in order."""
    return [(where, slot) for where, slots in learner.slots().items() for slot in sorted(slots)]


def _order_terms(terms: Collection[str]) -> list[str]:
    """Returns the terms of a loss in order; `total` is last because it is computed from them."""
    return sorted(terms, key=lambda term: (term == "total", term))


def _qualify(kind: str, paths: Iterator[str] | Sequence[str]) -> list[str]:
    return [f"{kind}/{name}" for where in paths for name in path.names(where)]


def _sum_statistic(
    where: str, batch_statistics: Mapping[str, Mapping[str, tf.Tensor]]
) -> tf.Tensor:
    """Returns the sum of a state's batch statistics, [*stacked axes]; 0 if it has none."""
    if where not in batch_statistics:
        return tf.zeros(path.stack_shape(where))
    return tf.add_n([_sum_per_layer(where, value) for value in batch_statistics[where].values()])


def _sum_per_layer(where: str, value: tf.Tensor) -> tf.Tensor:
    """Returns each layer's sum, [*stacked axes], of a tensor [*stacked axes, ...]."""
    stacked = len(path.stack_shape(where))
    return tf.reduce_sum(value, axis=list(range(stacked, len(value.shape))))
