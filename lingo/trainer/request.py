"""What `lingo train` or `lingo.train` asks for."""

from __future__ import annotations

from typing import NamedTuple

from lingo.config.params import Params
from lingo.config.serial.serial import Origin

NO_STEPS = range(0)


class Request(NamedTuple):
    """What to train.

    Attributes:
        params: of an Experiment.
        config: the text of config.json.
        flags: the text of flags.txt.
        origin: where the parameters came from.
        profile_steps: steps that are recorded for TensorBoard's profile tab: 10, ..., 14 from when
            10 are done until 15 are.
        audit: whether each step leaves a row in `audit.jsonl`; a run that has the file goes on with
            it in any case.
    """

    params: Params
    config: str
    flags: str
    origin: Origin = Origin()
    profile_steps: range = NO_STEPS
    audit: bool = False
