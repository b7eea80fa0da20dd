"""Conversations over HTTP. A request has all turns so far; the answer is a stream of events.

A request:

    {"turns": [{"speaker": "user", "text": "hello"}], "max_tokens": 20, "seed": 1}

Its answer, in the format of server-sent events (HTML standard, sec. 9.2):

    data: {"text": "Hi"}                                 a piece of the answer

    event: end                                           or: event: error, {"error": "..."}
    data: {"text": "Hi there", "details": {...}}

If an error occurs before the first event, the answer is an HTTP error, as for predictions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lingo.config.base.errors import ParamError
from lingo.decode.chat import Chat, ChatOptions, Reply, Turn
from lingo.serving.codec import json_type, read_object
from lingo.serving.model import Refusal

CONTENT_TYPE = "text/event-stream"
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that has left; only metrics show it

_SPEAKERS = ("user", "model")
_OPTIONS = [field.name for field in dataclasses.fields(ChatOptions)]


class ChatCall(NamedTuple):
    """The content of a request for an answer in a conversation."""

    turns: Sequence[Turn]  # all turns so far; the last turn is the user's
    options: ChatOptions


def read_chat(body: bytes, *, max_positions: int) -> ChatCall:
    """Parses the body of a request for a chat answer; raises Refusal if it is not valid.

    The last turn may have up to `max_positions` bytes, and the answer up to `max_positions` tokens.
    Earlier turns are not limited, since the model ignores those that do not fit.
    """
    message = read_object(body, example='{"turns": [{"speaker": "user", "text": "hi"}]}')
    if unknown := sorted({*message} - {"turns", *_OPTIONS}):
        raise _mistake(
            f"the body has {unknown[0]!r:.100}: besides turns it may have {', '.join(_OPTIONS)}"
        )
    if not isinstance(given := message.get("turns"), list) or not given:
        kind = "missing" if given is None else "an empty list" if given == [] else json_type(given)
        raise _mistake(f"turns is {kind}: wanted a list of at least one turn")
    turns = [_turn(value, f"turns[{i}]") for i, value in enumerate(given)]
    if turns[-1].speaker != "user":
        raise _mistake("the last turn is the model's: end with one of the user's")
    try:
        options = ChatOptions(**{name: message[name] for name in _OPTIONS if name in message})
        options.check()
    except ParamError as error:
        raise _mistake(str(error)) from None
    size = max(len(turns[-1].text.encode(errors="surrogatepass")), options.max_tokens)
    if size > max_positions:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the last turn, or max_tokens, is {size:,}, more than {max_positions:,} positions:"
            " send less, or serve with a larger --max_positions",
        )
    return ChatCall(turns, options)


def _turn(value: Any, where: str) -> Turn:
    if not isinstance(value, dict) or {*value} != {*Turn._fields}:
        raise _mistake(f"{where}: wanted an object with {' and '.join(Turn._fields)}")
    if value["speaker"] not in _SPEAKERS:
        raise _mistake(f"{where}: speaker is {value['speaker']!r:.40}, not user or model")
    if not isinstance(value["text"], str):
        raise _mistake(f"{where}: text is {json_type(value['text'])}, not a string")
    return Turn(value["speaker"], value["text"])


def _mistake(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, message)


class Answering:
    """An answer that a thread generates piece by piece, while a coroutine reads the pieces.

    The coroutine may stop the thread.
    """

    def __init__(self, chat: Chat, text: str, threads: Executor) -> None:
        """Begins to answer `text` once a thread is free. Must be called inside the event loop."""
        self._chat, self._text = chat, text
        self._is_stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | Reply | BaseException] = asyncio.Queue()
        self._job = threads.submit(self._answer)
        self._job.add_done_callback(self._finish)

    async def next(self) -> str | Reply | BaseException:
        """Returns the next piece of the answer.

        After the last piece, returns the whole reply, or the error that ended the answer.
        """
        return await self._pieces.get()

    async def stop(self) -> None:
        """Stops the answer, and returns when the thread is free."""
        self._is_stopped.set()
        if not self._job.cancel():  # the thread has begun the job
            await asyncio.wait([asyncio.wrap_future(self._job)])

    def _answer(self) -> Reply:
        with contextlib.closing(self._chat.stream(self._text)) as pieces:
            for piece in pieces:
                if self._is_stopped.is_set():
                    break
                if piece:
                    self._put(piece)
        return self._chat.reply or Reply("")

    def _finish(self, job: Future[Reply]) -> None:
        if job.cancelled():
            return
        error = job.exception()
        if isinstance(error, ParamError):
            error = _mistake(str(error))
        self._put(error or job.result())

    def _put(self, piece: str | Reply | BaseException) -> None:
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


class EventStream(Response):
    """A response that sends an answer as a stream of events, and stops when the client leaves."""

    def __init__(
        self,
        answering: Answering,
        *,
        deadline: float,
        refuse: Callable[[BaseException], Response],
    ) -> None:
        """Prepares the response.

        Args:
            answering: the answer that is being generated.
            deadline: when sending stops with a timeout error, in the time of the event loop.
            refuse: makes the response that reports an error.
        """
        super().__init__(media_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._answering, self._deadline = answering, deadline
        self._refuse = refuse
        self.on_end: Callable[[int], None] = lambda status: None
        """A function that is called with the HTTP status once the computation has ended."""
        self._status = CLIENT_CLOSED_REQUEST

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_wait_for_leaving(receive))
        sending = asyncio.create_task(self._send(scope, receive, send))
        try:
            await asyncio.wait([leaving, sending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await self._answering.stop()
            self.on_end(self._status)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all events, or an HTTP error if an error occurs before the first event."""
        has_begun = False
        try:
            async with asyncio.timeout_at(self._deadline):
                while isinstance(piece := await self._answering.next(), str):
                    if not has_begun:
                        await send(self._head())
                        has_begun = True
                    await send(_part(_event({"text": piece})))
        except TimeoutError as error:
            piece = error
        if isinstance(piece, Reply):
            self._status = HTTPStatus.OK.value
            if not has_begun:  # an empty answer
                await send(self._head())
            await send(_part(_event(piece._asdict(), "end"), is_last=True))
            return
        refusal = self._refuse(piece)
        self._status = refusal.status_code
        if has_begun:
            await send(_part(_event(json.loads(bytes(refusal.body)), "error"), is_last=True))
        else:
            await refusal(scope, receive, send)

    def _head(self) -> Message:
        return {"type": "http.response.start", "status": 200, "headers": self.raw_headers}


async def _wait_for_leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: Mapping[str, Any], name: str = "") -> bytes:
    text = json.dumps(data, default=str)  # details may hold objects
    return "".join([f"event: {name}\n" if name else "", f"data: {text}\n\n"]).encode()


def _part(body: bytes, *, is_last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not is_last}
