"""A claim about an experiment, and the outcome of its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line, is_lingos, names_line, user_line

Outcome = Literal["pass", "FAILED", "not checked"]


class NotChecked(Exception):
    """A claim does not apply to its subject; the message says why."""


class Broken(Exception):
    """A claim is false; the message says what differs.

    `where` is the file:line of the wrong part, if it is not the whole subject.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class Claim(NamedTuple):
    """A claim, and the outcome of its check."""

    text: str
    subject: str  # path and class of a layer, name and class of an input
    outcome: Outcome
    detail: str = ""  # what differs, or why it was not checked

    def __str__(self) -> str:
        line = f"{self.outcome:11}  {self.subject}: {self.text}"
        return f"{line}\n             {self.detail}" if self.detail else line


def check_claim(text: str, subject: str, check: Callable[[], None], *, where: str = "") -> Claim:
    """Checks a claim; if it fails, its detail names `where`, the file:line of the subject.

    `check` raises `Broken`, `NotChecked`, or any other error of the code that it calls.
    """
    try:
        check()
    except NotChecked as reason:
        return Claim(text, subject, "not checked", str(reason))
    except Broken as difference:
        line = difference.where or where
        return Claim(text, subject, "FAILED", f"{line}: {difference}" if line else str(difference))
    except Exception as error:  # noqa: BLE001  # the other claims are still to be checked
        return Claim(text, subject, "FAILED", _describe(error, where))
    return Claim(text, subject, "pass")


def _describe(error: Exception, where: str) -> str:
    """Returns an error as a line, with the line of the user's file that raised it."""
    text = first_line(error)
    line = "" if names_line(text) else user_line(error) or where
    return f"{line}: {text}" if line else text


def first_line(error: Exception) -> str:
    """Returns an error's class and first line: errors of TensorFlow may be pages long."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return first if isinstance(error, ParamError) else f"{type(error).__name__}: {first}"


def own_line(cls: type) -> str:
    """Returns `file:line` of a class of the user's own; "" for a class of lingo's."""
    return "" if is_lingos(cls) else definition_line(cls)


# ---- comparison ----------------------------------------------------------------------------------


def require_same(
    plain: Mapping[str, np.ndarray],
    other: Mapping[str, np.ndarray],
    *,
    what: str,
    tolerance: float,
    floor: float = 0.0,
) -> None:
    """Raises Broken unless arrays of the same name are equal up to rounding.

    Args:
        plain: name -> array of any shape.
        other: the same, computed in another way.
        what: the other way, for the message: "in XLA".
        tolerance: the largest difference, relative to the largest element of an array.
        floor: the least value that a difference is relative to.
    """
    if plain.keys() != other.keys():
        names = ", ".join(sorted(plain.keys() ^ other.keys()))
        raise Broken(f"{what}: {names} is on one side only")
    for name, value in plain.items():
        problem = _difference(value, other[name], tolerance=tolerance, floor=floor)
        if problem:
            raise Broken(f"{what}: {name} {problem}")


def _difference(a: np.ndarray, b: np.ndarray, *, tolerance: float, floor: float) -> str:
    """Returns how two arrays differ, or ""."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {b.dtype} {list(b.shape)}, not {a.dtype} {list(a.shape)}"
    if a.dtype.kind not in "fiub":
        return "" if np.array_equal(a, b) else "differs"
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return "is finite on one side only"
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    gap = np.abs(x - y)
    largest = max(float(np.abs(x).max(initial=0.0)), floor)
    if gap.max(initial=0.0) <= tolerance * largest:
        return ""
    place = [int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape)]
    at = f" at {place}" if place else ""
    return f"differs by {gap.max():.3g}{at}, where the largest is {largest:.3g}"


def largest_of(arrays: Sequence[np.ndarray]) -> float:
    """Returns the largest absolute value in arrays of any shapes; 0 if they have no element."""
    return max((float(np.abs(array).max(initial=0.0)) for array in arrays), default=0.0)


def as_arrays(structure: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns tensors by name as arrays of their shapes and types."""
    return {name: np.asarray(value) for name, value in structure.items()}
