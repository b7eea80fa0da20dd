"""Simulates steps that wait for the slowest of many hosts, whose batches take unequal times.

Host h makes batches one after another; batch j takes it X[h, j] seconds, and may begin once batch
j - k was taken, if k are ready or being made (`lingo/data/prefetch.py`). Step j begins when all
hosts have batch j, and the step before is done:

    F[h, j] = max(F[h, j-1], S[j-k]) + X[h, j]        host h has finished batch j
    S[j]    = max(S[j-1] + step, max over h F[h, j])  step j begins

X are drawn from gamma distributions; a coefficient of variation of 1 is the exponential one.
"""

from __future__ import annotations

import collections

import numpy as np

from lingo.data import prefetch

MAX_STEPS, MIN_STEPS = 2000, 50
MAX_DRAWS = 5_000_000
"""Times of batches that are drawn, unless MIN_STEPS need more."""

SEED = 0
EVEN = 1e-6
"""Variations below it are none."""


def num_steps(num_hosts: int) -> int:
    """Returns how many steps of so many hosts are simulated: fewer of many hosts."""
    return max(MIN_STEPS, min(MAX_STEPS, MAX_DRAWS // num_hosts))


def simulate_step(
    *,
    step_seconds: float,
    batch_seconds: float,
    variation: float,
    num_hosts: int,
    depth: int = prefetch.DEPTH,
    steps: int | None = None,
) -> float:
    """Returns the mean seconds from one step to the next, after a first quarter of the steps.

    Args:
        step_seconds: of the devices alone.
        batch_seconds: mean time in which a host makes its part of a batch.
        variation: coefficient of variation of that time, its standard deviation over its mean.
        depth: how many batches of a host are ready or being made.
        steps: how many are simulated; None: `num_steps` of the hosts.
    """
    if variation < EVEN or not batch_seconds:
        return max(step_seconds, batch_seconds)
    steps = steps or num_steps(num_hosts)
    generator, shape = np.random.default_rng(SEED), variation**-2
    finished, begun = np.zeros(num_hosts), 0.0
    taken = collections.deque([0.0] * depth, maxlen=depth)  # S of the last `depth` steps
    warm, start = steps // 4, 0.0
    for step in range(steps):
        times = generator.gamma(shape, batch_seconds / shape, num_hosts)
        finished = np.maximum(finished, taken[0]) + times
        begun = max(begun + step_seconds, float(finished.max()))
        taken.append(begun)
        if step == warm:
            start = begun
    return (begun - start) / (steps - 1 - warm)
