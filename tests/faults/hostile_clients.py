"""Clients that attack `lingo serve`, and one that asks for its health.

    attack    one client per attack; each begins again when its answer or its end is there
    probe     GET /healthz five times a second, whether or not the last one is answered

Each is for a process of its own: other work of that process would delay its clients.
"""

import asyncio
import collections
import gzip
import json
import math
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

PATIENCE = 60.0  # seconds in which a server has to answer an attack, or to hang up
CLOSED = "closed"  # by the server, without an answer
OPEN = "open"  # neither answered nor closed within PATIENCE
LEFT = "left"  # by the client, as the attack wants it
PAUSE_SECONDS = 0.05  # from one attack of a client to the next, at least
PROBE_SECONDS = 0.2  # from one probe to the next
READY = b'{"status":"ready"}'

Counts = Mapping[str, int]
"""Status of an answer, CLOSED, OPEN or LEFT -> how often it was the end of an attack."""


class Attack(NamedTuple):
    """The bytes that a client sends, and the right end, unless the server hangs up before."""

    sent: bytes
    end: str
    is_read: bool = True  # else the client takes no answer


def make_attacks(model: str, key: str) -> dict[str, Attack]:
    """Returns the attacks on a server of a language model, by name."""
    predict = f"/v1/models/{model}:predict"
    keys = f"Authorization: Bearer {key}\r\n"

    def post(body: bytes, headers: str = keys, *, length: int | None = None) -> bytes:
        size = len(body) if length is None else length
        start = f"POST {predict} HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {size}\r\n\r\n"
        return start.encode() + body

    def stream(chunks: bytes) -> bytes:
        start = f"POST {predict} HTTP/1.1\r\nHost: h\r\n{keys}Transfer-Encoding: chunked\r\n\r\n"
        return start.encode() + chunks

    def get(path: str, headers: str = "", *, version: str = "1.1") -> bytes:
        return f"GET {path} HTTP/{version}\r\nHost: h\r\n{keys}{headers}\r\n".encode()

    def ask(signature: str, instances: str) -> bytes:
        return f'{{"signature_name": "{signature}", "instances": {instances}}}'.encode()

    def ask_ids(ids: str) -> bytes:
        names = "tokens", "targets", "segments", "positions"
        return ask("score", f"[{{{', '.join(f'{json.dumps(name)}: [{ids}]' for name in names)}}}]")

    valid = ask("score_text", '["import numpy"]')
    many_headers = "".join(f"a{i}:\r\n" for i in range(1500))
    chunk = b"f4240\r\n" + bytes(1_000_000) + b"\r\n"
    return {
        "a text of 30 kB": Attack(post(ask("score_text", json.dumps(["a" * 30_000]))), "413"),
        "a text of 8 MB": Attack(post(ask("score_text", json.dumps(["a" * 7_900_000]))), "413"),
        "8 MB of empty lists": Attack(post(ask("score_text", f"[{2_600_000 * '[],'}[]]")), "413"),
        "a million instances": Attack(post(ask("score_text", f"[{999_999 * '1,'}1]")), "413"),
        "33 instances": Attack(post(ask("score_text", json.dumps(["a"] * 33))), "413"),
        "a body of 12 MB": Attack(post(bytes(12_000_000)), "413"),
        "chunks of 12 MB": Attack(stream(12 * chunk + b"0\r\n\r\n"), "413"),
        "chunks of one byte": Attack(stream(2_000_000 * b"1\r\n \r\n"), "408"),
        "a chunk without a size": Attack(stream(b'5\r\n{"ins\r\nsize\r\n'), "400"),
        "lists in lists": Attack(post(ask("score", 30_000 * "[" + 30_000 * "]")), "400"),
        "NaN": Attack(post(ask_ids("NaN, 1e999, -Infinity")), "400"),
        "a number of 400 digits": Attack(post(ask_ids("1" * 400)), "400"),
        "a number of 8 MB": Attack(post(ask_ids("1" * 1_900_000)), "400"),
        "ids of no token": Attack(post(ask_ids("5, 2147483647")), "400"),
        "bytes that are no JSON": Attack(post(bytes(range(256)) * 4000), "400"),
        "a form": Attack(
            post(b"instances=a", f"{keys}Content-Type: application/x-www-form-urlencoded\r\n"),
            "400",
        ),
        "gzip": Attack(post(gzip.compress(valid), f"{keys}Content-Encoding: gzip\r\n"), "400"),
        "no HTTP": Attack(b"\x16\x03\x01" + bytes(range(256)) * 40 + b"\r\n\r\n", "400"),
        "a head of 200 kB": Attack(get("/healthz", f"X: {200_000 * 'a'}\r\n"), "400"),
        "a head of 1,500 headers": Attack(get("/v1/models/none", many_headers), "404"),
        "HTTP/3.7": Attack(get("/healthz", version="3.7"), "400"),
        "two lengths": Attack(post(valid, f"{keys}Content-Length: 1\r\n"), "400"),
        "a length of 4,001 digits": Attack(post(b"", length=10**4000), "400"),
        "another method": Attack(post(valid).replace(b"POST", b"DELETE", 1), "405"),
        "no key": Attack(post(valid, ""), "401"),
        "another key": Attack(post(valid, keys.replace(key, key[:-1] + "?")), "401"),
        "half a head": Attack(post(valid)[:40], CLOSED),
        "half a body": Attack(post(valid, length=1000), "408"),
        "leaves before the answer": Attack(post(valid), LEFT, is_read=False),
        "leaves within a body": Attack(post(valid, length=1000), LEFT, is_read=False),
        "takes no answers": Attack(100_000 * get(f"/v1/models/{model}/metadata"), CLOSED, False),
    }


def attack(model: str, key: str, port: int, seconds: float) -> Mapping[str, Counts]:
    """Attacks a server of this machine for some time; returns the counts of each attack."""
    attacks = make_attacks(model, key)
    counts = {name: collections.Counter[str]() for name in attacks}
    end = time.monotonic() + seconds

    async def repeat(name: str) -> None:
        while time.monotonic() < end:
            pause = asyncio.create_task(asyncio.sleep(PAUSE_SECONDS))
            counts[name][await _carry_out(attacks[name], port)] += 1
            await pause

    async def repeat_all() -> None:
        async with asyncio.TaskGroup() as group:
            for name in attacks:
                group.create_task(repeat(name))

    asyncio.run(repeat_all())
    return counts


async def _carry_out(attack: Attack, port: int) -> str:
    """Sends an attack over a connection of its own; returns how it ends."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        if not attack.is_read:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        try:
            async with asyncio.timeout(PATIENCE):
                try:
                    await loop.sock_sendall(connection, attack.sent)
                except ConnectionError:  # the answer may be there all the same
                    if not attack.is_read:
                        return CLOSED
                if not attack.is_read:
                    return LEFT
                start = await loop.sock_recv(connection, 100)
                return start.split()[1].decode() if start else CLOSED
        except ConnectionError:
            return CLOSED
        except TimeoutError:
            return OPEN


def probe(port: int, seconds: float) -> list[float]:
    """Asks a server of this machine for its health; returns the seconds that each answer takes.

    They are infinite where the answer is not 200.
    """

    async def ask() -> float:
        begin = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        except OSError:
            return math.inf
        is_ready = answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(READY)
        return time.monotonic() - begin if is_ready else math.inf

    async def ask_often() -> list[float]:
        asked: list[asyncio.Task[float]] = []
        async with asyncio.TaskGroup() as group:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                asked.append(group.create_task(ask()))
                await asyncio.sleep(PROBE_SECONDS)
        return [task.result() for task in asked]

    return asyncio.run(ask_often())
