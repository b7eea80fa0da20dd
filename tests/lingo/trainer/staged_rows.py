"""An experiment on rows of two lengths, for tests of stages."""

from __future__ import annotations

from lingo.config.params import Params
from lingo.data.staged_input import StagedInput

CHANGE = 3  # the first step of the second stage


def staged(params: Params) -> Params:
    """Returns an experiment whose rows are long, and fewer, after some steps."""
    short = params.train_input
    long = short.copy().set(length=2 * short.length, batch_size=short.batch_size // 2)
    return params.set(train_input=StagedInput.params(stages=((short, CHANGE), (long, 1))))
