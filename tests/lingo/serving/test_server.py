"""A real server: clients that hang or send too much, and signals, harm nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.export.manifest import write_manifest
from lingo.processes.signals import Signals, Stop
from lingo.serving import server as server_module
from lingo.serving.app import Service
from lingo.serving.model import ServedModel
from lingo.serving.server import bind
from tests.lingo.serving.conftest import trace_all
from tests.lingo.serving.test_app import LIMITS

TIMEOUT = 120.0
PREDICT = "/v1/models/small:predict"
DOUBLE = json.dumps({"signature_name": "double", "instances": [[1, 2]]}).encode()


class Server(NamedTuple):
    process: subprocess.Popen[str]
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Returns the status and the body of an answer."""
        with self.connect() as connection:
            connection.sendall(head(method, path, len(body)) + body)
            return read_answer(connection)

    def peak_megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        return int(peak[1]) / 1024

    def wait_for_requests(self, number: int) -> None:
        """Waits until so many are in progress."""
        while f'lingo_running_requests{{model="small"}} {number}.0' not in self.metrics():
            time.sleep(0.01)

    def metrics(self) -> str:
        return self.ask("GET", "/metrics")[1]


def head(method: str, path: str, length: int) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n".encode()


def read_answer(connection: socket.socket) -> tuple[int, Any]:
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = dict(line.decode().lower().split(": ") for line in iter(file.readline, b"\r\n"))
        body = file.read(int(headers["content-length"]))
    is_json = "json" in headers["content-type"]
    return status, json.loads(body) if is_json else body.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an export with two versions."""
    folder = tmp_path_factory.mktemp("export") / "small"
    for version in ("7", "10"):
        tf.saved_model.save(tf.Module(), str(folder / version), signatures=trace_all())
    write_manifest(folder, {"format": "savedmodel"})
    return folder


@contextlib.contextmanager
def serve(folder: Path, *flags: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "lingo.cli.main", "serve", f"--export={folder}", "--port=0"]
    process = subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("note: an export's operations run as code")
        lines = [process.stdout.readline() for _ in range(2)]
        start, _, names = lines[0].strip().partition(": ")
        assert (start, {*names.split(", ")}) == ("small, version 10", {*trace_all()})
        match = re.fullmatch(r"serving at http://127\.0\.0\.1:(\d+)/v1/models/small\n", lines[1])
        assert match is not None
        yield Server(process, int(match[1]))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serve(folder, "--read_timeout=1", "--max_body_mb=2") as server:
        yield server


def test_a_body_of_100_megabytes_is_refused_and_never_in_memory(server: Server) -> None:
    assert server.ask("POST", PREDICT, DOUBLE) == (200, {"predictions": [[2.0, 4.0]]})
    before = server.peak_megabytes()
    piece = bytes(1_000_000)
    with server.connect() as connection:
        connection.sendall(head("POST", PREDICT, 100 * len(piece)))
        for _ in range(100):
            connection.sendall(piece)
        status, answer = read_answer(connection)
        assert (status, answer["error"]) == (
            413,
            "the body is larger than 2,000,000 bytes: send several requests",
        )
        connection.sendall(head("GET", "/healthz", 0))  # the connection is as good as before
        assert read_answer(connection) == (200, {"status": "ready"})
    with server.connect() as connection:
        connection.sendall(head("POST", PREDICT, 0).replace(b"Content-Length: 0", CHUNKED))
        for _ in range(100):
            connection.sendall(b"f4240\r\n" + piece + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection)[0] == 413
    assert server.peak_megabytes() < before + 20


CHUNKED = b"Transfer-Encoding: chunked"


def test_clients_that_hang_are_hung_up_on_and_others_are_answered(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        silent, half_head, half_body = (stack.enter_context(server.connect()) for _ in range(3))
        half_head.sendall(b"POST /v1/models/sm")
        half_body.sendall(head("POST", PREDICT, len(DOUBLE)) + DOUBLE[:5])
        assert server.ask("POST", PREDICT, DOUBLE)[0] == 200
        assert read_answer(half_body) == (408, {"error": "the body has not arrived within 1 s"})
        assert [one.recv(1) for one in (silent, half_head, half_body)] == [b""] * 3
    assert server.ask("GET", "/healthz") == (200, {"status": "ready"})


def test_a_client_that_asks_on_and_takes_no_answers_is_hung_up_on(server: Server) -> None:
    with server.connect() as connection:
        connection.settimeout(30)
        with pytest.raises(ConnectionError):
            connection.sendall(100_000 * head("GET", "/metrics", 0))


def serve_here(model: ServedModel, ask: Callable[[socket.socket], None]) -> list[str]:
    """Serves a model in this process for a client with a connection; returns what is reported."""

    def run() -> None:
        try:
            with socket.create_connection(bound.getsockname(), timeout=TIMEOUT) as connection:
                ask(connection)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    reports: list[str] = []
    asked: list[Future[None]] = []
    with bind("127.0.0.1", 0) as bound, ThreadPoolExecutor(1) as clients:

        def start() -> None:
            asked.append(clients.submit(run))

        with pytest.raises(Stop):
            server_module.serve(model, LIMITS, bound, report=reports.append, on_ready=start)
        asked[0].result()
    return reports


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_body_that_is_no_http_is_hung_up_on_without_a_second_answer(
    model: ServedModel, caplog: pytest.LogCaptureFixture, is_answered: bool
) -> None:
    def ask(connection: socket.socket) -> None:
        start, rest = (
            head("POST", "/none", 0).replace(b"Content-Length: 0", CHUNKED),
            b"no size\r\n",
        )
        connection.sendall(start if is_answered else start + rest)
        if is_answered:
            assert read_answer(connection)[0] == 404
            connection.sendall(rest)
        left = connection.makefile("rb").read()
        assert left.count(b"HTTP/1.1 400 ") == left.count(b"HTTP/1.1 ") == (not is_answered)

    assert (serve_here(model, ask), caplog.messages) == ([], [])


@pytest.mark.parametrize(("seconds", "largest"), [(0.0, 2048), (TIMEOUT, 64 * 1024)])
def test_a_connection_whose_bytes_take_long_to_parse_is_read_in_small_pieces(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, seconds: float, largest: int
) -> None:
    pieces: list[int] = []

    def record(protocol: Any, data: bytes) -> None:
        pieces.append(protocol._piece_bytes)  # the size of the buffer, which may not be full
        receive(protocol, data)

    def ask(connection: socket.socket) -> None:
        connection.sendall(head("POST", "/none", 1_000_000) + bytes(1_000_000))
        assert read_answer(connection)[0] == 404

    receive = H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", record)
    monkeypatch.setattr(server_module, "_PIECE_SECONDS", seconds)
    assert serve_here(model, ask) == []
    assert max(pieces) == largest


def test_what_is_no_http_is_refused(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    with server.connect() as connection:
        with contextlib.suppress(OSError):  # it may have hung up already
            for _ in range(100):
                connection.sendall(b"a" * 10_000)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert server.ask("GET", "/healthz")[0] == 200


def ask_in_threads(server: Server, number: int, answers: list[Any]) -> Sequence[threading.Thread]:
    def ask() -> None:
        with contextlib.suppress(OSError, IndexError):  # of a server that has ended
            answers.append(server.ask("POST", PREDICT, DOUBLE))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


def test_after_sigterm_requests_in_progress_are_answered_and_no_others(folder: Path) -> None:
    answers: list[Any] = []
    with serve(folder, "--max_delay_ms=3000", "--max_batch_size=8") as server:
        threads = ask_in_threads(server, 5, answers)  # they wait for three more
        server.wait_for_requests(5)
        server.process.send_signal(signal.SIGTERM)
        while (health := server.ask("GET", "/healthz")) == (200, {"status": "ready"}):
            time.sleep(0.01)
        assert health == (503, {"status": "draining"})
        stopping = {"error": "the server is stopping: ask another server"}
        assert server.ask("POST", PREDICT, DOUBLE) == (503, stopping)
        for thread in threads:
            thread.join(TIMEOUT)
        assert answers == [(200, {"predictions": [[2.0, 4.0]]})] * 5
        _, errors = server.process.communicate(timeout=TIMEOUT)
    assert server.process.returncode == 143
    assert errors.splitlines()[-1] == "lingo: stopped by SIGTERM; nothing had to be saved"
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_a_second_signal_ends_a_server_at_once(folder: Path) -> None:
    with serve(folder, "--max_delay_ms=600000") as server:
        ask_in_threads(server, 1, [])
        server.wait_for_requests(1)
        begin = time.monotonic()
        while server.process.poll() is None:
            assert time.monotonic() - begin < 30  # the request would take 60 s
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
    assert server.process.returncode == -signal.SIGTERM


def test_a_second_signal_is_obeyed_with_nothing_in_progress_unless_it_is_ignored(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_AGAIN_SECONDS", 0.0)
    service = Service(model, LIMITS, report=print)

    async def stop() -> None:
        signals.received = signal.SIGTERM
        assert await server_module._Server(service, signals, report=print, on_ready=print).on_tick(
            1
        )
        async with asyncio.timeout(TIMEOUT):
            while signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
                await asyncio.sleep(0)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with Signals() as signals:
            asyncio.run(stop())
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_batch_that_does_not_end_is_waited_for_until_a_second_signal(model, monkeypatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(Service, "close", lambda self: found.append(signal.getsignal(15)))
    stop = functools.partial(signal.raise_signal, signal.SIGTERM)
    with bind("127.0.0.1", 0) as bound, pytest.raises(Stop):
        server_module.serve(model, LIMITS, bound, report=print, on_ready=stop)
    assert found == [signal.SIG_DFL]


def test_an_address_in_use_is_an_error_before_the_model_is_read(folder: Path) -> None:
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(ParamError, match=f"--host=127.0.0.1 --port={port} cannot be used: Add"):
            bind("127.0.0.1", port)
    with pytest.raises(ParamError, match=r"--host=a\.\.b --port=1 cannot be used: it is not a"):
        bind("a..b", 1)
    with pytest.raises(ParamError, match=r"--host=no\.such\.host\.invalid --port=1 cannot be used"):
        bind("no.such.host.invalid", 1)


def test_an_address_that_another_took_since_is_an_error(model: ServedModel) -> None:
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with bind("127.0.0.1", port) as bound:
            other.listen()
            with pytest.raises(ParamError, match=f"--host=127.0.0.1 --port={port} cannot be used"):
                server_module.serve(model, LIMITS, bound, report=print, on_ready=print)


@pytest.mark.parametrize(
    "start",
    [
        b"GET /healthz HTTP/3.7\r\nHost: here\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: here\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /v1/models/small:predict HTTP/1.1\r\nHost: here\r\nContent-Length: -5\r\n\r\n",
        b"GET /v1/models/\xff\xfe HTTP/1.1\r\nHost: here\r\n\r\n",
    ],
    ids=["version", "header", "path", "no host", "length", "bytes"],
)
def test_a_head_that_is_none_is_answered_by_400(server: Server, start: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(start)
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")
    assert server.ask("GET", "/healthz")[0] == 200
