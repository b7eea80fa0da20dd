"""Computes concurrent requests in batches, which takes less time than computing them one by one.

    key   = the shapes and dtypes of a request's inputs, without the number of examples
    batch = requests with the same key, oldest first; a batch is due when it is full, or when its
            first request has waited `max_delay_seconds`

If a batch fails, each of its requests is computed again alone, so that a bad request fails only
itself.

Axes: B examples of a request or a batch.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import NamedTuple

import numpy as np

from lingo.export.exported_model import Arrays
from lingo.runtimes.program import ProgramError
from lingo.serving.model import Refusal, ServedSignature

NUM_THREADS = 2
"""Number of batches per signature in progress at once.

While the results of one batch are copied out, the next batch is computed.
"""

MAX_LONGEST = 4
"""How many examples of the greatest length fit into a batch; more shorter examples may fit."""


class BatchLimits(NamedTuple):
    """The largest size of a batch, and the longest time that requests wait for a batch to fill."""

    max_examples: int  # largest number of examples in a batch
    max_delay_seconds: float  # how long a batch's first request waits for other requests
    max_positions: int = 1024  # largest length of an example, in token ids or bytes of text


class _Request:
    """The inputs of one request, and the future of its outputs."""

    def __init__(self, inputs: Arrays, padded: Arrays) -> None:
        self.inputs, self.padded = inputs, padded
        self.is_abandoned = False  # whether it was cancelled while being computed
        self.num_examples = len(next(iter(inputs.values())))
        self.future: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        self.has_waited = False

    def key(self) -> Hashable:
        shapes = ((name, a.shape[1:], a.dtype.str) for name, a in self.padded.items())
        return tuple(sorted(shapes))


class Batcher:
    """Computes a model's function for the requests of one event loop, several at a time."""

    def __init__(
        self,
        signature: ServedSignature,
        limits: BatchLimits,
        *,
        observe: Callable[[int], None] = lambda num_examples: None,
    ) -> None:
        """Starts threads for a signature; `observe` is called with each batch's example count."""
        self.signature, self.limits, self._observe = signature, limits, observe
        self._waiting: dict[Hashable, list[_Request]] = {}
        self._failed: collections.deque[_Request] = collections.deque()  # each is retried alone
        self._num_computing = 0
        self.num_abandoned = 0  # number of requests that timed out but are still being computed
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix=signature.name)

    @property
    def num_waiting(self) -> int:
        """The number of requests whose computation has not begun."""
        return sum(map(len, self._waiting.values())) + len(self._failed)

    async def compute(self, inputs: Arrays) -> Arrays:
        """Computes a request: returns outputs {name: [B, ...]} for inputs {name: [B, ...]}.

        A request that is cancelled before its batch begins is dropped. Raises Refusal if the
        request is too large, and the errors of `ServedSignature.compute`.
        """
        num_examples = len(next(iter(inputs.values())))
        self.check_count(inputs)
        self._check_size(num_examples, self.signature.num_positions(inputs))
        request = _Request(inputs, self.signature.pad(inputs))
        self._waiting.setdefault(key := request.key(), []).append(request)
        timer = asyncio.get_running_loop().call_later(
            self.limits.max_delay_seconds, self._end_delay, request
        )
        try:
            self._start_batches()
            return await request.future
        except asyncio.CancelledError:
            if not self._drop(request, key):
                request.is_abandoned = True
                self.num_abandoned += 1
            raise
        finally:
            timer.cancel()  # an active timer would keep the inputs in memory

    def check_count(self, inputs: Arrays) -> None:
        """Raises Refusal if a request, {name: [B, ...]}, has more examples than a batch."""
        count, most = len(next(iter(inputs.values()))), self.limits.max_examples
        if count > most:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request has {count} examples, more than {most}: send several requests",
            )

    def _check_size(self, num_examples: int, num_positions: int) -> None:
        """Raises Refusal if a request would take too much memory."""
        length, why = self.limits.max_positions, ""
        if num_positions > length:
            why = (
                f"an example has {num_positions:,} positions, more than {length:,}: send a shorter"
                " one, or serve with a larger --max_positions"
            )
        elif num_examples * num_positions**2 > MAX_LONGEST * length**2:
            why = (
                f"{num_examples} examples of up to {num_positions:,} positions are more than a"
                f" batch holds, {MAX_LONGEST} of {length:,}: send several requests"
            )
        if why:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)

    def close(self) -> None:
        """Waits until running batches are computed, and ends the threads."""
        self._threads.shutdown()

    def _drop(self, request: _Request, key: Hashable) -> bool:
        """Removes a request from the queues; returns whether it was in one."""
        is_dropped = False
        for requests in (self._waiting.get(key, []), self._failed):
            if request in requests:
                requests.remove(request)
                is_dropped = True
        if not self._waiting.get(key):
            self._waiting.pop(key, None)
        return is_dropped

    def _end_delay(self, request: _Request) -> None:
        request.has_waited = True
        self._start_batches()

    def _start_batches(self) -> None:
        """Starts batches that are due while threads are free; the keys take turns."""
        loop = asyncio.get_running_loop()
        while self._num_computing < NUM_THREADS and (batch := self._take()):
            self._num_computing += 1
            self._observe(_num_examples(batch))
            done = loop.run_in_executor(self._threads, compute_batch, self.signature, batch)
            done.add_done_callback(lambda done, batch=batch: self._finish(batch, done))

    def _take(self) -> list[_Request]:
        """Removes the next due batch from the queues, and returns its requests; []: none is due."""
        while self._failed:
            if not (request := self._failed.popleft()).future.done():
                return [request]
        for key, requests in [*self._waiting.items()]:
            requests = [request for request in requests if not request.future.done()]
            size = self._num_fitting(requests)
            is_full = size < len(requests) or _num_examples(requests) == self.limits.max_examples
            is_due = bool(requests) and (is_full or requests[0].has_waited)
            batch, rest = (requests[:size], requests[size:]) if is_due else ([], requests)
            if batch or not rest:
                del self._waiting[key]  # remaining requests are queued behind the other keys
            if rest:
                self._waiting[key] = rest
            if batch:
                return batch
        return []

    def _num_fitting(self, requests: Sequence[_Request]) -> int:
        """Returns the largest n for which the first n requests fit into a batch together.

        The number of examples is limited more if they are long, since attention computes each pair
        of positions.
        """
        sizes = itertools.accumulate(request.num_examples for request in requests)
        num = sum(size <= self.limits.max_examples for size in sizes)
        length = max((self.signature.num_positions(r.padded) for r in requests), default=0)
        most = max(1, MAX_LONGEST * self.limits.max_positions**2 // max(length, 1) ** 2)
        sizes = itertools.accumulate(request.num_examples for request in requests[:num])
        return max(min(num, 1), sum(size <= most for size in sizes))

    def _finish(self, batch: Sequence[_Request], done: asyncio.Future[list[Arrays]]) -> None:
        """Gives the requests of a batch their outputs; if the batch failed, each is retried alone.

        A request that fails alone gets the error.
        """
        self._num_computing -= 1
        error = done.exception()
        for i, request in enumerate(batch):
            self.num_abandoned -= request.is_abandoned
            if request.future.done():  # the request was cancelled meanwhile
                continue
            if error is None:
                request.future.set_result(done.result()[i])
            elif len(batch) == 1:
                request.future.set_exception(error)
            else:
                self._failed.append(request)
        self._start_batches()


def _num_examples(requests: Sequence[_Request]) -> int:
    return sum(request.num_examples for request in requests)


def compute_batch(signature: ServedSignature, batch: Sequence[_Request]) -> list[Arrays]:
    """Computes requests together: returns each request's outputs, without positions of padding.

    Raises the errors of `ServedSignature.compute`, and ProgramError if an output does not have one
    row per example.
    """
    if len(batch) == 1:
        return [_compute(signature, batch[0].inputs)]
    inputs = {
        name: np.concatenate([request.padded[name] for request in batch])
        for name in signature.arrays
    }
    outputs = _compute(signature, inputs)
    results, end = [], 0
    for request in batch:
        begin, end = end, end + request.num_examples
        own = {name: value[begin:end] for name, value in outputs.items()}
        results.append(signature.cut(own, inputs=request.inputs, padded=request.padded))
    return results


def _compute(signature: ServedSignature, inputs: Arrays) -> Arrays:
    outputs, size = signature.compute(inputs), len(next(iter(inputs.values())))
    for name, value in outputs.items():
        if value.shape[:1] != (size,):
            raise ProgramError(
                f"{signature.name}: {name} has shape {[*value.shape]} for {size} examples"
            )
    return outputs
