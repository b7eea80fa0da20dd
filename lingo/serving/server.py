"""Serves a model over HTTP until a signal arrives, then finishes the requests in progress.

listen   the address is bound before the model is read, so that a wrong address is found at once
drain    after a signal, new requests and /healthz get status 503; requests in progress are answered
end      the server ends when no request is in progress, or at once after a second signal
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lingo.config.params import ParamError
from lingo.processes.signals import STOPPING, Signals
from lingo.serving.app import Limits, Service
from lingo.serving.model import ServedModel

# A second signal within this time is ignored, since one signal may arrive twice: for the process,
# and for its process group.
_AGAIN_SECONDS = 0.5
_WRITE_SECONDS = 5  # time for clients to receive the last answers
_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 2048, 64 * 1024  # bytes read from a connection at once
_PIECE_SECONDS = 0.002  # if parsing a piece takes more CPU time, the next piece is small


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to an address, but does not listen yet.

    With port 0 it gets any free port. Raises ParamError if the address cannot be bound.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as stack:
            # asyncio sends small writes without delay (TCP_NODELAY) only if TCP is named here
            bound = stack.enter_context(
                socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            )
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            stack.pop_all()  # the socket stays open
    except (OSError, UnicodeError) as error:
        raise _unusable(host, port, error) from None
    return bound


def _unusable(host: str, port: int, error: Exception) -> ParamError:
    why = getattr(error, "strerror", "it is not a name of a host")
    return ParamError(f"--host={host} --port={port} cannot be used: {why}")


def serve(
    model: ServedModel,
    limits: Limits,
    bound: socket.socket,
    *,
    report: Callable[[str], None],
    on_ready: Callable[[], None],
) -> None:
    """Serves a model until SIGINT, SIGTERM or SIGHUP, then raises Stop.

    Args:
        model: the model.
        limits: limits of clients' requests.
        bound: the socket from `bind`.
        report: called with one line for each error of the server.
        on_ready: called when the server listens.

    Raises:
        ParamError: if another process has meanwhile begun to listen at the address.
    """
    try:
        bound.listen()  # sockets may share an address until one of them listens
    except OSError as error:
        host, port, *_ = bound.getsockname()
        raise _unusable(host, port, error) from None
    service = Service(model, limits, report=report)
    with Signals() as signals:
        server = _Server(service, signals, report=report, on_ready=on_ready)
        asyncio.run(server.serve(sockets=[bound]))
        _restore_default_handlers()
        service.close()  # waits for running batches, even if their requests have timed out
        signals.check()


def _restore_default_handlers() -> None:
    """Lets the next stopping signal end the process at once.

    Ignored signals stay ignored, such as SIGHUP under `nohup`.
    """
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class _Server(uvicorn.Server):
    """uvicorn's server, with lingo's handling of signals and of idle connections."""

    def __init__(
        self,
        service: Service,
        signals: Signals,
        *,
        report: Callable[[str], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._service, self._signals, self._on_ready = service, signals, on_ready
        logger = logging.getLogger("uvicorn.error")
        logger.setLevel(logging.ERROR)  # clients' mistakes have lower levels
        logger.addHandler(_Lines(report))
        logger.propagate = False

        class Protocol(_Protocol):
            idle_seconds = service.limits.read_timeout_seconds

        super().__init__(
            uvicorn.Config(
                service.app(),
                http=Protocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_WRITE_SECONDS,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Returns whether the server should end; uvicorn calls this ten times a second."""
        await super().on_tick(counter)
        if self._signals.received is None:
            return False
        if not self._service.is_draining:
            self._service.is_draining = True
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, _restore_default_handlers)
        return self._service.num_running == 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing, so that uvicorn does not replace lingo's signal handlers."""
        yield


class _Lines(logging.Handler):
    """A logging handler that reports each error of uvicorn as one line, without a traceback."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        why = "" if error is None else f": {type(error).__name__}: {error}"
        self._report(f"{record.getMessage().strip()}{why}")


class _Protocol(H11Protocol, asyncio.BufferedProtocol):
    """A client's connection, which is closed after `idle_seconds` without a request in progress.

    The client of such a connection sends no complete HTTP head, sends the rest of a refused body,
    does not receive an answer, or has nothing to ask. The connection is also closed if the client
    sends requests but does not receive answers for `idle_seconds`.

    Each iteration of the event loop reads one piece of bytes from the connection. If a piece takes
    long to parse, as one-byte chunks do, the next piece is small, so that other connections do not
    wait.
    """

    idle_seconds: float
    _idle: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None
    _piece_bytes = _MIN_PIECE_BYTES
    _buffer = memoryview(bytearray(_MAX_PIECE_BYTES))  # shared: each connection copies its piece

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait_for_request()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[: self._piece_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        begin = time.thread_time()
        self.data_received(bytes(self._buffer[:nbytes]))
        is_fast = time.thread_time() - begin < _PIECE_SECONDS
        more = min(2 * self._piece_bytes, _MAX_PIECE_BYTES)
        self._piece_bytes = more if is_fast else _MIN_PIECE_BYTES

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP with status 400, and ends the request in progress.

        If an answer has already begun, the connection is closed instead.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = self.loop.call_later(self.idle_seconds, self._hang_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_taker()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_waiting_for_taker()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        """Starts the idle timer, or stops it while a request is in progress."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._idle is None:
            self._idle = self.loop.call_later(self.idle_seconds, self._hang_up)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _stop_waiting_for_taker(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _hang_up(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # `close` would wait for the client, which does not read
        else:
            self.transport.close()
