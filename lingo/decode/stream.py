"""Sampling that reports each token when it is drawn, and that can be stopped.

Axes: B prompts, S samples per prompt.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.decode.sampling import Sampling

STREAM = "stream"
"""The name of a batch's array, int32 [B]: the number of the listener that gets its tokens."""

Listener = Callable[[np.ndarray], bool]
"""Takes the next tokens, int32 [B*S], and returns whether decoding stops."""


class StreamedSampling(Sampling):
    """Draws the texts that `Sampling` draws, and calls Python with each token.

    The program must run Python operations on the CPU, which a program that XLA compiles cannot.
    Several batches may be decoded at once, by the same program.
    """

    def setup(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def listen(self, listener: Listener) -> Iterator[np.ndarray]:
        """Yields the array `STREAM`, int32 [1], of a one-prompt batch for this listener."""
        number = next(self._numbers)
        self._listeners[number] = listener
        try:
            yield np.array([number], np.int32)
        finally:
            del self._listeners[number]

    def follow(
        self, batch: Mapping[str, tf.Tensor], token: tf.Tensor, is_done: tf.Tensor
    ) -> tf.Tensor:
        inputs = [batch[STREAM][0], token, is_done]
        # stateless, as a step's operations must be; it is called, since the loop reads its result
        result: Any = tf.numpy_function(self._tell, inputs, tf.bool, stateful=False)
        return tf.ensure_shape(result, is_done.shape)

    def _tell(self, number: np.ndarray, token: np.ndarray, is_done: np.ndarray) -> np.ndarray:
        return is_done | self._listeners[int(number)](token)
