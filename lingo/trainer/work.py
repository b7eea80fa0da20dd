"""The examples, tokens and FLOPs of training batches.

Axes: K steps, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lingo.contract import Experiment


class Work:
    """Counts the examples, tokens and FLOPs of batches."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._flops: dict[int, int] = {}

    def of(self, number: int, batches: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the examples, tokens and model FLOPs of some batches of one shape.

        Padding is not counted in examples and tokens, but in FLOPs.

        Args:
            number: the index of the first batch.
            batches: [K, B, ...] arrays of the examples that this process feeds; those of other
                processes are assumed to be alike. `weights`: [K, B].
        """
        num_rows = self._experiment.train_input.num_rows(number)
        num_steps, fed = batches["weights"].shape
        found = {"examples": float(np.sum(batches["weights"]))}
        if "segments" in batches:
            found["tokens"] = float(np.count_nonzero(batches["segments"]))
        found = {what: num_rows / max(fed, 1) * count for what, count in found.items()}
        return found | {"flops": float(num_steps * self._step_flops(number, batches, num_rows))}

    def _step_flops(self, number: int, batches: Mapping[str, np.ndarray], num_rows: int) -> int:
        shape = self._experiment.train_input.shape_id(number)
        if shape not in self._flops:
            specs = {k: ((num_rows, *v.shape[2:]), v.dtype.name) for k, v in batches.items()}
            self._flops[shape] = self._experiment.step_flops(specs)
        return self._flops[shape]
