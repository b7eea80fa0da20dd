"""The load test finds answers that are lost or of another request."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from tools.bench import serve
from tools.bench.serve import Load, Server, report_load, send_load
from tools.harness import Report

EXPECTED = {"a": -1.0, "b": -2.0, "c": -3.0}


async def load_of(wrong: dict[str, Any]) -> Load:
    """Returns what clients see of a server that answers some texts with another body."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            (text,) = json.loads(await reader.readexactly(size))["instances"]
            score = wrong.get(text, EXPECTED[text])
            status = "200 OK" if score is not None else "503 Service Unavailable"
            body = json.dumps({"predictions": [{"log_prob": score}]}).encode()
            start = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            writer.write(start + body)

    def start(reader: Any, writer: Any) -> asyncio.Task[None]:
        task = asyncio.ensure_future(answer(reader, writer))
        task.add_done_callback(lambda done: (done.exception(), writer.close()))
        return task

    server = await asyncio.start_server(lambda r, w: (start(r, w), None)[1], "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    load = await send_load(Server(os.getpid(), port), EXPECTED, num_clients=3, seconds=0.2)
    server.close()
    return load


@pytest.mark.parametrize(
    ("wrong", "missed"),
    [({}, []), ({"b": -1.0}, ["mixed answers"]), ({"c": None}, ["lost answers"])],
)
def test_a_lost_or_mixed_answer_is_a_miss(wrong, missed, monkeypatch, capsys) -> None:
    monkeypatch.setattr(serve, "WARM_SECONDS", 0)
    load = asyncio.run(load_of(wrong))
    report = Report()
    report_load(load, report)
    capsys.readouterr()
    assert report.exit_code() == bool(missed)
    names = [line.partition(" is ")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [f"missed: {name}" for name in missed]
    assert load.rate.per_second > 0
    assert load.megabytes[0] > 10
