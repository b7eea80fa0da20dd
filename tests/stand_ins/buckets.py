"""Servers that answer as buckets do, for tests; a proxy of one makes trouble."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import socket
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

BUCKET = "bucket"


def memory_bucket() -> str:
    """Returns the name of a bucket in this process's memory that nothing has used."""
    return f"b{uuid.uuid4().hex}"


class Server(NamedTuple):
    """A server of buckets on this machine."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds the server, and is let in."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextlib.contextmanager
def s3_server() -> Iterator[Server]:
    """Yields moto's server with an empty `BUCKET`."""
    pytest.importorskip("s3fs", reason="needs s3fs and moto, of the extra dev")
    moto = pytest.importorskip("moto.server", reason="needs moto, of the extra dev")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        connection = http.client.HTTPConnection(host, port)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        yield Server(f"http://{host}:{port}")
    finally:
        server.stop()


# ---- a proxy that makes trouble ------------------------------------------------------------------

TROUBLE = ("500", "503", "slow", "cut before", "cut after", "half")
SLOW_SECONDS = 0.5


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a server; a part of them, drawn by chance, meets trouble.

    500, 503      an answer of the proxy's own; the server hears nothing
    slow          the answer comes late
    cut before    the connection ends before the server hears of the request
    cut after     the server has done it, but the connection ends before the answer
    half          the connection ends within the answer
    """

    daemon_threads = True

    def __init__(self, target: str, *, part: float, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = urllib.parse.urlsplit(target).netloc
        self.part = part
        self.counts = dict.fromkeys(TROUBLE, 0)
        self._draw, self._lock = random.Random(seed), threading.Lock()

    def draw_trouble(self) -> str:
        """Returns what happens to the next request, "" for nothing."""
        with self._lock:
            if self._draw.random() >= self.part:
                return ""
            trouble = self._draw.choice(TROUBLE)
            self.counts[trouble] += 1
            return trouble

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of connections that clients end."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client of the proxy."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def answer(self) -> None:
        """Answers a request of any method."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.server.draw_trouble()
        if trouble in ("500", "503"):
            code = "InternalError" if trouble == "500" else "SlowDown"
            return self.send(int(trouble), {}, f"<Error><Code>{code}</Code></Error>".encode())
        if trouble == "cut before":
            return self.cut()
        if (refusal := self.refusal()) is not None:
            return self.send(*refusal)
        status, headers, content = self.forward(body)
        if trouble == "slow":
            time.sleep(SLOW_SECONDS)
        if trouble == "cut after":
            return self.cut()
        return self.send(status, headers, content, is_half=trouble == "half")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = answer

    def refusal(self) -> tuple[int, dict[str, str], bytes] | None:
        """Returns an answer in place of the server's, or None."""
        return None

    def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Returns the server's answer: status, headers and content."""
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        left_out = ("connection", "expect", "transfer-encoding")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
        connection.request(self.command, self.path, body=body or None, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def send(
        self, status: int, headers: dict[str, str], content: bytes, *, is_half: bool = False
    ) -> None:
        """Sends an answer, or the first half of its content."""
        self.send_response_only(status)
        left_out = ("connection", "transfer-encoding", "content-length")
        for name, value in headers.items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        size = headers.get("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", size or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if is_half else content)
        if is_half:
            self.cut()

    def cut(self) -> None:
        """Ends the connection."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def proxy(server: Server, *, part: float) -> Iterator[Proxy]:
    """Yields a proxy of a server with trouble in a part of the requests."""
    found = Proxy(server.url, part=part)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()
        thread.join()
