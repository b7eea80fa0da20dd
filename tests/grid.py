"""Forms of a test that CI leaves to `make grid`, as it has others of the same kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def cases(
    values: Iterable[Any] | Mapping[str, Any],
    *,
    in_ci: Collection[Any] | None = None,
    in_grid: Collection[Any] = (),
) -> list[Any]:
    """Returns parameters for `pytest.mark.parametrize`, one for each value.

    A plain tuple is the values of several arguments; a mapping has the ids of cases. CI has the
    values, or the ids of a mapping, `in_ci`; without it, all that are not `in_grid`.
    """
    found = []
    for one in values:
        value = values[one] if isinstance(values, Mapping) else one
        is_in_ci = one not in in_grid if in_ci is None else one in in_ci
        found.append(
            pytest.param(
                *(value if type(value) is tuple else (value,)),
                id=one if isinstance(values, Mapping) else None,
                marks=() if is_in_ci else pytest.mark.grid,
            )
        )
    return found


def runs_grid(request: pytest.FixtureRequest) -> bool:
    """Returns whether this session has tests of `make grid`, for which programs do more."""
    return any(item.get_closest_marker("grid") for item in request.session.items)
