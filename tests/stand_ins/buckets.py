"""Servers that answer as buckets do, for tests; a proxy of one makes trouble."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import importlib.util
import json
import pathlib
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
            "STORAGE_EMULATOR_HOST": self.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else it asks by gRPC, and waits
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
    kinds: tuple[str, ...]

    def __init__(self, target: str, *, part: float, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.target = urllib.parse.urlsplit(target).netloc
        self.part, self.kinds = part, TROUBLE
        self.counts = dict.fromkeys(TROUBLE, 0)
        self._draw, self._lock = random.Random(0), threading.Lock()

    def draw_trouble(self) -> str:
        """Returns what happens to the next request, "" for nothing."""
        with self._lock:
            if self._draw.random() >= self.part:
                return ""
            trouble = self._draw.choice(self.kinds)
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
    body: bytes = b""

    def answer(self) -> None:
        """Answers a request of any method."""
        self.body = body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.server.draw_trouble()
        if trouble in ("500", "503"):
            code = "InternalError" if trouble == "500" else "SlowDown"
            return self.send(int(trouble), {}, f"<Error><Code>{code}</Code></Error>".encode())
        if trouble == "cut before":
            return self.cut()
        status, headers, content = self.ask(body)
        if trouble == "slow":
            time.sleep(SLOW_SECONDS)
        if trouble == "cut after":
            return self.cut()
        return self.send(status, headers, content, is_half=trouble == "half")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = answer

    def ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
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
def proxy(server: Server, *, part: float, handler: type[Handler] = Handler) -> Iterator[Proxy]:
    """Yields a proxy of a server with trouble in a part of the requests."""
    found = Proxy(server.url, part=part, handler=handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


# ---- web servers ---------------------------------------------------------------------------------


class WebServer(http.server.ThreadingHTTPServer):
    """Serves the files of a folder by ranges, with ETags and index pages, as nginx does."""

    daemon_threads = True
    has_ranges = has_versions = has_index_pages = True

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(("127.0.0.1", 0), WebHandler)
        self.folder = folder
        self.requests: list[str] = []  # "path range" of each

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of connections that clients end."""


class WebHandler(http.server.BaseHTTPRequestHandler):
    """One connection of a client of a web server."""

    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self) -> None:
        """Answers with a file, a part of it, or an index page."""
        name = urllib.parse.unquote(self.path)
        path, asked = self.server.folder / name.lstrip("/"), self.headers.get("Range", "")
        self.server.requests.append(f"{name} {asked}")
        if path.is_dir() and not name.endswith("/"):
            return self.send(301, b"", Location=f"{self.path}/")
        if path.is_dir():
            names = (f"{p.name}/" if p.is_dir() else p.name for p in sorted(path.iterdir()))
            links = ("../", "?C=N;O=D", *map(urllib.parse.quote, names))
            page = "".join(f'<a href="{link}">x</a>' for link in links).encode()
            status = 200 if self.server.has_index_pages else 403
            return self.send(status, page, **{"Content-Type": "text/html"})
        if not path.is_file() or ".." in name:
            return self.send(404, b"none")
        data, headers = path.read_bytes(), dict[str, str]()
        if self.server.has_versions:
            headers["ETag"] = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        if not asked or not self.server.has_ranges:
            return self.send(200, data, **headers)
        start, stop = (int(end) for end in asked.removeprefix("bytes=").split("-"))
        if start >= len(data):
            return self.send(416, b"", **{"Content-Range": f"bytes */{len(data)}"}, **headers)
        part = data[start : stop + 1]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        return self.send(206, part, **headers)

    def send(self, status: int, content: bytes, **headers: str) -> None:
        """Sends an answer."""
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def web_server(folder: pathlib.Path) -> Iterator[WebServer]:
    """Yields a web server of a folder's files."""
    pytest.importorskip("aiohttp", reason="needs aiohttp, of the extra https")
    found = WebServer(folder)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


# ---- Google's ------------------------------------------------------------------------------------


class GenerationHandler(Handler):
    """Refuses to write an object that exists if the request wants generation 0, as Google does.

    The emulator itself ignores `ifGenerationMatch`.
    """

    one_at_a_time = threading.Lock()  # else two requests might both find that there is no object

    def ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Returns the emulator's answer, or 412 for an object that exists."""
        with self.one_at_a_time:
            return self.refusal() or super().ask(body)

    def refusal(self) -> tuple[int, dict[str, str], bytes] | None:
        """Returns 412 if a request may only make an object, and there is one."""
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query)
        if self.command != "POST" or query.get("ifGenerationMatch") != ["0"]:
            return None
        name = query.get("name", [None])[0] or self.named_in_body()
        path = f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}"
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        text = b'{"error": {"code": 412, "message": "conditionNotMet"}}'
        return (412, {"Content-Type": "application/json"}, text) if status == 200 else None

    def named_in_body(self) -> str:
        """Returns the name of the object in the metadata before the content."""
        return str(json.loads(self.body.split(b"\n\n", 2)[1].split(b"\n--==0==")[0])["name"])


@contextlib.contextmanager
def gcs_server() -> Iterator[Server]:
    """Yields an emulator of Google's storage, behind a proxy that enforces generations."""
    if importlib.util.find_spec("gcsfs") is None:  # imported, it would not see `environment`
        pytest.skip("needs gcsfs, of the extra dev")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs the extra dev")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    try:
        port = server._api._httpd.server_address[1]
        with proxy(
            Server(f"http://127.0.0.1:{port}"), part=0.0, handler=GenerationHandler
        ) as found:
            yield Server(found.url)
    finally:
        server.stop()
