"""Windows of convolutions and pooling, also over images whose axes are split over devices.

XLA splits a convolution along an axis of the image: each device gets a part of the axis, and
neighbouring devices exchange the rows at their borders (`lingo.mesh.split`). The XLA of JAX 0.10.2
fails in some cases, silently or by ending the process. The functions here avoid these cases:

- If parts do not begin where windows begin, some sizes fail to compile. So zeros pad an axis until
  all parts have the same length, a multiple of the stride. Results after the image's last window
  are cut off.
- If windows reach beyond the next device, gradients are wrong, or XLA aborts. Such an axis has only
  a few rows per device, so the image is gathered, and the result is split again.
- If several devices have the same part of the images, a kernel's gradient is a multiple of the
  right gradient. Here, too, the image is gathered.
- Some convolutions of split sequences are wrong, so sequences are gathered.
- The gradient of the maximum is wrong if windows overlap, so a maximum over slices of the image
  replaces XLA's maximum over windows.

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

Padding = Literal["SAME", "VALID", "CENTERED"]
"""SAME: a window starts at every `stride`-th position, and zeros pad the image. VALID: windows lie
inside the image, which is not padded. CENTERED: the middle of a window lies on positions 0, stride,
2 * stride and so on, and zeros pad the image, as with PyTorch's `padding=k // 2`; for images only,
and windows of odd lengths. With a stride of 1, or of 2 on an odd size, it equals SAME."""


class Windows(NamedTuple):
    """The size and spacing of the windows that move over an image."""

    lengths: tuple[int, ...]  # positions of a window along each axis of the image
    stride: int  # from one window to the next, along each axis
    padding: Padding
    dilation: int = 1  # from one position of a window to the next

    def count(self, image: Sequence[int]) -> tuple[int, ...]:
        """Returns the number of windows along each axis of an image with the sizes `image`.

        Raises ParamError if no window fits into the image.
        """
        room = zip(image, self.extents(), strict=True)
        starts = [size - extent + 1 if self.padding == "VALID" else size for size, extent in room]
        if min(starts) < 1:
            raise ParamError(
                f"a window {self.extents()} does not fit into an image {list(image)}: take larger"
                " images, a smaller window, or padding=SAME"
            )
        return tuple(-(-start // self.stride) for start in starts)

    def extents(self) -> list[int]:
        """Returns the length of a window along each axis, skipped positions included."""
        return [(length - 1) * self.dilation + 1 for length in self.lengths]

    def any_size_padding(self) -> str | list[tuple[int, int]]:
        """Returns TensorFlow's padding argument for images [B, ..., C] of any size.

        It is SAME or VALID, or the numbers of zeros before and after each axis. Zeros at the end
        that no window reaches are included.
        """
        if self.padding != "CENTERED":
            return self.padding
        return [(0, 0), *[(extent // 2, extent // 2) for extent in self.extents()], (0, 0)]

    def padding_sizes(self, image: Sequence[int]) -> list[tuple[int, int]]:
        """Returns how many zeros pad each axis of an image, before and after it."""
        return [self._axis_padding(i, size) for i, size in enumerate(image)]

    def are_aligned(self, axis: int, size: int, before: int) -> bool:
        """Whether an axis has a window per stride, and the first one starts with `before` zeros.

        `axis` is the index of the axis in the image, and `size` is its length.
        """
        if self.padding == "VALID" and self.lengths[axis] > self.stride:
            return False
        return self._axis_padding(axis, size)[0] == before

    def _axis_padding(self, axis: int, size: int) -> tuple[int, int]:
        if self.padding == "VALID":
            return 0, 0
        last_start = (-(-size // self.stride) - 1) * self.stride
        total = max(last_start + self.extents()[axis] - size, 0)
        before = self.extents()[axis] // 2 if self.padding == "CENTERED" else total // 2
        return before, max(total - before, 0)


def check_kernel(p: Any) -> None:
    """Raises ParamError if `kernel`, `stride`, `dilation` or `padding` of a layer is invalid.

    Numbers must be positive, and stride or dilation must be 1.
    """
    ranges.check_positive(p, "kernel", "stride", "dilation")
    check_centered(p.padding, p.kernel)
    if p.stride > 1 and p.dilation > 1:
        raise ParamError(
            f"stride={p.stride} with dilation={p.dilation}: one of the two has to be 1"
        )


def check_centered(padding: Padding, lengths: Any) -> None:
    """Raises ParamError if the padding is CENTERED and windows are not of odd lengths on images.

    `lengths` is a window's height and width, or another shape, which is refused.
    """
    if padding != "CENTERED":
        return
    if not isinstance(lengths, tuple) or len(lengths) != 2 or any(n % 2 == 0 for n in lengths):
        raise ParamError(
            f"padding=CENTERED with a window of {lengths}: it is for images, and windows of an odd"
            " height and width, which have a middle: take SAME"
        )


def annotate_image(
    x: tf.Tensor, channels: str | None = None, *, whole: Sequence[bool] = ()
) -> tf.Tensor:
    """Returns images x with the sharding that the call context's rules give them.

    x is [B, ..., C], of any type. `channels` is the logical axis of C. `whole` says for each axis
    of the image whether it stays unsharded; () means that all follow the rules.
    """
    names: Sequence[str | None] = POSITION_AXES[len(x.shape)]
    if whole:
        names = [None if is_whole else name for name, is_whole in zip(names, whole, strict=True)]
    return annotate(x, "batch", *names, channels or "channels")


def num_parts_of(num_axes: int) -> tuple[int, ...]:
    """Returns the number of parts of each axis of an image, as the call context's rules split it.

    `num_axes` is the number of axes of positions, 1 for a sequence and 2 for an image.
    """
    rules = current().rules
    return tuple(rules.parts(name) if rules else 1 for name in POSITION_AXES[num_axes + 2])


def static_sizes(x: tf.Tensor) -> list[int]:
    """Returns the static sizes of the axes between B and C of images x [B, ..., C]."""
    shape: Any = x.shape
    return [int(size) for size in shape[1:-1]]


def is_split(x: tf.Tensor) -> bool:
    """Whether the call context's rules split an axis between B and C of images x [B, ..., C]."""
    return max(num_parts_of(len(x.shape) - 2)) > 1


def has_copies(whole: Sequence[bool]) -> bool:
    """Whether several devices have the same part of images if the axes in `whole` are not split.

    `whole` has a bool for each axis of the images, true for an axis that is not split.
    """
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
    """Computes a function of windows, such as a convolution, on images that may be split.

    Args:
        x: images [B, ..., C], of any float type.
        compute: maps whole images and a padding to [B, ..., F], with a value per window. The
            padding is SAME or VALID or, for images of rank 2 the numbers of zeros before and after
            each axis of x. Only 2D convolutions take numbers, so an axis of a volume stays whole
            unless SAME or VALID gives the right numbers.
        windows: the windows of `compute`.
        channels: logical axes of C and F.

    Returns:
        [B, ..., F], split by the call context's rules.
    """
    is_sequence, takes_numbers = len(windows.lengths) == 1, len(windows.lengths) == 2
    if is_sequence:
        x = annotate_image(x, channels[0], whole=[True])
    if is_sequence or not is_split(x):
        return annotate_image(compute(x, windows.any_size_padding()), channels[1])
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
    """Pads the ends of the axes of images x, [B, ..., C] of any type, with zeros up to `sizes`."""
    ends = [(0, size - n) for size, n in zip(sizes, static_sizes(x), strict=True)]
    return tf.pad(x, [(0, 0), *ends, (0, 0)]) if any(map(any, ends)) else x


def split_again(
    y: tf.Tensor, sizes: Sequence[int], channels: str | None, *, whole: Sequence[bool]
) -> tf.Tensor:
    """Cuts images y to `sizes`, and splits them by the call context's rules.

    y was computed with the axes where `whole` is true unsharded; with an empty `whole`, y is split
    already and is not cut. `channels` is the logical axis of the channels.
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
    """Yields, for each position in a window, the values that all windows have at this position.

    The values are [B, windows..., C]. Images x are [B, ..., C], of any type. `fill` is the value
    that pads them.
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
