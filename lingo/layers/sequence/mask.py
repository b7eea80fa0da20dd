"""Attention masks within a document: `--set=Attention.mask=LocalWindow(window=128)`.

A mask compares the indices of positions in an example. Documents that are packed into one example
never see each other under any mask.

Axes: B batch, T query positions, S key positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.ops.blockwise_attention import Band


class Reach(NamedTuple):
    """How far a position sees before and after itself."""

    num_before: int  # number of positions before itself that a position sees
    num_after: int  # number of positions after itself that a position sees


class Mask(Configurable, interface=True):
    """Decides which positions of its document a position sees."""

    def sees(self, query: tf.Tensor, key: tf.Tensor, prefix: Any = None) -> Any:
        """Returns which keys each query sees, if all are in one document.

        Args:
            query: int32 [B or 1, T], indices of the queries in their examples.
            key: int32 [B or 1, S], indices of the keys in their examples.
            prefix: bool [B or 1, S], whether a key is in its document's prefix; None: no key is.

        Returns:
            bool [B or 1, T, S]; None if all queries see all keys.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sees")

    @property
    def sees_later(self) -> bool:
        """Whether a position may see later positions."""
        return False

    @property
    def has_steps(self) -> bool:
        """Whether a position can be computed before later positions are known, as in decoding."""
        return not self.sees_later

    @property
    def has_consecutive_ids(self) -> bool:
        """Whether the position ids of a document are consecutive.

        Position biases then compute distances from indices, which all examples share.
        """
        return True

    @property
    def reach(self) -> Reach | None:
        """How far a position sees before and after itself; None: there is no limit."""
        return None

    @property
    def band(self) -> Band | None:
        """The range of distances that a position sees; None: `sees` decides by more than distance.

        Blockwise attention skips blocks outside of the band, and masks only blocks at its edges.
        """
        return None


class Causal(Mask):
    """A position sees itself and all earlier positions (Vaswani et al. 2017, sec. 3.2.3)."""

    def sees(self, query: tf.Tensor, key: tf.Tensor, prefix: Any = None) -> Any:
        return key[:, None, :] <= query[:, :, None]

    @property
    def band(self) -> Band | None:
        return Band(num_after=0)


class Bidirectional(Mask):
    """A position sees all positions. This is for encoders; it cannot be computed step by step."""

    sees_later = True

    def sees(self, query: tf.Tensor, key: tf.Tensor, prefix: Any = None) -> Any:
        return None

    @property
    def band(self) -> Band | None:
        return Band()


class Prefix(Mask):
    """A position sees itself, earlier positions and the prefix (Raffel et al. 2020, sec. 3.2.1).

    The call's input `prefix` marks the positions of the prefix; without this input, the mask is
    `Causal`. In decoding, one chunk has to contain the whole prefix.
    """

    sees_later = True
    has_steps = True

    def sees(self, query: tf.Tensor, key: tf.Tensor, prefix: Any = None) -> Any:
        past = key[:, None, :] <= query[:, :, None]
        return past if prefix is None else past | prefix[:, None, :]


class LocalWindow(Mask):
    """A position sees itself and window - 1 positions before it (Beltagy et al. 2020, sec. 3.1).

    Attention cuts T positions into blocks of `window` positions, so that it computes
    2 * T * window logits instead of T^2. With `ahead`, it computes 3 * T * max(window, ahead)
    logits. Decoding caches window - 1 positions at any length.
    """

    window: int  # number of positions that a position sees up to and including itself
    # number of positions that a position sees after itself; if not 0, decoding is impossible
    ahead: int = 0

    def check(self) -> None:
        if self.p.window < 1:
            raise ParamError(f"window={self.p.window} is not 1 or more: a position sees itself")
        ranges.check_not_negative(self.p, "ahead")

    def sees(self, query: tf.Tensor, key: tf.Tensor, prefix: Any = None) -> Any:
        distance = query[:, :, None] - key[:, None, :]
        return (distance < self.p.window) & (distance >= -self.p.ahead)

    @property
    def sees_later(self) -> bool:
        return self.p.ahead > 0

    @property
    def reach(self) -> Reach | None:
        return Reach(self.p.window - 1, self.p.ahead)

    @property
    def band(self) -> Band | None:
        return Band(self.p.window - 1, self.p.ahead)


def band_of(mask: Mask) -> Band | None:
    """Returns a mask's `band`, or None if a subclass redefines `sees` without `band`."""
    cls = next(c for c in type(mask).__mro__ if "sees" in vars(c))
    return mask.band if "band" in vars(cls) else None
