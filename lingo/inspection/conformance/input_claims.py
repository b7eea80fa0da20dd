"""What every input promises: a batch is a function of (seed, step), as its `specs` say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from lingo.data.input import Input
from lingo.inspection.conformance.claim import Broken, NotChecked, as_arrays


def input_claims(input: Input, again: Input) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields each claim about an input, and its check; `again` is built of the same params."""
    yield "the batch of a step made twice is the same", functools.partial(_check_twice, input)
    yield (
        "no batch depends on those made before it",
        functools.partial(_check_history, input, again),
    )
    yield "names, shapes and dtypes are those of specs", functools.partial(_check_specs, input)
    yield "rows made alone = rows of the whole batch", functools.partial(_check_rows, input)


def _last_step(input: Input) -> int:
    """Returns a step after the first, if there is one."""
    return 2 if input.p.repeat else min(2, input.num_batches() - 1)


def _check_twice(input: Input) -> None:
    for step in {0, _last_step(input)}:
        _require_equal(input, step, input, "made twice")


def _check_history(input: Input, again: Input) -> None:
    _require_equal(input, _last_step(input), again, "made first, by an input that is built again,")


def _require_equal(input: Input, step: int, other: Input, how: str) -> None:
    one, two = (as_arrays(made.batch(step)) for made in (input, other))
    for name in one.keys() | two.keys():
        if name not in one or name not in two or not _same(one[name], two[name]):
            raise Broken(
                f"the array {name!r} of batch({step}), {how}, differs: draw from a key of the seed"
                " and the example's number (lingo.ops.random)"
            )


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype == object:
        return a.tolist() == b.tolist()
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def _check_specs(input: Input) -> None:
    for step in {0, _last_step(input)}:
        input.check_batch(input.batch(step))


def _check_rows(input: Input) -> None:
    step, size = _last_step(input), input.num_rows(_last_step(input))
    if size < 2:
        raise NotChecked("a batch has one row")
    whole = as_arrays(input.batch(step))
    for rows in (slice(0, 1), slice(1, size)):
        part = as_arrays(input.batch(step, rows=rows))
        for name, value in whole.items():
            if name not in part or not _same(np.ascontiguousarray(value[rows]), part[name]):
                raise Broken(
                    f"the array {name!r} of batch({step}, rows={rows.start}:{rows.stop}) is not"
                    " that of the same rows of the whole batch, as processes of a run need it"
                )
