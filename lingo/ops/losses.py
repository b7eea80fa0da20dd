"""Losses of single predictions, in float32. A task averages them.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.lazy import tf

_GATHER_LIMIT = 2**31  # elements: the gradient of tf.gather counts them in int32


def explain_float_labels(name: str, dtype: str) -> str:
    """Returns the message for labels of a float `dtype` where class numbers are wanted."""
    return (
        f"{name} are {dtype}, but class numbers are integers: let the input give"
        f" {name}.astype(np.int32)"
    )


class TokenLosses(NamedTuple):
    """Loss terms of each prediction.

    Attributes:
        cross_entropy: float32 [B, T], nats, with label smoothing.
        z_loss: float32 [B, T], the square of log Z, where Z is the sum of exp(logits).
    """

    cross_entropy: tf.Tensor
    z_loss: tf.Tensor


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns -log softmax(logits)[target], in nats.

    Args:
        logits: [..., V], any float type, mostly [B, T, V].
        targets: int32 [...], each in 0..V-1.

    Returns:
        float32 [...]. It is accurate for large logits, too, and does not overflow.

    >>> cross_entropy(tf.constant([[0.0, 0.0], [0.0, 100.0]]), tf.constant([0, 0])).numpy().round(3)
    array([  0.693, 100.   ], dtype=float32)
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))


def log_probs(logits: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns log softmax(logits)[token], in nats, for predictions.

    This is -`cross_entropy(logits, tokens)` in operations that have an 8-bit form: in a file of
    TensorFlow Lite in 8 bits, `cross_entropy` is one number for all tokens (TensorFlow 2.21).

    Args:
        logits: [..., V], any float type, mostly [B, T, V].
        tokens: int32 [...], each in 0..V-1.

    Returns:
        float32 [...].

    >>> log_probs(tf.constant([[0.0, 0.0], [0.0, 100.0]]), tf.constant([0, 0])).numpy().round(3)
    array([  -0.693, -100.   ], dtype=float32)
    """
    values = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    is_token = tf.range(logits.shape[-1]) == tf.expand_dims(tf.cast(tokens, tf.int32), -1)
    return tf.reduce_sum(tf.where(is_token, values, 0.0), axis=-1)  # a gather would gather shards


def token_losses(
    logits: tf.Tensor, targets: tf.Tensor, *, label_smoothing: float = 0.0
) -> TokenLosses:
    """Returns the cross-entropy with smoothed labels, and the z-loss.

    Smoothing moves a part of the target's probability to all tokens equally (Szegedy et al. 2016,
    sec. 7; Vaswani et al. 2017, sec. 5.4). The z-loss keeps logits from drifting (Chowdhery et al.
    2022, sec. 5; Zoph et al. 2022, eq. 5). Both are computed from the plain cross-entropy.
    Smoothing takes one more sum over the vocabulary, and the z-loss takes none.

    Args:
        logits: [B, T, V], any float type.
        targets: int32 [B, T], each in 0..V-1.
        label_smoothing: the part of the probability that is moved, 0..1.

    Returns:
        The cross-entropy and the z-loss of each prediction, float32 [B, T].

    >>> losses = token_losses(tf.zeros([1, 1, 4]), tf.constant([[3]]))
    >>> losses.cross_entropy.numpy().round(3)  # log 4
    array([[1.386]], dtype=float32)
    """
    logits = tf.cast(logits, tf.float32)
    nats = cross_entropy(logits, targets)
    target_logit = _target_logits(logits, targets)
    smoothed = nats
    if label_smoothing:
        above_mean = tf.reduce_mean(target_logit[..., None] - logits, axis=-1)
        smoothed += label_smoothing * above_mean
    return TokenLosses(smoothed, tf.square(nats + target_logit))


def _target_logits(logits: tf.Tensor, targets: Any) -> Any:
    """Returns each target's logit, float32 [B, T]; logits are [B, T, V], targets int32 [B, T]."""
    size = logits.shape.num_elements()
    if size is None or size < _GATHER_LIMIT:
        return tf.gather(logits, targets, batch_dims=2)
    is_target = tf.range(logits.shape[-1]) == targets[..., None]
    return tf.reduce_sum(tf.where(is_target, logits, 0.0), axis=-1)


def shares_cross_entropy(
    logits: tf.Tensor, shares: tf.Tensor, *, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns the cross-entropy of soft labels, such as the labels of mixed images.

    Args:
        logits: [B, K], any float type, of K classes.
        shares: float32 [B, K], the share of each class; each row adds up to 1.
        label_smoothing: the part of all shares that goes to all classes equally, 0..1.

    Returns:
        float32 [B], nats.

    >>> shares_cross_entropy(tf.zeros([1, 4]), tf.constant([[0.5, 0.5, 0, 0]])).numpy().round(3)
    array([1.386], dtype=float32)
    """
    num_classes: Any = shares.shape[-1]
    smoothed = (1 - label_smoothing) * shares + label_smoothing / num_classes
    return tf.nn.softmax_cross_entropy_with_logits(smoothed, tf.cast(logits, tf.float32))


def smooth_l1(errors: tf.Tensor) -> tf.Tensor:
    """Returns e^2 / 2 for errors e with |e| <= 1, and |e| - 1/2 for larger errors.

    It is the loss of boxes in detection (Girshick 2015, eq. 3): no gradient is above 1. Errors and
    results are [...], any float type.

    >>> smooth_l1(tf.constant([0.5, -3.0])).numpy()
    array([0.125, 2.5  ], dtype=float32)
    """
    return huber(errors, delta=1.0)


def huber(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Returns e^2 / 2 for errors e with |e| <= delta, and delta (|e| - delta / 2) for larger ones.

    `smooth_l1` has a delta of 1. No gradient is above `delta` (Huber 1964). Errors and results are
    [...], any float type.

    >>> huber(tf.constant([0.5, -3.0]), delta=2.0).numpy()
    array([0.125, 4.   ], dtype=float32)
    """
    size = tf.abs(errors)
    small = tf.minimum(size, delta)
    return small * (size - 0.5 * small)


def focal_losses(losses: tf.Tensor, gamma: float) -> tf.Tensor:
    """Returns cross-entropies times (1 - p)^gamma, where p is the target's probability.

    Examples that are already right count less (Lin et al. 2017, eq. 4). `losses` and the result are
    float32 of any shape, in nats.

    >>> focal_losses(tf.constant([0.01, 3.0]), 2.0).numpy().round(4)
    array([0.    , 2.7087], dtype=float32)
    """
    wrong = tf.maximum(-tf.math.expm1(-losses), 1e-7)  # at 0 the gradient of a power may be inf
    return wrong**gamma * losses


def contrastive_losses(
    vectors: tf.Tensor, labels: tf.Tensor, *, temperature: float = 0.1
) -> tf.Tensor:
    """Returns each vector's supervised contrastive loss (Khosla et al. 2020, eq. 2).

    It is -log of the share that a vector of the same label has among all other vectors, by
    exp(cosine / temperature), averaged over the vectors of the same label. If the
    label is the example, and the batch has two views of each, it is SimCLR's loss (Chen et al.
    2020, eq. 1).

    Args:
        vectors: [B, D], any float type.
        labels: integers [B].
        temperature: divides cosines.

    Returns:
        float32 [B], nats; 0 for a vector without another of its label.

    >>> x = tf.constant([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    >>> contrastive_losses(x, tf.constant([3, 3, 8, 8]), temperature=1.0).numpy().round(3)
    array([0.551, 0.551, 0.551, 0.551], dtype=float32)
    """
    x = tf.math.l2_normalize(tf.cast(vectors, tf.float32), axis=-1)
    scores = tf.matmul(x, x, transpose_b=True) / temperature
    is_other = _is_other(labels)
    log_shares = tf.nn.log_softmax(tf.where(is_other, scores, -1e9), axis=-1)
    is_positive = tf.equal(labels[:, None], labels) & is_other
    total = -tf.reduce_sum(tf.where(is_positive, log_shares, 0.0), axis=-1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(is_positive, tf.float32), axis=-1))


def triplet_losses(
    anchors: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor, *, margin: float = 1.0
) -> tf.Tensor:
    """Returns max(0, |a - p| - |a - n| + margin) of each triplet (Schroff et al. 2015, eq. 3).

    Distances are L2 norms, not their squares, as in torch's `TripletMarginLoss`. Vectors are
    [B, D], any float type; the result is float32 [B].

    >>> a, p, n = tf.zeros([1, 2]), tf.constant([[3.0, 4]]), tf.constant([[0.0, 5.5]])
    >>> triplet_losses(a, p, n).numpy().round(3)
    array([0.5], dtype=float32)
    """
    a, p, n = (tf.cast(x, tf.float32) for x in (anchors, positives, negatives))
    return tf.maximum(_distances(a - p) - _distances(a - n) + margin, 0.0)


def hardest_triplet_losses(
    vectors: tf.Tensor, labels: tf.Tensor, *, margin: float = 1.0
) -> tf.Tensor:
    """Returns each vector's triplet loss with its hardest partners (Hermans et al. 2017, eq. 5).

    They are the farthest vector of its label, and the nearest vector of another label.

    Args:
        vectors: [B, D], any float type.
        labels: integers [B].
        margin: by which other labels should be farther away.

    Returns:
        float32 [B]; 0 for a vector without another of its label, or of another label.

    >>> x = tf.constant([[0.0], [1], [3]])
    >>> hardest_triplet_losses(x, tf.constant([0, 0, 1])).numpy()
    array([0., 0., 0.], dtype=float32)
    >>> hardest_triplet_losses(x, tf.constant([0, 1, 0])).numpy()
    array([3., 0., 2.], dtype=float32)
    """
    x = tf.cast(vectors, tf.float32)
    distances = _distances(x[:, None] - x)
    is_same = tf.equal(labels[:, None], labels)
    is_positive = is_same & _is_other(labels)
    farthest = tf.reduce_max(tf.where(is_positive, distances, 0.0), axis=-1)
    nearest = tf.reduce_min(tf.where(is_same, distances.dtype.max, distances), axis=-1)
    has_both = tf.reduce_any(is_positive, axis=-1) & (nearest < distances.dtype.max)
    return tf.where(has_both, tf.maximum(farthest - nearest + margin, 0.0), 0.0)


def _is_other(labels: tf.Tensor) -> tf.Tensor:
    """Returns whether two of B vectors are not the same one, bool [B, B]."""
    indices = tf.range(tf.shape(labels)[0])
    return tf.not_equal(indices[:, None], indices)


def _distances(differences: tf.Tensor) -> tf.Tensor:
    """Returns L2 norms over the last axis; the gradient at 0 is 0."""
    squares = tf.reduce_sum(tf.square(differences), axis=-1)
    is_zero = squares == 0.0
    return tf.where(is_zero, 0.0, tf.sqrt(tf.where(is_zero, 1.0, squares)))
