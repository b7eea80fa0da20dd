"""Windows over sequences, images and volumes, also where their axes are split over devices.

XLA splits a convolution along an axis of the image by exchanging halos (`lingo.mesh.split`). The
XLA of JAX 0.10.2 fails in some cases, silently or by ending the process:

- If parts do not begin where windows begin, some sizes fail to compile. So zeros pad an axis until
  all parts have the same length, a multiple of the stride; results after the image's last window
  are cut off.
- If windows reach beyond the next device, gradients are wrong, or XLA aborts. Such an axis has only
  a few rows per device, so the image is gathered, and the result is split again.
- If several devices have the same part of the images, a kernel's gradient is a multiple of the
  right one. Here, too, the image is gathered.
- Some convolutions of split sequences are wrong, so sequences are gathered.
- The gradient of the maximum is wrong if windows overlap, so slices compute the maximum.

Axes: B batch, C channels, F output channels; "..." are the axes between: T positions of a sequence,
H height and W width of an image, D depth, H and W of a volume. "Image" stands for all three.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import annotate, current
from lingo.layers.residual import POSITION_AXES

Padding = Literal["SAME", "VALID"]
"""SAME: a window at every `stride`-th position of a padded image; VALID: only those inside it."""


class Windows(NamedTuple):
    """Windows that move over an image."""

    lengths: tuple[int, ...]  # along each of its axes
    stride: int
    padding: Padding
    dilation: int = 1  # from one position of a window to the next

    def count(self, image: Sequence[int]) -> tuple[int, ...]:
        """Returns the number of windows along each axis; raises ParamError if none fits."""
        room = zip(image, self.extents(), strict=True)
        starts = [size if self.padding == "SAME" else size - extent + 1 for size, extent in room]
        if min(starts) < 1:
            raise ParamError(
                f"a window {self.extents()} does not fit into an image {list(image)}: take larger"
                " images, a smaller window, or padding=SAME"
            )
        return tuple(-(-start // self.stride) for start in starts)

    def extents(self) -> list[int]:
        """Returns the length of a window along each axis, with the positions that it skips."""
        return [(length - 1) * self.dilation + 1 for length in self.lengths]

    def padding_sizes(self, image: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the numbers of zeros before and after each axis of an image."""
        return [self._axis_padding(i, size) for i, size in enumerate(image)]

    def are_aligned(self, axis: int, size: int, before: int) -> bool:
        """Whether an axis of `size` has a window per stride, the first with `before` zeros."""
        if self.padding == "VALID" and self.lengths[axis] > self.stride:
            return False
        return self._axis_padding(axis, size)[0] == before

    def _axis_padding(self, axis: int, size: int) -> tuple[int, int]:
        if self.padding == "VALID":
            return 0, 0
        last_start = (-(-size // self.stride) - 1) * self.stride
        total = max(last_start + self.extents()[axis] - size, 0)
        return total // 2, total - total // 2


def check_kernel(p: Any) -> None:
    """Raises ParamError if kernel, stride or dilation are invalid, alone or together."""
    ranges.check_positive(p, "kernel", "stride", "dilation")
    if p.stride > 1 and p.dilation > 1:
        raise ParamError(
            f"stride={p.stride} with dilation={p.dilation}: one of the two has to be 1"
        )


def annotate_image(
    x: tf.Tensor, channels: str | None = None, *, whole: Sequence[bool] = ()
) -> tf.Tensor:
    """Returns images x, [B, ..., C] of any type, split by the rules, but not along `whole` axes."""
    names: Sequence[str | None] = POSITION_AXES[len(x.shape)]
    if whole:
        names = [None if is_whole else name for name, is_whole in zip(names, whole, strict=True)]
    return annotate(x, "batch", *names, channels or "channels")


def num_parts_of(num_axes: int) -> tuple[int, ...]:
    """Returns the number of parts of each axis of an image in the call in progress."""
    rules = current().rules
    return tuple(rules.parts(name) if rules else 1 for name in POSITION_AXES[num_axes + 2])


def static_sizes(x: tf.Tensor) -> list[int]:
    """Returns the static size of each axis of images x [B, ..., C]."""
    shape: Any = x.shape
    return [int(size) for size in shape[1:-1]]


def is_split(x: tf.Tensor) -> bool:
    """Whether the rules of the call in progress split an axis of images x [B, ..., C]."""
    return max(num_parts_of(len(x.shape) - 2)) > 1


def has_copies(whole: Sequence[bool]) -> bool:
    """Whether several devices have the same part of images if `whole` axes are not split."""
    names = POSITION_AXES[len(whole) + 2]
    split = [name for name, is_whole in zip(names, whole, strict=True) if not is_whole]
    rules = current().rules
    return rules is not None and rules.copies(["batch", *split]) > 1


def map_windows(
    x: tf.Tensor,
    compute: Callable[[tf.Tensor, Any], tf.Tensor],
    windows: Windows,
    *,
    channels: tuple[str | None, str | None] = (None, None),
) -> tf.Tensor:
    """Returns a value for each window of images x, [B, ..., F] for [B, ..., C], of any float type.

    `compute(x, padding)` does so for whole images. `padding` is SAME or VALID, or, for two axes,
    the numbers of zeros before and after each axis of x. Only 2D convolutions take numbers, so an
    axis of a volume stays whole if SAME and VALID do not give the right ones. `channels` are the
    logical axes of C and F.
    """
    is_sequence, takes_numbers = len(windows.lengths) == 1, len(windows.lengths) == 2
    if is_sequence:
        x = annotate_image(x, channels[0], whole=[True])
    if is_sequence or not is_split(x):
        return annotate_image(compute(x, windows.padding), channels[1])
    image = static_sizes(x)
    around = windows.padding_sizes(image)
    whole, padded = [False] * len(image), list(image)
    for i, num_parts in enumerate(num_parts_of(len(image))):
        if num_parts == 1:
            continue
        size = -(-image[i] // (num_parts * windows.stride)) * windows.stride  # of a part
        before = around[i][0]
        after = max(windows.extents()[i] - windows.stride - before, 0)
        whole[i] = max(before, after) > size or not (
            takes_numbers or windows.are_aligned(i, size * num_parts, before)
        )
        if not whole[i]:
            padded[i], around[i] = size * num_parts, (before, after)
    if not all(whole) and has_copies(whole):
        whole, padded, around = [True] * len(image), image, windows.padding_sizes(image)
    x = annotate_image(pad_end(x, padded), channels[0], whole=whole)
    y = compute(x, [(0, 0), *around, (0, 0)] if takes_numbers else windows.padding)
    return split_again(y, windows.count(image), channels[1], whole=whole)


def pad_end(x: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Returns images x, [B, ..., C] of any type, with zeros at the ends of axes up to `sizes`."""
    ends = [(0, size - n) for size, n in zip(sizes, static_sizes(x), strict=True)]
    return tf.pad(x, [(0, 0), *ends, (0, 0)]) if any(map(any, ends)) else x


def split_again(
    y: tf.Tensor, sizes: Sequence[int], channels: str | None, *, whole: Sequence[bool]
) -> tf.Tensor:
    """Cuts y, computed with `whole` axes, to `sizes`, and splits it by the rules.

    With an empty `whole`, y is split already.
    """
    y = annotate_image(y, channels, whole=whole)
    if not whole:
        return y
    if static_sizes(y) != list(sizes):
        y = y[:, *map(slice, sizes)]
    return annotate_image(y, channels)


def window_slices(
    x: tf.Tensor, windows: Windows, *, fill: float = 0
) -> Iterator[tuple[tuple[int, ...], tf.Tensor]]:
    """Yields each position in a window with all windows' values there, [B, windows..., C].

    Images x are [B, ..., C], of any type; `fill` pads them.
    """
    image = static_sizes(x)
    around, counts = windows.padding_sizes(image), windows.count(image)
    if any(map(any, around)):
        x = tf.pad(x, [[0, 0], *around, [0, 0]], constant_values=fill)
    for place in itertools.product(*map(range, windows.lengths)):
        starts = [i * windows.dilation for i in place]
        cuts = [
            slice(start, start + (count - 1) * windows.stride + 1, windows.stride)
            for start, count in zip(starts, counts, strict=True)
        ]
        yield place, x[:, *cuts]
