"""Conversations over HTTP: events of answers, and what a client that leaves costs."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.decode.chat import Chat, ChatOptions, Reply, Responder, Turn
from lingo.serving.app import Service
from lingo.serving.chat import read_chat
from lingo.serving.model import Refusal, ServedModel
from tests.lingo.serving.test_app import LIMITS, Answer
from tests.lingo.serving.test_server import TIMEOUT, head, serve_here

CHAT = "/v1/models/small:chat"


class Talk(Responder):
    """Answers by the letters of the last turn; "for ever" has no end, and errors are errors."""

    def setup(self) -> None:
        self.has_begun = threading.Event()
        self.is_stopped = threading.Event()
        self.goes_on = threading.Event()

    def respond(
        self, model: Any, turns: Sequence[Turn], options: ChatOptions
    ) -> Generator[str, None, Reply]:
        text = turns[-1].text
        if text == "too long":
            raise ParamError("the prompt is too long")
        if text == "bad":
            raise ValueError("a mistake")
        yield ""
        yield from "" if text == "wait" else text[:1]
        if text == "late":
            raise ValueError("a late mistake")
        self.has_begun.set()
        try:
            while text in ("for ever", "wait"):
                self.goes_on.wait()
                yield "" if text == "wait" else "more "
        finally:
            self.is_stopped.set()
        yield from text[1:]
        return Reply(text, {"turns": len(turns), "seed": options.seed, "shape": (2, 3)})


@pytest.fixture
def responder() -> Iterator[Talk]:
    responder = Talk.params().build()
    yield responder
    responder.goes_on.set()


@pytest.fixture
def talking(model: ServedModel, responder: Talk) -> ServedModel:
    return model._replace(chat=lambda options: Chat(None, responder, options))  # pyright: ignore[reportArgumentType]


def body_of(*texts: str, **options: Any) -> bytes:
    """A user and a model take turns, the user last."""
    speakers = ["user", "model"] * len(texts)
    turns = [
        {"speaker": speaker, "text": text}
        for speaker, text in zip(speakers[: len(texts)], texts, strict=True)
    ]
    return json.dumps({"turns": turns, **options}).encode()


def ask(model: ServedModel, body: bytes, path: str = CHAT, **limits: Any) -> tuple[Answer, str]:
    """Returns the answer to a request without a network, and what is reported."""
    reports: list[str] = []

    async def run() -> Answer:
        service = Service(model, LIMITS._replace(**limits), report=reports.append)
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(parts, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
        await service.app()(scope, receive, send)
        assert service.num_running == 0
        service.close()
        start, *rest = sent
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], names, b"".join(part["body"] for part in rest))

    answer = asyncio.run(run())
    return answer, "\n".join(reports)


def events_of(body: bytes) -> list[tuple[str, Any]]:
    """Returns name and data of each event."""
    found = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


def test_an_answer_is_events_of_pieces_and_an_end_with_details(talking: ServedModel) -> None:
    answer, reports = ask(talking, body_of("a", "b", "hü", seed=3))
    assert (answer.status, reports) == (200, "")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert events_of(answer.body) == [
        ("message", {"text": "h"}),
        ("message", {"text": "ü"}),
        ("end", {"text": "hü", "details": {"turns": 3, "seed": 3, "shape": [2, 3]}}),
    ]
    answer, _ = ask(talking, body_of(""), "/v1/models/small/versions/7:chat")
    assert [name for name, _ in events_of(answer.body)] == ["end"]


def test_a_mistake_before_the_first_event_is_answered_by_a_status(
    talking: ServedModel, responder: Talk
) -> None:
    answer, reports = ask(talking, body_of("too long"))
    assert (answer.status, answer.error, reports) == (400, "the prompt is too long", "")
    answer, reports = ask(talking, body_of("bad"))
    assert (answer.status, answer.error) == (500, "the model failed: see the server's output")
    assert reports == f"{CHAT} failed: ValueError: a mistake"
    responder.goes_on.set()
    answer, _ = ask(talking, body_of("wait"), timeout_seconds=0.05)
    assert (answer.status, answer.headers["retry-after"]) == (504, "1")


def test_a_mistake_after_it_is_an_event(talking: ServedModel) -> None:
    answer, reports = ask(talking, body_of("late"))
    assert events_of(answer.body) == [
        ("message", {"text": "l"}),
        ("error", {"error": "the model failed: see the server's output"}),
    ]
    assert reports == f"{CHAT} failed: ValueError: a late mistake"


def test_an_answer_that_takes_too_long_is_stopped(talking: ServedModel, responder: Talk) -> None:
    responder.goes_on.set()
    answer, _ = ask(talking, body_of("for ever"), timeout_seconds=0.05)
    assert events_of(answer.body)[-1] == ("error", {"error": "there was no answer within 0.05 s"})
    assert responder.is_stopped.is_set()


def test_a_model_without_texts_has_no_chat(model: ServedModel) -> None:
    answer, _ = ask(model, body_of("a"))
    assert (answer.status, answer.error) == (404, "small has no 'chat': it has predict")


def test_a_request_without_a_key_has_no_answer(talking: ServedModel) -> None:
    assert ask(talking, body_of("a"), api_key=b"secret")[0].status == 401


TURN = {"speaker": "user", "text": "a"}


@pytest.mark.parametrize(
    ("message", "status", "why"),
    [
        ([], 400, 'the body is not an object: write {"turns": [{"speaker"'),
        ({}, 400, "turns is missing"),
        ({"turns": []}, 400, "turns is an empty list"),
        ({"turns": "a"}, 400, "turns is a string"),
        ({"turns": ["a"]}, 400, "turns[0]: wanted an object with speaker and text"),
        ({"turns": [TURN | {"text": 1}]}, 400, "turns[0]: text is a number, not a string"),
        ({"turns": [TURN | {"speaker": "me"}]}, 400, "speaker is 'me', not user or model"),
        ({"turns": [TURN, TURN | {"speaker": "model"}]}, 400, "the last turn is the model's"),
        ({"turns": [TURN], "beams": 2}, 400, "the body has 'beams': besides turns it may have"),
        ({"turns": [TURN], "top_p": 2}, 400, "top_p=2"),
        ({"turns": [TURN], "seed": "a"}, 400, "seed='a' (str) is not an int"),
        ({"turns": [TURN], "max_tokens": "a"}, 400, "max_tokens takes int"),
        ({"turns": [TURN], "max_tokens": 33}, 413, "max_tokens, is 33, more than 32 positions"),
        ({"turns": [TURN | {"text": 17 * "ü"}]}, 413, "is 34, more than 32 positions"),
    ],
)
def test_a_body_that_is_no_conversation_is_refused(message: Any, status: int, why: str) -> None:
    turns = message.get("turns") if isinstance(message, dict) else None
    if turns and "max_tokens" not in message:
        message = message | {"max_tokens": 8}
    with pytest.raises(Refusal) as refusal:
        read_chat(json.dumps(message).encode(), max_positions=32)
    assert refusal.value.status == status
    assert why in str(refusal.value)


def chat_head(body: bytes) -> bytes:
    return head("POST", CHAT, len(body)) + body


def leave_while(text: str, responder: Talk) -> Any:
    """Returns a client that leaves while its answer is made, and then asks for another."""

    def run(connection: socket.socket) -> None:
        connection.sendall(chat_head(body_of(text, max_tokens=32)))
        if text == "for ever":
            responder.goes_on.set()
            received = b""
            while b"more " not in received:
                received += (piece := connection.recv(4096))
                assert piece, received
        assert responder.has_begun.wait(TIMEOUT)
        address = connection.getpeername()
        connection.close()
        responder.goes_on.set()
        assert responder.is_stopped.wait(TIMEOUT)
        status = None
        while status in (None, HTTPStatus.TOO_MANY_REQUESTS):  # until the one slot is free
            other = http.client.HTTPConnection(*address, timeout=TIMEOUT)
            with contextlib.closing(other):
                other.request("POST", CHAT, body_of("hi", max_tokens=32))
                answer = other.getresponse()
                status, received = answer.status, answer.read()
        assert status == HTTPStatus.OK
        assert b"event: end" in received

    return run


@pytest.mark.parametrize("text", ["for ever", "wait"])
def test_a_client_that_leaves_stops_its_answer_and_frees_its_slot(
    talking: ServedModel, responder: Talk, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("tests.lingo.serving.test_server.LIMITS", LIMITS._replace(max_requests=1))
    assert serve_here(talking, leave_while(text, responder)) == []
