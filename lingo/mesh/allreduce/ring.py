"""One ring through every healthy chip, by single hops: the most steps, and it goes around holes."""

from __future__ import annotations

import numpy as np

from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.hamiltonian import find_cycle
from lingo.mesh.allreduce.plan import Plan, ring_steps


def ring(grid: Grid) -> Plan:
    """Returns the plan of a ring whose hops are single links (Kumar and Jouppi 2020, 1-D).

    Raises ParamError if no such ring is found.
    """
    cycle = np.array(find_cycle(grid))
    pieces = np.arange(len(cycle))[None]
    return Plan("ring", grid, len(cycle), tuple(ring_steps(cycle[None], pieces, 1)))
