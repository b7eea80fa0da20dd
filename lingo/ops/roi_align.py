"""Crops of feature maps and masks at boxes (He et al. 2017, sec. 3), with fixed shapes for XLA.

    roi_align    features of each region, from the pyramid level of the region's size
    crop_masks   true masks inside regions: the targets of a mask head

A box is (top, left, bottom, right), as fractions of its image's height and width. An empty box has
features of one place, and an empty mask.

Axes: B batch, R regions of an image, N objects of an image, C channels, S bins of a crop along each
side, M bins of a mask along each side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.scope import gradient_scope

CropForm = Literal["center", "aligned", "legacy"]
"""Where a region samples a map whose value (i, j) is at the point (i, j).

`center`: at the regions' own coordinates (Google's detection code). `aligned`: half a value lower,
as if value (i, j) were at the middle of a square whose corner is (i, j) (Detectron2). `legacy`: at
the regions' own coordinates, and a region is at least one value high and wide (Detectron).
`center` continues the map's rim outside; the others are 0 from one value outside on, as in
torchvision.
"""

_BASE_LEVEL = 4  # of a square with a side of `base_side` pixels
_SLACK = 1e-5  # relative: sides are products of float32 fractions
_HALF = 0.5 - 1e-4  # a sum that is 1/2 by its bins may be less by float32's rounding


def region_levels(
    boxes: tf.Tensor,
    *,
    image: tuple[int, int],
    min_level: int,
    max_level: int,
    base_side: float = 224.0,
) -> tf.Tensor:
    """Returns each box's level, int32 [...]: 4 + floor(log2(sqrt(area) / base_side)), clipped.

    This is eq. 1 of Lin et al. 2017a, with the area in pixels.

    Args:
        boxes: [..., 4], any float type.
        image: height and width in pixels.
        min_level: least level.
        max_level: largest level.
        base_side: pixels, the side of the smallest square of level 4; 224 in the paper.

    >>> one = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.49, 0.5]])
    >>> region_levels(one, image=(448, 448), min_level=2, max_level=5).numpy()
    array([4, 3], dtype=int32)
    """
    top, left, bottom, right = tf.unstack(tf.cast(boxes, tf.float32), axis=-1)
    area: Any = tf.nn.relu(bottom - top) * image[0] * tf.nn.relu(right - left) * image[1]
    sides = base_side * 2.0 ** (np.arange(min_level + 1, max_level + 1) - _BASE_LEVEL)
    limits = tf.constant(sides**2 * (1 - _SLACK), tf.float32)  # least area of each higher level
    return min_level + tf.reduce_sum(tf.cast(area[..., None] >= limits, tf.int32), axis=-1)


def roi_align(
    features: Sequence[tf.Tensor],
    boxes: tf.Tensor,
    *,
    size: int,
    image: tuple[int, int],
    min_level: int = 2,
    samples: int = 1,
    form: CropForm = "center",
    base_side: float = 224.0,
) -> tf.Tensor:
    """Returns the features of regions, by bilinear interpolation (He et al. 2017, sec. 3).

    Each region is cut from the level of `region_levels`, into `size` x `size` bins. A bin is the
    mean of `samples` x `samples` points. Boxes get no gradient.

    The maps of all levels are joined as rows, from which each neighbour of a point is gathered by
    itself and added. So a call holds a copy of the maps, and a few arrays of the result's shape at
    a time; nothing grows with regions times positions. The gradient is a float32 copy of the maps.

    Args:
        features: maps of consecutive levels, [B, H, W, C] each, any float type. The map of level l
            has a value for 2**l x 2**l pixels.
        boxes: float32 [B, R, 4].
        size: S.
        image: height and width in pixels.
        min_level: the level of the first map.
        samples: points of a bin along each side.
        form: where a region samples its map.
        base_side: as in `region_levels`.

    Returns:
        [B, R, S, S, C], the type of the maps.

    >>> plane = tf.reshape(tf.range(16.0) ** 2, [1, 4, 4, 1])
    >>> box = tf.constant([[[0.125, 0.0625, 0.875, 0.75]]])
    >>> roi_align([plane], box, size=2, image=(4, 4), min_level=0)[0, 0, ..., 0].numpy()
    array([[ 38.3125,  56.6875],
           [145.5625, 180.4375]], dtype=float32)
    """
    max_level = min_level + len(features) - 1
    levels = region_levels(
        boxes, image=image, min_level=min_level, max_level=max_level, base_side=base_side
    )
    axes = _sample_axes(
        features,
        boxes,
        levels - min_level,
        size=size,
        image=image,
        min_level=min_level,
        samples=samples,
        form=form,
    )
    shapes: list[Any] = [one.shape for one in features]
    num_channels = shapes[0][3]
    rows = [
        tf.reshape(one, [-1, shape[1] * shape[2], num_channels])
        for one, shape in zip(features, shapes, strict=True)
    ]
    mean = _mean_of_points(tf.concat(rows, 1), axes, samples=samples)
    return tf.reshape(mean, [-1, boxes.shape[1], size, size, num_channels])


class _Axes(NamedTuple):
    """The neighbours of all points, with their shares: products of a row's and a column's share.

    The index of a value in the joined maps is the sum of its row's and its column's part.
    """

    rows: tuple[Any, Any]  # parts of indices, int32, two of [B, R, S * samples]
    columns: tuple[Any, Any]
    row_shares: tuple[Any, Any]  # float32, two of [B, R, S * samples]
    column_shares: tuple[Any, Any]


def _sample_axes(
    features: Sequence[tf.Tensor],
    boxes: tf.Tensor,
    which: tf.Tensor,
    *,
    size: int,
    image: tuple[int, int],
    min_level: int,
    samples: int,
    form: CropForm,
) -> _Axes:
    """Returns where regions sample the maps, as `roi_align` says; `which` is each one's map."""
    corners: Any = tf.stop_gradient(tf.cast(boxes, tf.float32))
    shapes = np.array([one.shape[1:3] for one in features])  # [levels, 2]
    starts = np.concatenate([[0], np.cumsum(shapes.prod(-1))[:-1]])
    strides = 2.0 ** np.arange(min_level, min_level + len(features))

    def of_region(values: np.ndarray, dtype: Any) -> tf.Tensor:
        return tf.gather(tf.constant(values, dtype), which)[..., None]  # [B, R, 1]

    stride, width = of_region(strides, tf.float32), of_region(shapes[:, 1], tf.int32)
    parts, shares = [], []
    for axis in range(2):
        low = corners[..., axis, None] * image[axis] / stride
        side = corners[..., axis + 2, None] * image[axis] / stride - low
        if form == "legacy":
            side = tf.maximum(side, 1.0)
        places = (np.arange(size * samples) + 0.5) / (size * samples)
        points = low + side * tf.constant(places, tf.float32)
        if form == "aligned":
            points -= 0.5
        last = of_region(shapes[:, axis] - 1, tf.int32)
        indices, own = _neighbours(points, last, is_open=form == "center")
        parts.append(indices)
        shares.append(own)
    start = of_region(starts, tf.int32)
    rows = (start + parts[0][0] * width, start + parts[0][1] * width)
    return _Axes(rows, parts[1], *shares)


def _neighbours(
    points: tf.Tensor, last: tf.Tensor, *, is_open: bool
) -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the two integers around points, int32, within 0..last, and their shares, float32.

    With `is_open`, a point outside has the nearest value. Else points that are more than 1 outside
    have shares of 0.
    """
    limit = tf.cast(last, tf.float32)
    inside = tf.clip_by_value(points, 0.0, limit)
    low = tf.floor(inside)
    part = inside - low
    if is_open:
        first, second = 1 - part, part
    else:
        counts = tf.cast((points >= -1.0) & (points <= limit + 1), tf.float32)
        first, second = (1 - part) * counts, part * counts
    index = tf.cast(low, tf.int32)
    return (index, tf.minimum(index + 1, last)), (first, second)


def _mean_of_points(rows: tf.Tensor, axes: _Axes, *, samples: int) -> tf.Tensor:
    """Returns the means of points for all bins, [B, R * S * S, C], from joined maps, [B, P, C]."""

    def values() -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns indices, int32 [B, R * S * S], and shares, [B, R * S * S, 1], of neighbours."""
        pairs = [(i, j) for i in range(samples) for j in range(samples)]
        corners = [(i, j) for i in range(2) for j in range(2)]
        found = []
        for (a, b), (i, j) in ((pair, corner) for pair in pairs for corner in corners):
            row, column = axes.rows[i][..., a::samples], axes.columns[j][..., b::samples]
            shares = axes.row_shares[i][..., a::samples], axes.column_shares[j][..., b::samples]
            index = row[..., :, None] + column[..., None, :]
            share = shares[0][..., :, None] * shares[1][..., None, :] / samples**2
            flat = [tf.shape(index)[0], index.shape[1:].num_elements()]
            found.append((tf.reshape(index, flat), tf.reshape(share, [*flat, 1])))
        return found

    @tf.custom_gradient
    def gather(rows: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            with tf.name_scope(scope):
                shape, gradient = tf.shape(rows), tf.cast(gradient, tf.float32)
                total = tf.zeros(shape, tf.float32)
                for index, share in values():
                    batch = tf.broadcast_to(tf.range(shape[0])[:, None], tf.shape(index))
                    places = tf.stack([batch, index], -1)
                    total = tf.tensor_scatter_nd_add(total, places, share * gradient)
                return tf.cast(total, rows.dtype)

        total: Any = 0.0
        for index, share in values():
            total += share * tf.cast(tf.gather(rows, index, batch_dims=1), tf.float32)
        return tf.cast(total, rows.dtype), backward

    return gather(rows)


def crop_masks(
    masks: tf.Tensor, boxes: tf.Tensor, objects: tf.Tensor, regions: tf.Tensor, *, size: int
) -> tf.Tensor:
    """Returns the masks of objects inside regions: targets of a mask head (He et al. 2017).

    A mask is 0 outside of its object's box. At the centres of a region's bins, it is interpolated
    bilinearly, and it is 1 where this is at least 1/2.

    Args:
        masks: [B, N, M, M], 0 or 1, any type: the mask of each object inside its box.
        boxes: float32 [B, N, 4], of the objects.
        objects: int32 [B, R], 0..N - 1, the object of each region.
        regions: float32 [B, R, 4].
        size: S.

    Returns:
        float32 [B, R, S, S], 0 or 1.

    >>> mask, box = tf.constant([[[[0, 1], [0, 1]]]]), tf.constant([[[0.0, 0.0, 0.5, 1.0]]])
    >>> region = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    >>> crop_masks(mask, box, tf.constant([[0]]), region, size=4)[0, 0].numpy()
    array([[0., 0., 1., 1.],
           [0., 0., 1., 1.],
           [0., 0., 0., 0.],
           [0., 0., 0., 0.]], dtype=float32)
    """
    shape: Any = masks.shape
    _, num, bins, _ = shape
    rows = tf.reshape(tf.cast(masks, tf.float32), [-1, num * bins * bins])
    whole: Any = regions
    own: Any = tf.gather(boxes, objects, batch_dims=1)  # [B, R, 4]
    places = tf.constant((np.arange(size) + 0.5) / size, tf.float32)
    indices, shares = [], []
    for axis in range(2):
        low, high = whole[..., axis, None], whole[..., axis + 2, None]
        first, last = own[..., axis, None], own[..., axis + 2, None]
        points = low + (high - low) * places
        points = tf.math.divide_no_nan(points - first, last - first) * bins - 0.5
        below = tf.floor(points)
        part = points - below
        pair = [(below, 1 - part), (below + 1, part)]
        indices.append([tf.cast(tf.clip_by_value(i, 0.0, bins - 1.0), tf.int32) for i, _ in pair])
        shares.append([tf.where((i >= 0) & (i <= bins - 1), share, 0.0) for i, share in pair])
    start = tf.reshape(objects, [-1, objects.shape[1], 1, 1]) * bins**2
    total: Any = 0.0
    for i, j in ((i, j) for i in range(2) for j in range(2)):
        index = start + indices[0][i][..., :, None] * bins + indices[1][j][..., None, :]
        share = shares[0][i][..., :, None] * shares[1][j][..., None, :]
        total += share * tf.gather(rows, index, batch_dims=1)
    is_object = tf.reduce_all(own[..., :2] < own[..., 2:], -1)[..., None, None]
    return tf.cast((total >= _HALF) & is_object, tf.float32)
