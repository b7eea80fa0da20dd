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
    size = tf.abs(errors)
    small = tf.minimum(size, 1.0)
    return small * (size - 0.5 * small)
