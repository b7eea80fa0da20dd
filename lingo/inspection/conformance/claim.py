"""Claims about an experiment that must hold for any experiment, and the outcomes of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line, is_lingos, names_line, user_line

Outcome = Literal["pass", "FAILED", "not checked"]


class NotChecked(Exception):
    """A claim that does not apply to the checked layer, task or input; the message says why."""


class Broken(Exception):
    """A false claim; the message says what differs.

    `where` is the file:line of the wrong code; "": the line of the checked class.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class Claim(NamedTuple):
    """A claim about a layer, task or input, and the outcome of its check."""

    text: str  # what is claimed
    subject: str  # what the claim is about: path and class of a layer, name and class of an input
    outcome: Outcome
    detail: str = ""  # what differs, or why the claim was not checked; "" if it holds

    def __str__(self) -> str:
        line = f"{self.outcome:11}  {self.subject}: {self.text}"
        return f"{line}\n             {self.detail}" if self.detail else line


def check_claim(text: str, subject: str, check: Callable[[], None], *, where: str = "") -> Claim:
    """Runs the check of a claim, and returns the claim with its outcome.

    Args:
        text: what is claimed.
        subject: the layer, task or input that the claim is about.
        check: raises `Broken`, `NotChecked`, or any other error of the code that it calls.
        where: the file:line of the subject, which the detail of a failed claim names.
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
    """Returns an error as one line, prefixed by the file:line of the user's code that raised it."""
    text = first_line(error)
    line = "" if names_line(text) else user_line(error) or where
    return f"{line}: {text}" if line else text


def first_line(error: Exception) -> str:
    """Returns an error's class and first line, since TensorFlow's errors may be pages long."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return first if isinstance(error, ParamError) else f"{type(error).__name__}: {first}"


def own_line(cls: type) -> str:
    """Returns the file:line where a class is defined; "" for a class of lingo itself."""
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
        other: the same arrays, computed in another way.
        what: how `other` was computed, for the message: "compiled by XLA".
        tolerance: the largest allowed difference, relative to an array's largest element.
        floor: if all elements of an array are smaller, differences are relative to this.
    """
    if plain.keys() != other.keys():
        names = ", ".join(sorted(plain.keys() ^ other.keys()))
        raise Broken(f"{what}: {names} is on one side only")
    for name, value in plain.items():
        problem = _difference(value, other[name], tolerance=tolerance, floor=floor)
        if problem:
            raise Broken(f"{what}: {name} {problem}")


def _difference(a: np.ndarray, b: np.ndarray, *, tolerance: float, floor: float) -> str:
    """Returns how two arrays differ, as text for an error; "" if they are equal up to rounding."""
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
    """Returns NumPy arrays in place of tensors, by name."""
    return {name: np.asarray(value) for name, value in structure.items()}
