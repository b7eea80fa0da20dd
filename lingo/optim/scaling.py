"""Learning rates and numbers of steps as functions of the batch size, for experiments.

learning_rate=scale_linearly(0.1, batch_size=batch_size, base_batch_size=256)
num_steps=epochs_to_steps(90, num_examples=1_281_167, batch_size=batch_size)
"""

from __future__ import annotations

import math

from lingo.config.params import ParamError


def scale_linearly(rate: float, *, batch_size: int, base_batch_size: int) -> float:
    """Returns a learning rate that grows with the batch size (Goyal et al. 2017, sec. 2.1).

    `rate` is the learning rate for `base_batch_size`. Raises ParamError unless all are positive.

    >>> scale_linearly(0.1, batch_size=1024, base_batch_size=256)
    0.4
    """
    return rate * _ratio(rate, batch_size, base_batch_size)


def scale_by_root(rate: float, *, batch_size: int, base_batch_size: int) -> float:
    """Returns a learning rate that grows with the root of the batch size (You et al. 2020).

    `rate` is the learning rate for `base_batch_size`. Raises ParamError unless all are positive.

    >>> scale_by_root(0.1, batch_size=1024, base_batch_size=256)
    0.2
    """
    return rate * math.sqrt(_ratio(rate, batch_size, base_batch_size))


def epochs_to_steps(epochs: float, *, num_examples: int, batch_size: int) -> int:
    """Returns the number of whole steps in some epochs of `num_examples` examples.

    Raises ParamError unless all are positive.

    >>> epochs_to_steps(2.5, num_examples=100, batch_size=16)
    15
    """
    _check(epochs=epochs, num_examples=num_examples, batch_size=batch_size)
    return math.floor(epochs * num_examples / batch_size)


def _ratio(rate: float, batch_size: int, base_batch_size: int) -> float:
    _check(rate=rate, batch_size=batch_size, base_batch_size=base_batch_size)
    return batch_size / base_batch_size


def _check(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ParamError(f"{name}={value!r} is not positive")
