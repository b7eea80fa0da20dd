"""Requests are computed together, and each gets what it would have got alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest

from lingo.export.exported_model import Arrays
from lingo.runtimes.program import ProgramError
from lingo.serving.batcher import NUM_THREADS, Batcher, BatchLimits
from lingo.serving.model import Refusal, ServedModel

LONG = 60.0  # seconds that no test waits for


def serve(
    model: ServedModel,
    name: str,
    requests: Callable[[Batcher], Coroutine[Any, Any, Any]],
    *,
    max_examples: int = 8,
    max_delay_seconds: float = 0.02,
) -> tuple[Any, list[int]]:
    """Returns what requests return, and the number of examples of each batch."""
    sizes: list[int] = []
    limits = BatchLimits(max_examples, max_delay_seconds)
    batcher = Batcher(model.signatures[name], limits, observe=sizes.append)

    async def run() -> Any:
        async with asyncio.timeout(LONG / 2):
            return await requests(batcher)

    try:
        return asyncio.run(run()), sizes
    finally:
        batcher.close()


def texts(*lengths: int, seed: int = 0) -> list[Arrays]:
    rng = np.random.default_rng(seed)
    found: list[Arrays] = []
    for length in lengths:
        tokens = rng.integers(1, 100, [rng.integers(1, 4), length], np.int32)
        found.append({"tokens": tokens, "segments": np.ones_like(tokens)})
    return found


def compute_all(*inputs: Arrays, return_errors: bool = False) -> Callable[[Batcher], Any]:
    async def compute(batcher: Batcher) -> Any:
        calls = map(batcher.compute, inputs)
        return await asyncio.gather(*calls, return_exceptions=return_errors)

    return compute


def check_sums(inputs: Arrays, outputs: Arrays) -> None:
    np.testing.assert_array_equal(outputs["sums"], np.cumsum(inputs["tokens"], axis=1))
    np.testing.assert_array_equal(outputs["sum"], inputs["tokens"].sum(axis=1))


def test_requests_that_arrive_together_are_one_batch_and_each_gets_its_rows(model) -> None:
    inputs = [{"x": np.full([n, 2], n, np.float32)} for n in (1, 3, 2)]
    found, sizes = serve(model, "double", compute_all(*inputs))
    assert sizes == [6]
    for one, outputs in zip(inputs, found, strict=True):
        np.testing.assert_array_equal(outputs["y"], 2 * one["x"])


def test_a_full_batch_does_not_wait(model: ServedModel) -> None:
    inputs = [{"x": np.ones([2, 2], np.float32)}] * 4
    _, sizes = serve(model, "double", compute_all(*inputs), max_delay_seconds=LONG)
    assert sizes == [8]


def test_a_batch_is_at_most_as_large_as_allowed(model: ServedModel) -> None:
    inputs = [{"x": np.ones([3, 2], np.float32)}] * 5
    _, sizes = serve(model, "double", compute_all(*inputs))
    assert sorted(sizes) == [3, 6, 6]


def test_texts_of_near_lengths_are_one_batch_without_a_trace_of_padding(model) -> None:
    inputs = texts(17, 20, 32)
    found, sizes = serve(model, "count", compute_all(*inputs), max_examples=16)
    assert len(sizes) == 1
    for one, outputs in zip(inputs, found, strict=True):
        check_sums(one, outputs)


def test_lengths_far_apart_are_batches_of_their_own(model: ServedModel) -> None:
    inputs = texts(3, 200, 5, 130)
    found, sizes = serve(model, "count", compute_all(*inputs), max_examples=16)
    assert len(sizes) == 2
    for one, outputs in zip(inputs, found, strict=True):
        check_sums(one, outputs)


def test_inputs_of_different_lengths_in_one_request_are_refused_by_the_model_alone(model) -> None:
    wrong = {"tokens": np.ones([1, 3], np.int32), "segments": np.ones([1, 2], np.int32)}
    (error, *found), _ = serve(
        model, "count", compute_all(wrong, *texts(3, 3), return_errors=True), max_examples=16
    )
    assert isinstance(error, Refusal)
    for one, outputs in zip(texts(3, 3), found, strict=True):
        check_sums(one, outputs)


def test_a_request_that_fails_does_not_fail_those_beside_it(model: ServedModel) -> None:
    inputs = [{"x": np.array([x], np.int32)} for x in (1, 0, 5)]
    (first, error, last), sizes = serve(model, "invert", compute_all(*inputs, return_errors=True))
    assert sizes == [3, 1, 1, 1]
    assert (first["y"], last["y"]) == (100, 20)
    assert isinstance(error, Refusal)
    assert error.status == HTTPStatus.BAD_REQUEST
    assert str(error).startswith("invert: InvalidArgumentError: ")
    assert "assertion failed: [x is 0]" in str(error)


def test_a_request_that_is_cancelled_is_not_computed(model: ServedModel) -> None:
    async def cancel_one(batcher: Batcher) -> Arrays:
        inputs = {"x": np.ones([1, 2], np.float32)}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await batcher.compute(inputs)
        assert batcher.num_waiting == 0
        return await batcher.compute(inputs)

    _, sizes = serve(model, "double", cancel_one)
    assert sizes == [1]


def test_requests_cancelled_while_all_threads_compute_are_dropped(model, monkeypatch) -> None:
    release = threading.Event()

    def compute(inputs: Arrays) -> Arrays:
        if len(inputs["x"]) > 1:
            raise ProgramError("a batch fails")
        assert release.wait(LONG)
        return {"y": inputs["x"]}

    async def cancel_two(batcher: Batcher) -> None:
        def ask() -> asyncio.Task[Arrays]:
            return asyncio.create_task(batcher.compute({"x": np.ones([1, 2], np.float32)}))

        first, second, failed = ask(), ask(), ask()  # a batch, and then each alone
        while batcher._num_computing < NUM_THREADS:
            await asyncio.sleep(0)
        late = ask()
        await asyncio.sleep(0)
        assert batcher.num_waiting == 2
        for task in (failed, late):
            task.cancel()
        await asyncio.wait([failed, late])
        assert batcher.num_waiting == 0
        release.set()
        await asyncio.gather(first, second)

    monkeypatch.setattr(model.signatures["double"], "compute", compute)
    _, sizes = serve(model, "double", cancel_two)
    assert sizes == [3, 1, 1]


def test_a_request_with_too_many_examples_is_refused(model: ServedModel) -> None:
    inputs = {"x": np.ones([9, 2], np.float32)}
    with pytest.raises(Refusal, match="has 9 examples, more than 8: send several") as error:
        serve(model, "double", compute_all(inputs))
    assert error.value.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def test_of_hundreds_of_requests_none_is_lost_or_mixed(model: ServedModel) -> None:
    rng = np.random.default_rng(1)
    inputs = texts(*rng.integers(1, 70, 300).tolist())

    async def compute(batcher: Batcher) -> list[Arrays]:
        async def later(one: Arrays, ticks: int) -> Arrays:
            for _ in range(ticks):
                await asyncio.sleep(0)
            return await batcher.compute(one)

        return await asyncio.gather(
            *(
                later(one, ticks)
                for one, ticks in zip(inputs, rng.integers(0, 50, 300), strict=True)
            )
        )

    found, sizes = serve(model, "count", compute, max_delay_seconds=0.001)
    assert sum(sizes) == sum(len(one["tokens"]) for one in inputs)
    assert max(sizes) <= 8
    assert len(sizes) < 290
    for one, outputs in zip(inputs, found, strict=True):
        check_sums(one, outputs)


def test_outputs_that_are_not_of_examples_are_an_error(model, monkeypatch) -> None:
    signature = model.signatures["double"]
    monkeypatch.setattr(signature, "compute", lambda inputs: {"y": np.zeros([5])})
    inputs = {"x": np.ones([1, 2], np.float32)}
    with pytest.raises(ProgramError, match=r"double: y has shape \[5\] for 1 examples"):
        serve(model, "double", compute_all(inputs))
