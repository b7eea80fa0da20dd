"""Executes a plan: computes every chip's payload after the plan's steps from the payloads before.

Axes: P positions of a grid (failed chips' positions are not used), E elements of a payload, padded
to C chunks of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
from lingo.mesh.allreduce.plan import AllReducePlan, Step, Transfers

Payload = Literal["exact", "bfloat16"]
Array = NDArray[Any]


def execute(
    plan: AllReducePlan,
    values: Array,
    *,
    payload: Payload = "exact",
    update: Callable[[Array, Array], Array] | None = None,
) -> Array:
    """Returns the payload of every chip after the all-reduce.

    Args:
        plan: the messages of each step.
        values: [P, E], the payload of each chip at first, of any numeric type.
        payload: "bfloat16" rounds the messages and the result; values are float32, and so are the
            sums of each chip.
        update: (elements [n] of the sum, their indices, int64 [n]) -> new values [n] of the same
            type; indices of padding are E or more. Each chip applies it to the chunks that it owns,
            before they are gathered. So a weight is updated on one chip alone.

    Returns:
        [P, E], the same on every healthy chip, bit for bit.

    Raises:
        ParamError: if values are not numbers [P, E], or not of the payload's type.
    """
    _check(plan, values, payload)
    num_positions, num_elements = values.shape
    length = -(-num_elements // plan.num_chunks)
    state = np.zeros((num_positions, plan.num_chunks * length), values.dtype)
    state[:, :num_elements] = values
    state = state.reshape(num_positions, plan.num_chunks, length)
    convert = round_to_bfloat16 if payload == "bfloat16" else _identity
    _run(state, plan.reduce, convert)
    if update is not None:
        elements = np.arange(plan.num_chunks * length, dtype=np.int64).reshape(-1, length)
        for chip, chunks in owned_chunks(plan).items():
            new = update(state[chip, chunks].ravel(), elements[chunks].ravel())
            state[chip, chunks] = new.reshape(-1, length)
    _run(state, plan.gather(), convert)
    return convert(state.reshape(num_positions, -1)[:, :num_elements])


def _check(plan: AllReducePlan, values: Array, payload: str) -> None:
    """Raises ParamError for values or a payload that `execute` does not take."""
    if payload not in get_args(Payload):
        raise ParamError(f"{payload=} is none of {', '.join(get_args(Payload))}")
    is_fitting = values.ndim == 2 and len(values) == plan.grid.size
    if payload == "bfloat16":
        is_fitting &= values.dtype == np.float32
    if not (is_fitting and np.issubdtype(values.dtype, np.number)):
        kind = "float32" if payload == "bfloat16" else "numbers"
        raise ParamError(
            f"values {values.dtype} {[*values.shape]}: all-reduce on a {plan.grid} adds {kind}"
            f" [{plan.grid.size}, elements], a row for each position, failed chips included"
        )


def _run(state: Array, steps: Iterable[Step], convert: Callable[[Array], Array]) -> None:
    """Changes the state [P, C, length] by steps: all messages of a step are sent, then received."""
    for step in steps:
        sent: list[tuple[Transfers, Array, Array]] = []
        for transfers in step:
            chunks = transfers.first[:, None] + np.arange(transfers.num_chunks)
            sent.append((transfers, chunks, convert(state[transfers.source[:, None], chunks])))
        for transfers, chunks, message in sent:
            place = transfers.target[:, None], chunks
            if transfers.adds:
                np.add.at(state, place, message)  # one by one, also if two messages have one target
            else:
                state[place] = message


def owned_chunks(plan: AllReducePlan) -> dict[int, NDArray[np.int64]]:
    """Returns the chunks that each chip owns, {chip: indices of chunks}.

    A chip owns the chunks that it receives and does not send. Between reduce and gather it has
    their complete sums.
    """
    owner = np.full(plan.num_chunks, -1)
    for step in plan.reduce:  # the last receiver of a chunk owns it
        for transfers in step:
            for i in range(transfers.num_chunks):
                owner[transfers.first + i] = transfers.target
    owner[owner < 0] = plan.grid.healthy[0]  # a plan without steps, of one chip
    return {chip: np.flatnonzero(owner == chip) for chip in np.unique(owner).tolist()}


def is_exact(plan: AllReducePlan) -> bool:
    """Returns whether every healthy chip ends with each healthy chip's contribution exactly once.

    A contribution is a random 64-bit number for each chunk, so that a wrong sum is right by chance
    once in 2**64. Failed chips have contributions, too, which must be in no sum.
    """
    shape = plan.grid.size, plan.num_chunks
    values = np.random.default_rng(0).integers(0, 2**64, shape, np.uint64)
    healthy = plan.grid.healthy
    sums = execute(plan, values)[healthy]
    return bool((sums == values[healthy].sum(0)).all())


def round_to_bfloat16(values: Array) -> Array:
    """Rounds finite float32 values to the nearest bfloat16, ties to even; returns float32."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _identity(values: Array) -> Array:
    return values
