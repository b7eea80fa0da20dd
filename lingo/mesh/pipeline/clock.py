"""When each step of a pipeline runs: as early as its stage is free and what it needs has ended.

Each stage does its steps in an order that is given. A micro-batch takes 2 R K steps one after the
other: forward through the K stages, R rounds of them, then backward the same way in reverse. So a
step needs just the one before it, and an order for each stage is a whole schedule.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from lingo.config.params import ParamError

Time = TypeVar("Time", int, float)


class Step(NamedTuple):
    """What a stage does with a micro-batch.

    Attributes:
        stage: from 0.
        micro_batch: from 0.
        round: from 0; how often the micro-batch went round all stages before.
        backward: whether it is the backward pass.
    """

    stage: int
    micro_batch: int
    round: int
    backward: bool

    def __str__(self) -> str:
        way = "backward" if self.backward else "forward"
        return f"{way} of micro-batch {self.micro_batch} in round {self.round}"


def place(step: Step, num_stages: int, num_rounds: int) -> int:
    """Returns how many steps its micro-batch takes before a step."""
    block = step.round * num_stages + step.stage
    return 2 * num_rounds * num_stages - 1 - block if step.backward else block


def timed(
    orders: Sequence[Iterable[Step]],
    num_rounds: int,
    duration: Callable[[Step], Time],
    begin: Time,
) -> list[tuple[Step, Time, Time]]:
    """Returns (step, start, end) of every step, stage after stage, in the orders given.

    Args:
        orders: of each stage, its steps.
        num_rounds: of every micro-batch.
        duration: how long a step takes.
        begin: the time at which the first step begins.

    Raises:
        ParamError: if a step waits for one that never comes, or comes later on the same stage.
    """
    waiting = [deque(order) for order in orders]
    placed: list[list[tuple[Step, Time, Time]]] = [[] for _ in orders]
    passed = defaultdict[int, int](int)  # steps of each micro-batch
    ended: dict[int, Time] = {}  # the last of these

    while any(waiting):
        before = sum(passed.values())
        for queue, done in zip(waiting, placed, strict=True):
            while queue and passed[queue[0].micro_batch] == place(
                queue[0], len(orders), num_rounds
            ):
                step = queue.popleft()
                free = done[-1][2] if done else begin
                start = max(free, ended.get(step.micro_batch, begin))
                ended[step.micro_batch] = end = start + duration(step)
                passed[step.micro_batch] += 1
                done.append((step, start, end))
        if sum(passed.values()) == before:
            stage, queue = next((i, queue) for i, queue in enumerate(waiting) if queue)
            raise ParamError(
                f"stage {stage} waits for ever with its {queue[0]}: the step before it never comes."
                " Each stage needs every step once, in an order that the others can follow"
            )
    return [entry for done in placed for entry in done]
