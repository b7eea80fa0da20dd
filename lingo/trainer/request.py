"""What `lingo train` or `lingo.train` asks for."""

from __future__ import annotations

from typing import NamedTuple

from lingo.config.params import Params
from lingo.config.serial.serial import Origin

NO_STEPS = range(0)


class Request(NamedTuple):
    """What to train.

    Attributes:
        params: the params of an Experiment.
        config: the text of config.json.
        flags: the text of flags.txt.
        origin: where the parameters came from.
        profile_steps: the steps to profile for TensorBoard's profile tab: 10, ..., 14 is from
            after 10 steps until after 15.
        audit: whether to write one row per step to `audit.jsonl`; a run that has the file continues
            it in any case.
    """

    params: Params
    config: str
    flags: str
    origin: Origin = Origin()
    profile_steps: range = NO_STEPS
    audit: bool = False
