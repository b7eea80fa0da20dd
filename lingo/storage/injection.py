"""Injects faults for tests: `LINGO_INJECT="save:kill@20 input:raise@7 step:sleep=5@3-9"`.

The variable is read when the process starts.

    raise        raises InjectedFault
    kill, term   the process sends itself SIGKILL, or SIGTERM
    sleep=S      sleeps S seconds; other threads continue
    hang=S       waits S seconds in C code that holds Python's lock; a signal ends the wait

The place `upload` counts the writes and deletions in buckets by this process, from 1. The place
`batch` counts batches, not steps (the same number, unless the run has skipped batches):

    nan          every weight of the batch is NaN
    garble       every target of the batch is 0

Axes: K steps, B examples.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lingo.config.base.errors import LingoError
from lingo.config.params import ParamError

VARIABLE = "LINGO_INJECT"
BATCH = "batch"
UPLOAD = "upload"
PLACES = (
    "start",
    "compile",
    "input",
    "step",
    "report",
    "save",
    "commit",
    "evaluate",
    UPLOAD,
    BATCH,
)

_FAULT = re.compile(r"(\w+):(\w+)(?:=(\d+(?:\.\d+)?))?@(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_TIMED = ("sleep", "hang")
_ACTIONS = ("raise", "kill", "term", *_TIMED)
_OF_A_BATCH = ("nan", "garble")


class InjectedFault(LingoError):
    """The error that the action `raise` raises; it stands for any failure."""


class _Fault(NamedTuple):
    place: str
    action: str
    seconds: float
    steps: range


def _parse(text: str) -> tuple[_Fault, ...]:
    return tuple(map(_parse_fault, text.split()))


def _parse_fault(word: str) -> _Fault:
    """Parses place:action@step or place:action=seconds@first-last; raises ParamError."""
    match = _FAULT.fullmatch(word)
    if match is None:
        form = "place:action@step, such as save:kill@20 or step:sleep=5@3-9"
        raise ParamError(f"{VARIABLE}: {word!r} is not {form}")
    place, action, seconds, first, last = match.groups()
    if place not in PLACES:
        raise ParamError(f"{VARIABLE}: {word!r}: there is no place {place!r}: {', '.join(PLACES)}")
    actions = _OF_A_BATCH if place == BATCH else _ACTIONS
    if action not in actions:
        raise ParamError(f"{VARIABLE}: {word!r}: {place} takes no {action!r}: {', '.join(actions)}")
    if (seconds is not None) != (action in _TIMED):
        form = f"{action}=SECONDS" if action in _TIMED else f"{action} without a number"
        raise ParamError(f"{VARIABLE}: {word!r}: write {form}")
    steps = range(int(first), int(last or first) + 1)
    if not steps:
        raise ParamError(f"{VARIABLE}: {word!r}: there is no step from {first} to {last}")
    return _Fault(place, action, float(seconds or 0), steps)


_FAULTS = _parse(os.environ.get(VARIABLE, ""))
_UPLOADS = itertools.count(1)


def at(place: str, step: int) -> None:
    """Causes the faults that `LINGO_INJECT` names for one of `PLACES` and a step."""
    for fault in _FAULTS:
        if fault.place == place and step in fault.steps:
            _cause(fault, f"{place} at step {step}")


def count_upload() -> None:
    """Causes the faults that `LINGO_INJECT` names for the next write in a bucket, of any thread."""
    number = next(_UPLOADS)
    for fault in _FAULTS:
        if fault.place == UPLOAD and number in fault.steps:
            _cause(fault, f"upload {number}")


def poison(numbers: range, batches: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns K batches, name -> [K, B, ...], with the faults that `LINGO_INJECT` names for them.

    Only `weights`, of a float type, and `targets` may change, in copies.
    """
    of_batches = [fault for fault in _FAULTS if fault.place == BATCH]
    if not of_batches:
        return batches
    poisoned = dict(batches)
    for action, name, value in (("nan", "weights", np.nan), ("garble", "targets", 0)):
        faults = [fault for fault in of_batches if fault.action == action]
        indices = [i for i, n in enumerate(numbers) if any(n in fault.steps for fault in faults)]
        if indices:
            poisoned[name] = poisoned[name].copy()
            poisoned[name][indices] = value
    return poisoned


def _cause(fault: _Fault, where: str) -> None:
    match fault.action:
        case "raise":
            raise InjectedFault(f"injected fault: {where}")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)
        case "sleep":
            time.sleep(fault.seconds)
        case "hang":
            ctypes.PyDLL(None).poll(None, 0, round(1000 * fault.seconds))
