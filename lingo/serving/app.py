"""The HTTP paths of a served model: predictions, chat, status, metadata, health and metrics.

    POST /v1/models/NAME[/versions/V]:predict       admit -> read -> compute in a batch -> write
    POST /v1/models/NAME[/versions/V]:chat          admit -> read -> compute alone -> write events
    GET  /v1/models/NAME[/versions/V][/metadata]
    GET  /healthz    GET /metrics

At most `max_requests` requests are in progress (being read, waiting or being computed), which
bounds the memory of their bodies. A further request is refused before its body is read. Answers
that clients have not received yet are not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import NamedTuple, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lingo.config.base.errors import LingoError
from lingo.decode.chat import Chat, ChatOptions
from lingo.export.exported_model import Arrays
from lingo.serving import codec
from lingo.serving.batcher import Batcher, BatchLimits
from lingo.serving.chat import CLIENT_CLOSED_REQUEST, Answering, EventStream, read_chat
from lingo.serving.model import Refusal, ServedModel

T = TypeVar("T")

_AGAIN = {"Retry-After": "1"}
_VERSIONS = ("1.0", "1.1")
_NUM_CHATS = 2  # number of chat answers that are computed at once; further answers wait
_NUM_READERS = 2  # threads that read and write JSON, so that the event loop stays responsive
_VALUES_OF_FORM = 1000  # allowed names, brackets and settings of a body, besides input values
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Limits(NamedTuple):
    """Limits of clients' requests."""

    batch: BatchLimits
    max_requests: int  # largest number of requests in progress at once
    max_body_bytes: int
    timeout_seconds: float  # time for a request, from its HTTP head to the answer
    read_timeout_seconds: float  # time in which the head must arrive, and then the body
    api_key: bytes = b""  # the key that requests under /v1 must send; empty: no key is needed


class Service:
    """Answers the HTTP requests to one model, and keeps metrics of them."""

    def __init__(
        self, model: ServedModel, limits: Limits, *, report: Callable[[str], None]
    ) -> None:
        """Prepares a model; `report` is called with a line per error that is not a client's."""
        self.model, self.limits, self._report = model, limits, report
        self.num_running = 0
        self.is_draining = False
        self._metrics = Metrics(model.name)
        self._metrics.running.set_function(lambda: self.num_running)
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="json")
        self._chats = ThreadPoolExecutor(_NUM_CHATS, thread_name_prefix="chat")
        self._max_values = _VALUES_OF_FORM + 2 * max(
            signature.max_values(
                num_examples=limits.batch.max_examples, num_positions=limits.batch.max_positions
            )
            for signature in model.signatures.values()
        )
        self._batchers = {
            name: Batcher(
                signature, limits.batch, observe=self._metrics.batches.labels(name).observe
            )
            for name, signature in model.signatures.items()
        }
        for name, batcher in self._batchers.items():
            self._metrics.waiting.labels(name).set_function(lambda b=batcher: b.num_waiting)

    def app(self) -> Starlette:
        """Returns the service as an ASGI application, which any ASGI server can run."""
        paths = "/v1/models/{name}", "/v1/models/{name}/versions/{version}"
        return Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/metrics", self._answer_metrics),
                *(Route(f"{path}:{{verb}}", self._post, methods=["POST"]) for path in paths),
                *(Route(f"{path}/metadata", self._metadata) for path in paths),
                *(Route(path, self._status) for path in paths),
            ],
            middleware=[Middleware(_KnownVersions)],
            exception_handlers={
                Refusal: _answer_refusal,
                HTTPException: self._answer_http_error,
                Exception: _answer_failure,  # Starlette raises the error again for the server
            },
        )

    def close(self) -> None:
        """Ends the threads, after the requests that they compute."""
        for batcher in self._batchers.values():
            batcher.close()
        self._chats.shutdown()
        self._readers.shutdown()

    # ---- paths -----------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        if self.is_draining:
            return JSONResponse({"status": "draining"}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "ready"})

    async def _answer_metrics(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type=CONTENT_TYPE)

    async def _status(self, request: Request) -> Response:
        self._check_key(request)
        self._check_path(request)
        return JSONResponse(codec.status_of(self.model))

    async def _metadata(self, request: Request) -> Response:
        self._check_key(request)
        self._check_path(request)
        return JSONResponse(codec.metadata_of(self.model))

    async def _post(self, request: Request) -> Response:
        """Answers a request for predictions or chat, and counts the request in the metrics."""
        request.state.signature, request.state.status = "", HTTPStatus.INTERNAL_SERVER_ERROR.value
        with contextlib.ExitStack() as slot:  # the request is in progress until `slot` is closed
            slot.callback(self._count, request, time.monotonic())
            response = await self._answer(request, slot)
            if isinstance(response, EventStream):
                response.on_end = functools.partial(_end, request, slot.pop_all())
            request.state.status = response.status_code
        return response

    def _count(self, request: Request, begin: float) -> None:
        state, seconds = request.state, time.monotonic() - begin
        self._metrics.count(state.signature, status=state.status, seconds=seconds)

    async def _answer(self, request: Request, slot: contextlib.ExitStack) -> Response:
        try:
            slot.enter_context(self._admit())
            self._check_key(request)
            self._check_path(request)
            if request.path_params["verb"] == "chat" and self.model.chat is not None:
                return await self._chat(request, self.model.chat)
            return await self._predict(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:  # noqa: BLE001  # even a bug of lingo must end only this request
            return self._refuse(request, error)

    def _refuse(self, request: Request, error: BaseException) -> Response:
        """Returns the answer to a failed request, and reports errors that are not the client's."""
        match error:
            case Refusal():
                return _answer_refusal(request, error)
            case TimeoutError():
                why = f"there was no answer within {self.limits.timeout_seconds:g} s"
                return _error(HTTPStatus.GATEWAY_TIMEOUT, why, _AGAIN)
        kind = "" if isinstance(error, LingoError) else f"{type(error).__name__}: "
        self._report(f"{request.url.path} failed: {kind}{error}")
        return _answer_failure(request, error)

    @contextlib.contextmanager
    def _admit(self) -> Iterator[None]:
        """Counts a request as in progress inside the context.

        Raises Refusal if too many requests are in progress, or the server is stopping.
        """
        if self.is_draining:
            why = "the server is stopping: ask another server"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, why, _AGAIN | {"Connection": "close"})
        # a request that has timed out occupies memory until its batch is computed
        num_abandoned = sum(batcher.num_abandoned for batcher in self._batchers.values())
        if self.num_running + num_abandoned >= (most := self.limits.max_requests):
            why = f"{most} requests are in progress: try again later"
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, why, _AGAIN)
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    async def _predict(self, request: Request) -> Response:
        async with asyncio.timeout(self.limits.timeout_seconds):
            name, is_rows, inputs = await self._read_call(request, self._convert)
            request.state.signature = name
            outputs = await self._batchers[name].compute(inputs)
            describe = self.model.signatures[name].describe
            content = await self._in_thread(
                lambda: codec.write_outputs(describe(outputs), is_rows=is_rows)
            )
        return Response(content, media_type="application/json")

    async def _chat(self, request: Request, begin: Callable[[ChatOptions], Chat]) -> Response:
        """Returns the response to a chat request; generation begins when a thread is free."""
        request.state.signature = "chat"
        deadline = asyncio.get_running_loop().time() + self.limits.timeout_seconds
        async with asyncio.timeout_at(deadline):
            read = functools.partial(read_chat, max_positions=self.limits.batch.max_positions)
            call = await self._read_call(request, read)
        chat = begin(call.options)
        *chat.turns, last = call.turns
        return EventStream(
            Answering(chat, last.text, self._chats),
            deadline=deadline,
            refuse=functools.partial(self._refuse, request),
        )

    async def _read_call(self, request: Request, convert: Callable[[bytes], T]) -> T:
        """Reads a request's body, and returns `convert(body)`, which a reader thread computes."""
        body = await self._read(request)
        codec.check_size(body, self._max_values)
        return await self._in_thread(convert, body)

    def _convert(self, body: bytes) -> tuple[str, bool, Arrays]:
        """Parses a body: returns (name of the signature, whether the body has rows, inputs)."""
        call = codec.read_call(body)
        name = codec.find_signature(self.model, call.signature)
        signature = self.model.signatures[name]
        inputs = codec.read_inputs(call, signature.inputs)
        self._batchers[name].check_count(inputs)
        return name, call.is_rows, signature.read(inputs)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)

    async def _read(self, request: Request) -> bytes:
        """Returns a request's body; raises Refusal if it is too large or does not arrive in time.

        The server discards the rest of a body that is not read.
        """
        most, seconds = self.limits.max_body_bytes, self.limits.read_timeout_seconds
        declared = request.headers.get("content-length", "0")
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                if int(declared) <= most:
                    async for chunk in request.stream():
                        body += chunk
                        if len(body) > most:
                            break
                    else:
                        return bytes(body)
        except TimeoutError:
            why = f"the body has not arrived within {seconds:g} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, why) from None
        why = f"the body is larger than {most:,} bytes: send several requests"
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)

    def _check_key(self, request: Request) -> None:
        """Raises Refusal if the server needs a key and the request does not have it.

        Keys are compared in constant time.
        """
        wanted = self.limits.api_key
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), wanted)
        if wanted and not (is_right and scheme.lower() == "bearer"):
            why = "the request has no valid key: send the header 'Authorization: Bearer KEY'"
            raise Refusal(HTTPStatus.UNAUTHORIZED, why, {"WWW-Authenticate": "Bearer"})

    def _check_path(self, request: Request) -> None:
        """Raises Refusal if the path names a model, version or verb that is not served."""
        name, version = self.model.name, str(self.model.version)
        given = request.path_params
        if request.method != "POST" and ":" in given.get("version", given["name"]):
            why = "predictions need the method POST"
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, why, {"Allow": "POST"})
        if given["name"] != name:
            raise _not_found(f"there is no model {given['name']!r:.100}: there is {name}")
        if given.get("version", version) != version:
            raise _not_found(f"{name} has no version {given['version']!r:.100}: it has {version}")
        verbs = ("predict",) if self.model.chat is None else ("predict", "chat")
        if given.get("verb", "predict") not in verbs:
            raise _not_found(f"{name} has no {given['verb']!r:.100}: it has {', '.join(verbs)}")

    def _answer_http_error(self, request: Request, error: Exception) -> Response:
        """Returns the answer to a request whose path or method is not served."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(getattr(error, "headers", None) or {})
        verbs = ":predict" if self.model.chat is None else ":predict and :chat"
        paths = f"GET /v1/models/{self.model.name} and its /metadata, POST its {verbs}"
        why = f"{request.method} {request.url.path:.100} is not served; served are: {paths}"
        return _error(status, f"{why}, GET /healthz and /metrics", headers)


class Metrics:
    """Prometheus metrics: request counts and seconds, batch sizes, waiting and running requests."""

    def __init__(self, model: str) -> None:
        disable_created_metrics()  # otherwise each metric has a line with its creation time
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "lingo_requests",  # the metrics page shows it as lingo_requests_total
            "Requests for predictions.",
            ("signature", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "lingo_request_seconds",
            "From the head to the answer.",
            ("signature",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.batches = Histogram(
            "lingo_batch_examples",
            "Examples of a batch.",
            ("signature",),
            buckets=_EXAMPLES,
            registry=registry,
        )
        self.waiting = Gauge(
            "lingo_queue_requests", "Requests in no batch yet.", ("signature",), registry=registry
        )
        running = Gauge(
            "lingo_running_requests", "Requests in progress.", ("model",), registry=registry
        )
        self.running = running.labels(model)

    def count(self, signature: str, *, status: int, seconds: float) -> None:
        """Counts an answered request; `signature` is "" if the request was refused unread."""
        self._requests.labels(signature, status).inc()
        self._seconds.labels(signature).observe(seconds)

    def page(self) -> str:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry).decode()


class _KnownVersions:
    """Middleware that refuses HTTP versions other than 1.0 and 1.1.

    The HTTP parser would accept any version, such as 3.7.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        version = scope.get("http_version", "1.1")
        if version in _VERSIONS:
            await self._app(scope, receive, send)
        else:
            answer = _error(HTTPStatus.BAD_REQUEST, f"HTTP/{version:.10} is not served: use 1.1")
            await answer(scope, receive, send)


def _end(request: Request, slot: contextlib.ExitStack, status: int) -> None:
    """Ends a chat request after all events were sent, or after the client has left."""
    request.state.status = status
    slot.close()


def _answer_refusal(request: Request, error: Exception) -> Response:
    refusal = cast(Refusal, error)
    return _error(refusal.status, str(refusal), refusal.headers)


def _answer_failure(request: Request, error: BaseException) -> Response:
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "the model failed: see the server's output")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


def _not_found(message: str) -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, message)
