"""The input contract: a batch is a function of (seed, step), so nothing has to be remembered."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingo.config.params import Configurable, ParamError
from lingo.data.index import Progress


class Input(Configurable, kind=True):
    """Batches for a task.

    `setup` does not touch the disk, so that a configuration builds where its data is not; data is
    opened at first use, or by `prepare`.
    """

    batch_size: int  # examples a step, over all devices
    seed: int = 0  # of the order of examples
    repeat: bool = True  # epoch after epoch; False: one pass, as evaluation wants
    max_batches: int | None = None  # a pass ends after so many; None: after the data

    def check(self) -> None:
        if self.p.batch_size < 1:
            raise ParamError(f"batch_size={self.p.batch_size} is not positive.")
        if self.p.max_batches is not None and (self.p.repeat or self.p.max_batches < 1):
            raise ParamError(
                f"max_batches={self.p.max_batches} must be positive and needs repeat=False."
            )

    def offers(self) -> dict[str, Any]:
        """Returns what is known of the data before reading it, for fields of the task."""
        return {}

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data now; `progress` is called meanwhile.

        Raises:
            DataError: if it is missing or cannot be read.
        """
        raise NotImplementedError

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        """Returns the examples of a step.

        Args:
            step: 0, 1, ...
            rows: which of the step's examples are wanted, out of `batch_size`: B of them.

        Returns:
            `example_id`: int64 [B], the number of the example in the run;
            `rows`: int32 [B], its number in the step's batch;
            `weights`: float32 [B], 0 for one that only fills the last batch;
            and the task's arrays, [B, ...].

        Raises:
            DataError: if data cannot be read.
        """
        raise NotImplementedError

    def specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns name -> (shape, dtype) of the arrays of a whole batch, without reading data."""
        size = self.p.batch_size
        return {
            "example_id": ((size,), "int64"),
            "rows": ((size,), "int32"),
            "weights": ((size,), "float32"),
        }

    def num_batches(self) -> int:
        """Returns how many batches one pass has; the last is filled up with weight 0.

        Raises:
            ParamError: if the input repeats.
        """
        if self.p.repeat:
            raise ParamError(f"{type(self).__name__} repeats without end: set repeat=False.")
        batches = -(-self.num_examples() // self.p.batch_size)
        return min(batches, self.p.max_batches or batches)

    def num_examples(self) -> int:
        """Returns how many examples an epoch has."""
        raise NotImplementedError

    def epochs(self, step: int) -> float:
        """Returns how many passes over the data the steps before `step` made."""
        return step * self.p.batch_size / self.num_examples()

    def fingerprint(self) -> dict[str, Any]:
        """Returns what identifies the data: source, number of documents, bytes, digest."""
        raise NotImplementedError
