"""The planners of all-reduce by name."""

from __future__ import annotations

from collections.abc import Callable

from lingo.config.params import ParamError, suggest
from lingo.mesh.allreduce.cost import measure
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


def fastest_plan(grid: Grid, num_elements: int) -> Plan:
    """Returns the plan that the model of costs predicts to be the fastest for so many elements.

    They are of 4 bytes. Raises ParamError if no planner can.
    """
    plans, refusals = make_plans(grid)
    if not plans:
        raise ParamError(f"no all-reduce on {grid}: {'; '.join(refusals.values())}")
    return min(plans, key=lambda plan: measure(plan, num_elements).seconds)


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
