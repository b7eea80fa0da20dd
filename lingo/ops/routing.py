"""Functions for mixtures of experts: the tokens' choices, the experts' slots, balancing losses.

Axes: B batch, T positions, G groups, S tokens of a group, K choices of a token, E experts,
C capacity: slots that an expert has for a group, N features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.shape import size_of


class Choices(NamedTuple):
    """The experts that tokens choose, before the capacity limits them; all are [G, S, K]."""

    expert: tf.Tensor  # int32; the K experts of a token differ
    gate: tf.Tensor  # float32, the factor of the expert's output
    uses_slot: tf.Tensor  # bool, whether the choice takes a slot if one is free
    fills_slot: tf.Tensor  # bool, whether the token is sent to that slot; else the slot stays empty


def group_tokens(x: tf.Tensor, size: Any) -> tf.Tensor:
    """Reshapes [B, T, ...] to [G, S, ...]: groups of S consecutive tokens, example by example.

    >>> group_tokens(tf.constant([[1, 2, 3], [4, 5, 6]]), 2).numpy()
    array([[1, 2],
           [3, 4],
           [5, 6]], dtype=int32)
    """
    return tf.reshape(x, [-1, size, *x.shape[2:]])


def most_probable(probabilities: tf.Tensor, num: int) -> tf.Tensor:
    """Returns the K most probable experts of each token, the most probable first.

    It takes one maximum after the other instead of sorting. This is cheaper for few choices, and
    the computation can be split over a mesh.

    Args:
        probabilities: [G, S, E], any float type, not negative; of equally probable experts, the
            first wins.
        num: K, at most E.

    >>> most_probable(tf.constant([[[0.2, 0.5, 0.3]]]), 2).numpy()
    array([[[1, 2]]], dtype=int32)
    """
    experts, left = [], probabilities
    for _ in range(num):
        experts.append(tf.argmax(left, axis=-1, output_type=tf.int32))
        taken = tf.one_hot(experts[-1], left.shape[-1], on_value=True, off_value=False)
        left = tf.where(taken, -tf.ones([], left.dtype), left)
    return tf.stack(experts, axis=-1)


def gates_of(probabilities: tf.Tensor, expert: tf.Tensor) -> tf.Tensor:
    """Returns the chosen experts' probabilities, [G, S, K] from [G, S, E], without a scatter.

    >>> gates_of(tf.constant([[[0.2, 0.5, 0.3]]]), tf.constant([[[1, 2]]])).numpy()
    array([[[0.5, 0.3]]], dtype=float32)
    """
    # not a matrix product, for which accelerators round the factors
    chosen = tf.one_hot(expert, probabilities.shape[-1], dtype=probabilities.dtype)
    return tf.reduce_sum(chosen * tf.expand_dims(probabilities, 2), axis=-1)


def normalize_gates(gate: tf.Tensor, *, epsilon: float = 0.0) -> tf.Tensor:
    """Divides the gates of each token, float32 [G, S, K], by their sum plus epsilon.

    >>> normalize_gates(tf.constant([[[0.6, 0.2]]])).numpy()
    array([[[0.75, 0.25]]], dtype=float32)
    """
    return gate / (tf.reduce_sum(gate, axis=-1, keepdims=True) + epsilon)


def always_first(used: tf.Tensor) -> tf.Tensor:
    """Returns `used`, bool [..., K], with each token's first choice set to True.

    >>> always_first(tf.constant([False, False])).numpy()
    array([ True, False])
    """
    return used | tf.equal(tf.range(used.shape[-1]), 0)


def positions_in_expert(
    expert: tf.Tensor, counted: tf.Tensor, *, num_experts: int, urgency: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns how many choices of the same group and expert come before each choice.

    All first choices come before all second choices, and so on (Lepikhin et al. 2020, algorithm 1).
    Among choices of one rank, tokens are in order of position, or of urgency, the largest first
    (batch-prioritized routing: Riquelme et al. 2021, sec. 4.1).

    Args:
        expert: int32 [G, S, K].
        counted: bool [G, S, K], which choices count.
        num_experts: E.
        urgency: float [G, S]; of equally urgent tokens the first wins. None: by position.

    Returns:
        int32 [G, S, K], 0 where a choice does not count. The numbers may exceed the capacity.

    >>> expert = tf.constant([[[0], [1], [0]]])
    >>> positions_in_expert(expert, tf.ones_like(expert, tf.bool), num_experts=2).numpy().ravel()
    array([0, 0, 1], dtype=int32)
    """
    if urgency is not None:
        size = size_of(urgency, 1)
        order = tf.math.top_k(urgency, size).indices
        back = tf.math.top_k(-order, size).indices
        expert, counted = (tf.gather(x, order, batch_dims=1) for x in (expert, counted))
        positions = positions_in_expert(expert, counted, num_experts=num_experts)
        return tf.gather(positions, back, batch_dims=1)
    claims = tf.one_hot(tf.where(counted, expert, -1), num_experts, dtype=tf.int32)
    # slices, because TensorFlow Lite mistakes tf.unstack followed by tf.concat for a reshape
    firsts_first = [claims[:, :, k] for k in range(claims.shape[2])]
    before = tf.cumsum(tf.concat(firsts_first, axis=1), axis=1, exclusive=True)
    before = tf.stack(tf.split(before, len(firsts_first), axis=1), axis=2)
    return tf.reduce_sum(claims * before, axis=-1)


def best_tokens(scores: tf.Tensor, valid: tf.Tensor, *, capacity: Any) -> tf.Tensor:
    """Gives the slots of each expert to the tokens that the expert scores highest.

    This is expert choice (Zhou et al. 2022, eq. 2). Tokens get slots in order of position. So only
    the least score that gets a slot has to be found, and no permutation has to be undone.

    Args:
        scores: float32 [G, S, E], not negative; of equal scores, earlier tokens win.
        valid: bool [G, S], which tokens may be taken.
        capacity: C, at most S, an int or an int32 scalar.

    Returns:
        int32 [G, S, E], the slot that a token has at an expert, -1 for none.

    >>> scores = tf.constant([[[0.1], [0.7], [0.2]]])
    >>> best_tokens(scores, tf.constant([[True] * 3]), capacity=2).numpy().ravel()
    array([-1,  0,  1], dtype=int32)
    """
    allowed = tf.expand_dims(valid, -1)
    scores = tf.where(allowed, scores, -1.0)
    largest = tf.math.top_k(tf.transpose(scores, [0, 2, 1]), capacity).values
    least = tf.expand_dims(largest[:, :, -1], 1)
    above, level = scores > least, tf.equal(scores, least)
    room = capacity - tf.reduce_sum(tf.cast(above, tf.int32), axis=1, keepdims=True)
    first = tf.cumsum(tf.cast(level, tf.int32), axis=1) <= room
    taken = (above | (level & first)) & allowed
    slot = tf.cumsum(tf.cast(taken, tf.int32), axis=1, exclusive=True)
    return tf.where(taken & (slot < capacity), slot, -1)


def demand(expert: tf.Tensor, counted: tf.Tensor, num_experts: int) -> tf.Tensor:
    """Counts the choices [G, S, K] of each expert, with or without a slot: float32 [G, E].

    >>> expert = tf.constant([[[0], [1], [0]]])
    >>> demand(expert, tf.ones_like(expert, tf.bool), 3).numpy()
    array([[2., 1., 0.]], dtype=float32)
    """
    named = tf.one_hot(tf.where(counted, expert, -1), num_experts, dtype=tf.float32)
    return tf.reduce_sum(named, axis=[1, 2])


def mean_over(values: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Returns the mean of values [G, S, N] over valid tokens, [G, N]; 0 in a group of padding.

    >>> mean_over(tf.constant([[[1.0], [3.0], [9.0]]]), tf.constant([[True, True, False]])).numpy()
    array([[2.]], dtype=float32)
    """
    counts = tf.expand_dims(valid, -1)
    total = tf.reduce_sum(tf.where(counts, values, 0.0), axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(counts, tf.float32), axis=1))


def balance_loss(first: tf.Tensor, probabilities: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Returns E * sum over experts of f_e * P_e: 1 if tokens are spread evenly.

    f_e is the fraction of tokens whose first choice is e, whether or not a slot is free. P_e is the
    mean probability of e, through which the gradient flows (Fedus et al. 2022, eq. 4 to 6).

    Args:
        first: int32 [G, S], the first choice of each token.
        probabilities: float32 [G, S, E].
        valid: bool [G, S], which tokens count.

    Returns:
        float32 [G]; 0 for a group of padding.

    >>> probabilities = tf.constant([[[0.75, 0.25], [0.25, 0.75]]])
    >>> balance_loss(tf.constant([[0, 1]]), probabilities, tf.constant([[True, True]])).numpy()
    array([1.], dtype=float32)
    """
    num_experts = size_of(probabilities, -1)
    fractions = mean_over(tf.one_hot(first, num_experts, dtype=tf.float32), valid)
    means = mean_over(probabilities, valid)
    return tf.reduce_sum(fractions * means, axis=-1) * num_experts


def z_loss(logits: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Returns the mean over valid tokens of (log sum exp(logits))^2 (Zoph et al. 2022, eq. 5).

    Logits are [G, S, E], and the result is [G].

    >>> z_loss(tf.constant([[[0.0, 0.0]]]), tf.constant([[True]])).numpy().round(3)  # (log 2)^2
    array([0.48], dtype=float32)
    """
    log_z = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    return tf.squeeze(mean_over(tf.square(log_z), valid), -1)


def entropy(logits: tf.Tensor) -> tf.Tensor:
    """Returns the entropy of softmax(logits), in nats, float32 [...]; logits are [..., E].

    >>> round(float(entropy(tf.zeros([4]))), 3)  # log 4
    1.386
    """
    logs = tf.nn.log_softmax(logits)
    return -tf.reduce_sum(tf.exp(logs) * logs, axis=-1)
