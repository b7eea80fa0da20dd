"""The planners of all-reduce by name."""

from __future__ import annotations

from collections.abc import Callable

from lingo.config.params import ParamError, suggest
from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.multiring import multiring
from lingo.mesh.allreduce.plan import Plan
from lingo.mesh.allreduce.ring import ring
from lingo.mesh.allreduce.row_pairs import row_pairs
from lingo.mesh.allreduce.torus import torus2d, torus3d

PLANNERS: dict[str, Callable[[Grid], Plan]] = {
    "ring": ring,
    "torus2d": torus2d,
    "torus3d": torus3d,
    "multiring": multiring,
    "row_pairs": row_pairs,
}


def make_plan(name: str, grid: Grid) -> Plan:
    """Returns the plan of a planner.

    Raises ParamError for an unknown name, and if the planner cannot: then it names those that can.
    """
    if name not in PLANNERS:
        raise ParamError(
            f"all-reduce: {name!r} is none of {', '.join(PLANNERS)}.{suggest(name, PLANNERS)}"
        )
    try:
        return PLANNERS[name](grid)
    except ParamError as error:
        others = [plan.name for plan in make_plans(grid)[0]]
        raise ParamError(
            f"{error}; {', '.join(others) or 'none of the other planners'} can"
        ) from None


def make_plans(grid: Grid) -> tuple[list[Plan], dict[str, str]]:
    """Returns the plans of all planners, and why the others have none, by name."""
    plans: list[Plan] = []
    refusals: dict[str, str] = {}
    for name in PLANNERS:
        try:
            plans.append(PLANNERS[name](grid))
        except ParamError as error:
            refusals[name] = str(error)
    return plans, refusals
