"""SpecAugment: warps and masks of features in training (Park et al. 2019), with Lingvo's options.

Each draw is a function of an utterance's key alone, so that an utterance is augmented alike in any
batch. The largest mask is narrower than the paper's by one, as in Lingvo.

Axes: B utterances, T frames, F bins, C channels, N masks, S positions of an axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lingo.config import ranges
from lingo.config.base.errors import suggest
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError, Params
from lingo.ops import random
from lingo.ops.shape import size_of

_MIN_NOISE, _MAX_NOISE = 0.1001, 0.2001  # range of the standard deviation of noise in time masks

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "LB": {"freq_mask_max_bins": 27, "time_mask_max_frames": 100, "time_warp_max_frames": 80},
    "LD": {
        "freq_mask_max_bins": 27,
        "freq_mask_count": 2,
        "time_mask_max_frames": 100,
        "time_mask_count": 2,
        "time_warp_max_frames": 80,
    },
    "SM": {
        "freq_mask_max_bins": 15,
        "freq_mask_count": 2,
        "time_mask_max_frames": 70,
        "time_mask_max_ratio": 0.2,
        "time_mask_count": 2,
        "time_warp_max_frames": 40,
    },
    "SS": {
        "freq_mask_max_bins": 27,
        "freq_mask_count": 2,
        "time_mask_max_frames": 70,
        "time_mask_max_ratio": 0.2,
        "time_mask_count": 2,
        "time_warp_max_frames": 40,
    },
    "conformer": {
        "freq_mask_max_bins": 27,
        "freq_mask_count": 2,
        "dynamic_time_mask": True,
        "time_mask_max_ratio": 0.05,
        "time_mask_count": 10,
    },
}
"""The policies of Park et al. 2019 (table 1), and the one of Gulati et al. 2020 (sec. 3.2)."""

_WARP_RATIO = 1.0  # the paper bounds a warp by W alone; Lingvo needs a ratio above 0


class SpecAugment(Configurable):
    """Settings of SpecAugment; a built object augments features.

    The order is: warp of bins, warp of time, noise of bins, masks of time, masks of bins, masks of
    blocks. The defaults are Lingvo's.
    """

    freq_mask_max_bins: int = 15  # masks of bins are narrower than this; 0: no such masks
    freq_mask_count: int = 1  # masks of bins per utterance
    time_mask_max_frames: int = 50  # masks of time are shorter than this; 0: no such masks
    time_mask_count: int = 1  # masks of time per utterance, at most
    time_mask_max_ratio: float = 1.0  # longest mask of time, as a share of the utterance
    dynamic_time_mask: bool = False  # time_mask_max_ratio alone bounds masks of time
    time_masks_per_frame: float = 0.0  # above 0: masks per frame of the utterance
    freq_warp_max_bins: int = 0  # farthest that a point moves along bins
    time_warp_max_frames: int = 0  # farthest that a point moves in time, for static bounds
    time_warp_max_ratio: float = 0.0  # the same, as a share of the utterance; 0: no warp
    time_warp_bound: Literal["static", "dynamic"] = "static"  # dynamic: the ratio alone bounds
    block_mask_rate: float = 0.0  # an utterance's rate of masked blocks is uniform from 0 to this
    block_mask_frames: int = 32  # frames per block
    block_mask_bins: int = 32  # bins per block
    freq_noise_max_stddev: float = 0.0  # of factors of bins, whose mean is 1
    use_noise: bool = False  # normal noise in masks of time, not zeros
    gaussian_noise: bool = False  # noise of standard deviation 1, not 0.1 to 0.2

    def check(self) -> None:
        p = self.p
        ranges.check_finite(p)
        ranges.check_not_negative(p, "freq_mask_max_bins", "freq_mask_count", "time_mask_count")
        ranges.check_not_negative(p, "time_mask_max_frames", "time_masks_per_frame")
        ranges.check_not_negative(p, "freq_warp_max_bins", "time_warp_max_frames")
        ranges.check_not_negative(p, "freq_noise_max_stddev")
        ranges.check_positive(p, "block_mask_frames", "block_mask_bins")
        for name in ("time_mask_max_ratio", "time_warp_max_ratio", "block_mask_rate"):
            if not 0 <= getattr(p, name) <= 1:
                raise ParamError(f"{name}={getattr(p, name)} is not in 0..1")
        if p.gaussian_noise and not p.use_noise:
            raise ParamError("gaussian_noise=True says which noise, but use_noise is False")

    def __call__(self, features: tf.Tensor, num_frames: tf.Tensor, keys: random.Key) -> tf.Tensor:
        """Returns augmented features, in the shape and type of `features`.

        Args:
            features: float [B, T, F] or [B, T, F, C].
            num_frames: int32 [B]; later frames are padding, which stays as it is, but for masks
                of bins and of blocks.
            keys: the utterances' random keys, [B].
        """
        p = self.p
        key = {name: random.fold(keys, i) for i, name in enumerate(_DRAWS)}
        x = features if len(features.shape) == 4 else features[:, :, :, None]
        num_frames = tf.cast(num_frames, tf.int32)
        bins = tf.fill([size_of(x, 0)], size_of(x, 2))
        if p.freq_warp_max_bins:
            origins, targets = warp_points(
                bins, key["freq_warp"], max_shift=p.freq_warp_max_bins, max_ratio=1.0
            )
            matrix = warp_matrix(origins, targets, bins, size_of(x, 2))
            x = tf.einsum("btfc,bgf->btgc", x, tf.cast(matrix, x.dtype))
        if self._warps_time:
            max_shift = p.time_warp_max_frames if p.time_warp_bound == "static" else 0
            origins, targets = warp_points(
                num_frames,
                key["time_warp"],
                max_shift=max_shift,
                max_ratio=p.time_warp_max_ratio,
            )
            matrix = warp_matrix(origins, targets, num_frames, size_of(x, 1))
            x = tf.einsum("btfc,bst->bsfc", x, tf.cast(matrix, x.dtype))
        x = self._mask(x, num_frames, bins, key)
        return x if len(features.shape) == 4 else x[:, :, :, 0]

    @property
    def _warps_time(self) -> bool:
        has_bound = self.p.time_warp_max_frames > 0 or self.p.time_warp_bound == "dynamic"
        return has_bound and self.p.time_warp_max_ratio > 0

    def _mask(
        self, x: tf.Tensor, num_frames: tf.Tensor, bins: tf.Tensor, key: Mapping[str, random.Key]
    ) -> tf.Tensor:
        """Returns [B, T, F, C] with noise of bins and all masks; `key` is by the draw's name."""
        p = self.p
        if p.freq_noise_max_stddev:
            stddev = p.freq_noise_max_stddev * random.uniform(key["freq_stddev"], 1)
            noise = 1 + stddev * random.normal(key["freq_noise"], size_of(x, 2))
            x *= tf.cast(noise, x.dtype)[:, None, :, None]
        if (
            (p.time_mask_max_frames or p.dynamic_time_mask)
            and p.time_mask_count
            and p.time_mask_max_ratio
        ):
            hidden = random_mask(
                num_frames,
                key["time_mask"],
                size=size_of(x, 1),
                count=p.time_mask_count,
                max_width=0 if p.dynamic_time_mask else p.time_mask_max_frames,
                max_ratio=p.time_mask_max_ratio,
                masks_per_position=p.time_masks_per_frame,
            )
            filling = self._time_noise(x, key) if p.use_noise else tf.zeros_like(x)
            x = tf.where(hidden[:, :, None, None], filling, x)
        if p.freq_mask_max_bins and p.freq_mask_count:
            hidden = random_mask(
                bins,
                key["freq_mask"],
                size=size_of(x, 2),
                count=p.freq_mask_count,
                max_width=p.freq_mask_max_bins,
            )
            x = tf.where(hidden[:, None, :, None], tf.zeros_like(x), x)
        if p.block_mask_rate:
            hidden = self._block_mask(x, key)
            x = tf.where(hidden[:, :, :, None], tf.zeros_like(x), x)
        return x

    def _time_noise(self, x: tf.Tensor, key: Mapping[str, random.Key]) -> tf.Tensor:
        """Returns noise in the shape of x, [B, T, F, C], the same for all channels."""
        noise = random.normal(key["noise"], size_of(x, 1), size_of(x, 2))
        if not self.p.gaussian_noise:
            share = random.uniform(key["stddev"], 1, 1)
            noise *= _MIN_NOISE + (_MAX_NOISE - _MIN_NOISE) * share
        return tf.cast(noise, x.dtype)[..., None] + tf.zeros_like(x)

    def _block_mask(self, x: tf.Tensor, key: Mapping[str, random.Key]) -> tf.Tensor:
        """Returns which elements of [B, T, F, C] are in masked blocks, bool [B, T, F]."""
        p = self.p
        rates = p.block_mask_rate * random.uniform(key["block_rate"], 1, 1)
        rows = -(-size_of(x, 1) // p.block_mask_frames)
        columns = -(-size_of(x, 2) // p.block_mask_bins)
        hidden = random.uniform(key["block_mask"], rows, columns) <= rates
        row, column = tf.range(size_of(x, 1)), tf.range(size_of(x, 2))
        hidden = tf.gather(hidden, row // p.block_mask_frames, axis=1)
        return tf.gather(hidden, column // p.block_mask_bins, axis=2)


_DRAWS = (
    *("freq_warp", "time_warp", "freq_stddev", "freq_noise", "time_mask", "stddev", "noise"),
    *("freq_mask", "block_rate", "block_mask"),
)


def spec_augment_policy(name: str, **changes: Any) -> Params:
    """Returns the params of a policy of `POLICIES`, some of its fields changed.

    Raises ParamError for another name.

    >>> spec_augment_policy("LD", time_mask_count=4).time_mask_count
    4
    """
    if name not in POLICIES:
        raise ParamError(
            f"{name!r} is no policy of SpecAugment: take {', '.join(POLICIES)}."
            f"{suggest(name, POLICIES)}"
        )
    settings = dict(POLICIES[name])
    if "time_warp_max_frames" in settings:
        settings["time_warp_max_ratio"] = _WARP_RATIO
    return SpecAugment.params(**settings | changes)


def random_mask(
    lengths: tf.Tensor,
    keys: random.Key,
    *,
    size: Any,
    count: int,
    max_width: int,
    max_ratio: float = 1.0,
    masks_per_position: float = 0.0,
) -> tf.Tensor:
    """Returns which positions random masks hide, bool [B, S].

    Each mask has a width drawn below `max_width` and lies within the length of its utterance.

    Args:
        lengths: positions that masks may hide, int32 [B].
        keys: random keys, [B].
        size: S, an int or int32 scalar.
        count: N, the masks of an utterance, at most.
        max_width: bound of widths, in positions; 0: the bound is `max_ratio` of the length.
        max_ratio: longest mask as a share of the length; a mask may always hide one position.
        masks_per_position: above 0: the masks of an utterance are this times its length, rounded
            up, but at most `count`.

    >>> draw = random.key_array([random.root_key(5)])
    >>> random_mask(tf.constant([6]), draw, size=8, count=1, max_width=4).numpy().astype(int)
    array([[0, 1, 0, 0, 0, 0, 0, 0]])
    """
    length = lengths[:, None]
    bound = max_ratio * tf.cast(length, tf.float32)
    limit = tf.constant(float(max_width)) if max_width else bound
    width = tf.cast(random.uniform(random.fold(keys, 0), count) * limit, tf.int32)
    width = tf.minimum(width, tf.maximum(tf.cast(bound, tf.int32), 1))
    share, room = random.uniform(random.fold(keys, 1), count), length - width + 1
    # A product of float32 may round up to the whole room.
    start = tf.minimum(tf.cast(share * tf.cast(room, tf.float32), tf.int32), room - 1)
    if masks_per_position:
        wanted = masks_per_position * tf.cast(length, tf.float32)
        width = tf.where(tf.range(count, dtype=tf.float32) < wanted, width, 0)
    start, stop, at = start[:, :, None], (start + width)[:, :, None], tf.range(size)
    return tf.reduce_any((at >= start) & (at < stop), axis=1)


def warp_points(
    lengths: tf.Tensor, keys: random.Key, *, max_shift: int, max_ratio: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns random points and where a warp moves them, both float32 [B].

    Args:
        lengths: positions to warp, int32 [B].
        keys: random keys, [B].
        max_shift: farthest that a point moves, either way; 0: `max_ratio` alone bounds it.
        max_ratio: farthest that a point moves, as a share of the length.

    >>> draw = random.key_array([random.root_key(7)])
    >>> [point.numpy().tolist() for point in warp_points(tf.constant([9]), draw, max_shift=2,
    ...     max_ratio=1.0)]
    [[1.0], [2.0]]
    """
    bound = tf.cast(max_ratio * tf.cast(lengths, tf.float32), tf.int32)
    share = random.uniform(random.fold(keys, 0), 1)[:, 0]
    if max_shift:
        shift = tf.cast(tf.floor(share * (2 * max_shift + 1)), tf.int32) - max_shift
    else:
        shift = tf.cast((2 * share - 1) * tf.cast(bound, tf.float32), tf.int32)
    shift = tf.clip_by_value(shift, -bound, bound)
    room = tf.cast(tf.maximum(lengths - 2, 0), tf.float32)
    origin = 1 + tf.cast(random.uniform(random.fold(keys, 1), 1)[:, 0] * room, tf.int32)
    return tf.cast(origin, tf.float32), tf.cast(origin + shift, tf.float32)


def warp_matrix(origins: tf.Tensor, targets: tf.Tensor, lengths: tf.Tensor, size: Any) -> tf.Tensor:
    """Returns the matrices that move a point of each axis, float32 [B, S, S].

    Row i has the weights of the positions between which output i interpolates. The map is linear
    from 0 to the target and from there to the length; later positions stay. As in Lingvo, the last
    position may take a part of the first padding.

    Args:
        origins: the points that move, float32 [B].
        targets: where they move to, float32 [B]; clipped to 1, ..., length - 1.
        lengths: positions that are warped, int32 [B]; shorter than 2: nothing moves.
        size: S, an int or int32 scalar.

    >>> at = warp_matrix(tf.constant([1.0]), tf.constant([2.0]), tf.constant([3]), 3)
    >>> at.numpy()[0].tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
    """
    length = tf.cast(lengths, tf.float32)[:, None]
    origin, target = origins[:, None], targets[:, None]
    target = tf.clip_by_value(target, 1.0, tf.maximum(length - 1, 1.0))
    at = tf.range(size, dtype=tf.float32)[None]
    behind = tf.maximum(length - target, 1.0)
    late = origin + (length - origin) * (at - target) / behind
    source = tf.where(at < target, at * origin / target, tf.where(at < length, late, at))
    source = tf.where(length < 2, at, source)
    return tf.nn.relu(1.0 - tf.abs(source[:, :, None] - at[:, None]))
