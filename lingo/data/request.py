"""Requests of a server's clients: values that become the arrays of a batch, on the host.

Axes: B examples of a request.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lingo.config.base.errors import LingoError

OpenSpecs = Mapping[str, tuple[tuple[int | None, ...], str]]
"""Name -> (shape, dtype) of arrays; a size is None if it may vary."""


class BadRequest(LingoError):
    """A client's value cannot be read; the message says which, why, and what to send."""


class RequestReader:
    """Turns the values of a request into a batch's arrays.

    `inputs` are the values, such as the bytes of recordings, string [B]; `arrays` are what the task
    reads of a batch.
    """

    inputs: OpenSpecs
    arrays: OpenSpecs

    def read(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the arrays, {name: [B, ...]}, of values {name: [B, ...]}; raises BadRequest."""
        raise NotImplementedError(f"{type(self).__name__} has no read")
