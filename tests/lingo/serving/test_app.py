"""Every request gets an answer: what it asks for, or a status and a sentence."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.runtimes.program import ProgramError
from lingo.serving import codec
from lingo.serving.app import Limits, Service
from lingo.serving.batcher import BatchLimits
from lingo.serving.model import ServedModel

PATH = "/v1/models/small"
PREDICT = f"{PATH}:predict"
LIMITS = Limits(
    BatchLimits(max_examples=8, max_delay_seconds=0.002),
    max_requests=4,
    max_body_bytes=1000,
    timeout_seconds=20.0,
    read_timeout_seconds=10.0,
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]


class Client:
    """Asks an application by ASGI, without a network."""

    def __init__(self, service: Service) -> None:
        self.service, self.app = service, service.app()
        self.num_chunks_read = 0
        self.sent: list[Any] = []  # by the last answer

    async def ask(
        self, method: str, path: str, chunks: AsyncIterator[bytes] | bytes = b"", **headers: str
    ) -> Answer:
        """A body is bytes, or chunks that arrive one after another without a declared length."""
        if isinstance(chunks, bytes):
            headers = {"content-length": str(len(chunks)), **headers}
        body = one_chunk(chunks) if isinstance(chunks, bytes) else chunks
        sent = self.sent = []

        async def receive() -> Any:
            async for chunk in body:
                self.num_chunks_read += 1
                return {"type": "http.request", "body": chunk, "more_body": True}
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": encoded,
            "query_string": b"",
        }
        await self.app(scope, receive, send)
        start, *parts = sent
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], names, b"".join(part["body"] for part in parts))

    def get(self, path: str) -> Answer:
        return asyncio.run(self.ask("GET", path))

    def post(self, message: Any, path: str = PREDICT) -> Answer:
        return asyncio.run(self.predict(message, path))

    async def predict(self, message: Any, path: str = PREDICT) -> Answer:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.ask("POST", path, body)


async def one_chunk(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


async def no_end() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def start(model: ServedModel, reports: list[str], **limits: Any) -> Client:
    return Client(Service(model, LIMITS._replace(**limits), report=reports.append))


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def client(model: ServedModel, reports: list[str]) -> Iterator[Client]:
    client = start(model, reports)
    yield client
    client.service.close()
    assert client.service.num_running == 0


def doubles(*values: float) -> dict[str, Any]:
    return {"signature_name": "double", "instances": [[value, value] for value in values]}


def waiting(model: ServedModel, reports: list[str], **limits: Any) -> Client:
    """A client whose requests wait for others of their batch."""
    return start(model, reports, batch=BatchLimits(8, 600.0), **limits)


def test_predictions_by_path_of_a_model_and_of_its_version(client: Client) -> None:
    for path in (PREDICT, f"{PATH}/versions/7:predict"):
        found = client.post(doubles(1, 2.5), path)
        assert found.status == 200
        assert found.headers["content-type"] == "application/json"
        assert found.json == {"predictions": [[2.0, 2.0], [5.0, 5.0]]}
    columns = {"signature_name": "shout", "inputs": ["a"]}
    found = client.post(columns).json
    assert found == {"outputs": {"text": ["A"], "text_bytes": [{"b64": "QQ=="}]}}


def test_status_metadata_and_health(client: Client) -> None:
    for path in (PATH, f"{PATH}/versions/7"):
        (version,) = client.get(path).json["model_version_status"]
        assert (version["version"], version["state"]) == ("7", "AVAILABLE")
        assert client.get(f"{path}/metadata").json["model_spec"]["name"] == "small"
    assert client.get("/healthz").json == {"status": "ready"}


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1/models/smal", 404, "there is no model 'smal': there is small"),
        ("POST", "/v1/models/smal:predict", 404, "there is no model 'smal': there is small"),
        ("GET", f"{PATH}/versions/8", 404, "small has no version '8': it has 7"),
        ("POST", f"{PATH}/versions/8:predict", 404, "small has no version '8': it has 7"),
        ("POST", f"{PATH}:classify", 404, "small has no 'classify': it has predict"),
        ("POST", f"{PATH}:regress", 404, "small has no 'regress': it has predict"),
        ("GET", PREDICT, 405, "predictions need the method POST"),
        ("GET", f"{PATH}/versions/7:predict", 405, "predictions need the method POST"),
        ("POST", "/v1/models/a:b:predict", 404, "there is no model 'a:b': there is small"),
        ("POST", PATH, 405, f"POST {PATH} is not served; served are: GET {PATH} and its /metadata"),
        ("GET", "/v2", 404, "POST its :predict, GET /healthz and /metrics"),
    ],
)
def test_an_unknown_path_is_refused_with_those_that_there_are(
    client: Client, method: str, path: str, status: int, text: str
) -> None:
    found = asyncio.run(client.ask(method, path))
    assert found.status == status
    assert text in found.error


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (b"{", 400, "the body is not JSON"),
        ({"instances": [[1, 2]]}, 400, "signature_name is missing: small has double, count"),
        ({"signature_name": "x", "instances": [1]}, 404, "no signature 'x': small has double"),
        (
            {"signature_name": "double", "instances": [[1, 2, 3]]},
            400,
            "x has shape [1, 3]: wanted float32 [any, 2]",
        ),
        (doubles(*range(9)), 413, "the request has 9 examples, more than 8"),
        ({"signature_name": "invert", "instances": [0]}, 400, "x is 0"),
    ],
)
def test_a_mistake_is_named(client: Client, message: Any, status: int, text: str) -> None:
    found = client.post(message)
    assert found.status == status
    assert text in found.error


def test_a_body_that_says_it_is_too_large_is_not_read(client: Client) -> None:
    found = asyncio.run(client.ask("POST", PREDICT, b"", **{"content-length": "1001"}))
    assert (found.status, found.error) == (
        413,
        "the body is larger than 1,000 bytes: send several requests",
    )
    assert client.num_chunks_read == 0


def test_a_body_without_a_length_is_read_until_it_is_too_large(client: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"[" * 300

    found = asyncio.run(client.ask("POST", PREDICT, one_by_one([b"["] * 3)))
    assert "not JSON" in found.error  # the same, but small
    client.num_chunks_read = 0
    source = endless()
    assert asyncio.run(client.ask("POST", PREDICT, source)).status == 413
    assert client.num_chunks_read == 4


async def one_by_one(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def test_a_client_that_does_not_send_its_body_is_told(model, reports) -> None:
    client = start(model, reports, read_timeout_seconds=0.01)
    found = asyncio.run(client.ask("POST", PREDICT, no_end()))
    assert (found.status, found.error) == (408, "the body has not arrived within 0.01 s")
    assert client.service.num_running == 0


def test_a_request_that_takes_too_long_is_told(model, reports) -> None:
    client = waiting(model, reports, timeout_seconds=0.01)
    found = client.post(doubles(1))
    assert (found.status, found.error) == (504, "there was no answer within 0.01 s")
    assert found.headers["retry-after"] == "1"


def test_more_requests_than_allowed_are_told_to_come_again(model, reports) -> None:
    client = waiting(model, reports)

    async def ask() -> tuple[Answer, list[Answer]]:
        tasks = [asyncio.create_task(client.predict(doubles(1, i))) for i in range(4)]
        while client.service.num_running < 4:
            await asyncio.sleep(0)
        more = await client.predict(doubles(9))
        return more, await asyncio.gather(*tasks)  # four requests of two are a full batch

    refused, answered = asyncio.run(ask())
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert refused.error == "4 requests are in progress: try again later"
    for i, answer in enumerate(answered):
        assert answer.json["predictions"][1] == [2.0 * i, 2.0 * i]


def test_a_server_that_drains_answers_what_is_in_progress_and_refuses_more(model, reports) -> None:
    client = waiting(model, reports)

    async def ask() -> list[Answer]:
        first = asyncio.create_task(client.predict(doubles(1, 2, 3, 4)))
        second = asyncio.create_task(client.predict(doubles(5, 6, 7, 8)))
        while client.service.num_running < 2:
            await asyncio.sleep(0)
        client.service.is_draining = True
        refused = await client.predict(doubles(1))
        health = await client.ask("GET", "/healthz")
        return [refused, health, await first, await second]

    refused, health, first, second = asyncio.run(ask())
    assert refused.status == health.status == 503
    assert refused.error == "the server is stopping: ask another server"
    assert refused.headers["connection"] == "close"
    assert health.json == {"status": "draining"}
    assert [first.status, second.status] == [200, 200]
    assert second.json["predictions"][0] == [10.0, 10.0]


def test_a_failure_of_the_model_is_reported_and_the_next_request_answered(
    client: Client, model: ServedModel, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(inputs: Any) -> Any:
        raise ProgramError("double: no device")

    with monkeypatch.context() as patch:
        patch.setattr(model.signatures["double"], "compute", fail)
        found = client.post(doubles(1))
    assert (found.status, found.error) == (500, "the model failed: see the server's output")
    assert reports == [f"{PREDICT} failed: double: no device"]
    assert client.post(doubles(1)).status == 200


def test_an_error_that_nobody_expects_is_a_line_and_ends_one_request(
    client: Client, model: ServedModel, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(inputs: Any) -> Any:
        raise RuntimeError("a mistake of lingo's")

    with monkeypatch.context() as patch:
        patch.setattr(model.signatures["double"], "compute", fail)
        assert client.post(doubles(1)).status == 500
    assert reports == [f"{PREDICT} failed: RuntimeError: a mistake of lingo's"]
    assert 'signature="double",status="500"} 1.0' in client.get("/metrics").body.decode()
    assert client.service.num_running == 0


def test_a_client_that_is_gone_fails_nothing(client: Client, reports: list[str]) -> None:
    async def ask() -> None:
        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": []}
        await client.app(scope | {"query_string": b""}, receive, send)

    asyncio.run(ask())
    assert reports == []
    assert 'status="499"} 1.0' in client.get("/metrics").body.decode()


def test_metrics_count_requests_batches_and_seconds(client: Client) -> None:
    async def ask() -> None:
        await asyncio.gather(*(client.predict(doubles(i, i)) for i in range(3)))
        await client.predict(b"{")

    asyncio.run(ask())
    found = client.get("/metrics")
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = found.body.decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    values = {name: float(value) for name, value in pairs}
    assert values['lingo_requests_total{signature="double",status="200"}'] == 3
    assert values['lingo_requests_total{signature="",status="400"}'] == 1
    assert values['lingo_batch_examples_count{signature="double"}'] == 1
    assert values['lingo_batch_examples_sum{signature="double"}'] == 6
    assert values['lingo_batch_examples_bucket{le="4.0",signature="double"}'] == 0
    assert values['lingo_batch_examples_bucket{le="8.0",signature="double"}'] == 1
    assert values['lingo_request_seconds_bucket{le="+Inf",signature="double"}'] == 3
    assert 0 < values['lingo_request_seconds_sum{signature="double"}'] < 60
    assert values['lingo_queue_requests{signature="double"}'] == 0
    assert values['lingo_running_requests{model="small"}'] == 0
    helped = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {name.partition("{")[0].removesuffix("_total") for name in values} >= {
        "lingo_requests",
        "lingo_queue_requests",
    }
    assert len(helped) == 5


def test_texts_are_read_and_answered_whatever_is_in_their_batch(client: Client) -> None:
    rng = np.random.default_rng(0)
    tokens = [rng.integers(1, 9, length).tolist() for length in (2, 9, 16, 5)]

    async def ask() -> list[Answer]:
        messages = [
            {"signature_name": "count", "instances": [{"tokens": t, "segments": [1] * len(t)}]}
            for t in tokens
        ]
        return await asyncio.gather(*map(client.predict, messages))

    for one, answer in zip(tokens, asyncio.run(ask()), strict=True):
        (found,) = answer.json["predictions"]
        assert found == {"sum": sum(one), "sums": np.cumsum(one).tolist()}


# ---- what would take too much memory or time


@pytest.mark.parametrize(
    ("signature", "example"), [("shout", "a" * 1025), ("count", [1] * 1025)], ids=["text", "tokens"]
)
def test_an_example_that_is_too_long_is_refused(model, reports, signature, example) -> None:
    client = start(model, reports, max_body_bytes=100_000)
    row = {"tokens": example, "segments": example} if signature == "count" else example
    answer = client.post({"signature_name": signature, "instances": [row]})
    assert answer.status == 413
    assert "an example has 1,025 positions, more than 1,024" in answer.error
    assert "--max_positions" in answer.error
    shorter = {"tokens": [1] * 1024, "segments": [1] * 1024} if signature == "count" else "a" * 1024
    assert client.post({"signature_name": signature, "instances": [shorter]}).status == 200


def test_many_long_examples_are_refused_and_many_short_ones_are_not(model, reports) -> None:
    client = start(model, reports, max_body_bytes=100_000)
    answer = client.post({"signature_name": "shout", "instances": ["a" * 1000] * 8})
    assert answer.status == 413
    assert "8 examples of up to 1,000 positions are more than a batch holds" in answer.error
    answer = client.post({"signature_name": "shout", "instances": ["a" * 500] * 8})
    assert [row["text"] for row in answer.json["predictions"]] == ["A" * 500] * 8


@pytest.mark.parametrize("unit", ["[],", '{"a":1},', "1,", '"",'])
def test_values_are_counted_before_they_are_read(model, reports, monkeypatch, unit) -> None:
    monkeypatch.setattr(codec, "read_call", lambda body: pytest.fail("the body was read"))
    client = start(model, reports, max_body_bytes=8_000_000)
    body = b'{"instances": [' + unit.encode() * (8_000_000 // len(unit) - 10)
    answer = client.post(body)
    assert answer.status == 413
    assert "values, the largest request at most" in answer.error


def test_bodies_are_read_outside_of_the_loop(client: Client, monkeypatch) -> None:
    threads = []
    read = codec.read_call

    def note(body: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return read(body)

    monkeypatch.setattr(codec, "read_call", note)
    assert client.post(doubles(1)).status == 200
    assert [name.partition("_")[0] for name in threads] == ["json"]


def test_a_request_that_has_timed_out_counts_until_it_is_computed(
    model: ServedModel, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    compute = model.signatures["double"].compute

    def wait(inputs: Any) -> Any:
        go_on.wait(30)
        return compute(inputs)

    monkeypatch.setattr(model.signatures["double"], "compute", wait)
    client = start(model, reports, max_requests=2, timeout_seconds=0.05)

    async def ask() -> list[int]:
        first = await asyncio.gather(*(client.predict(doubles(i)) for i in range(2)))
        shed = await client.predict(doubles(3))
        go_on.set()
        while any(batcher.num_abandoned for batcher in client.service._batchers.values()):
            await asyncio.sleep(0.001)
        client.service.limits = client.service.limits._replace(timeout_seconds=20.0)
        after = await client.predict(doubles(4))
        return [answer.status for answer in (*first, shed, after)]

    assert asyncio.run(ask()) == [504, 504, 429, 200]


# ---- keys


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer secret", 200),
        ("bearer  secret ", 200),
        ("Bearer secre", 401),
        ("Bearer", 401),
        ("Basic secret", 401),
        ("Bearer s\u00e9cret", 401),
        (None, 401),
    ],
)
def test_a_key_is_asked_for_under_v1_only(model, reports, header, status) -> None:
    client = start(model, reports, api_key=b"secret")
    headers = {} if header is None else {"authorization": header}
    body = json.dumps(doubles(1)).encode()
    answers = [
        asyncio.run(client.ask("POST", PREDICT, body, **headers)),
        asyncio.run(client.ask("GET", PATH, **headers)),
        asyncio.run(client.ask("GET", f"{PATH}/metadata", **headers)),
    ]
    assert [answer.status for answer in answers] == [status] * 3
    if status == 401:
        assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert client.get("/healthz").status == client.get("/metrics").status == 200
