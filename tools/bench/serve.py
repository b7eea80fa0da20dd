"""`lingo serve` under load: 200 clients at once for two minutes, each answer compared.

A run of `lm.source.tiny` that is trained for some steps is exported and served. Each client sends a
text of 256 bytes, waits for its score, and sends the next. The texts are chosen so that no two have
nearly the same score, which the model computes before, one text at a time, without a server: an
answer to another text is found.

Two loops with a batch of 1 are what the throughput is compared with: requests of one client to a
server that makes no batches; and calls of the model in this process, before and after, while the
server is idle. The second has no HTTP to pay for, and on few processors batches gain it little:
its matrix products are large enough for one. Beside each rate are the milliseconds of processors
that an answer costs, which other work on the machine changes less.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

import lingo
from lingo.config.lazy import tf
from lingo.export.reader import load_saved_model
from tools.harness import Report, at_least, at_most, choose, spread

EXPERIMENT = choose("lm.source.tiny", small="lm.source.tiny(model_dim=16, num_layers=1)")
STEPS = choose(30, small=2)
TEXT_BYTES = 256
NUM_TEXTS = choose(1000, small=10)
TOLERANCE = 0.01  # nats; the sums of another batch size round otherwise
CLIENTS = choose(200, small=4)
SECONDS, LOOP_SECONDS = choose((120.0, 15.0), small=(2.0, 0.2))
WARM_SECONDS = choose(20.0, small=1.0)  # after which memory ought to stay
SAMPLE_SECONDS = choose(1.0, small=0.1)

Expected = Mapping[str, float]
"""Text -> its log-probability."""


class Rate(NamedTuple):
    """A throughput and its cost."""

    per_second: float
    cpu_seconds: float  # of all processors, for one

    def __str__(self) -> str:
        return f"{self.per_second:8.1f} {1000 * self.cpu_seconds:8.2f}"


class Load(NamedTuple):
    """What clients saw."""

    seconds: float
    cpu_seconds: float  # of the server
    latencies: list[float]  # of requests that were answered
    num_lost: int  # no answer, or an error
    num_mixed: int  # the answer to something else
    megabytes: list[float]  # of the server, every SAMPLE_SECONDS

    @property
    def rate(self) -> Rate:
        """The rate of right answers."""
        number = len(self.latencies) - self.num_mixed
        return Rate(number / self.seconds, self.cpu_seconds / max(1, number))


def export_model(folder: Path, experiment: str = EXPERIMENT, *, steps: int = STEPS) -> Path:
    """Trains a model for some steps, and returns its SavedModel's folder."""
    lingo.train(lingo.get(experiment, f"max_steps={steps}", "eval_inputs={}"), folder / "run")
    lingo.load(folder / "run").export(
        folder / "tiny", format="savedmodel", signatures=["predict", "score"]
    )
    return folder / "tiny"


def source_texts() -> Iterator[str]:
    """Yields pieces of TensorFlow's source."""
    for file in sorted(Path(tf.__file__).parent.rglob("python/ops/*.py")):
        text = file.read_text()
        for start in range(0, len(text) - TEXT_BYTES, TEXT_BYTES):
            piece = text[start : start + TEXT_BYTES]
            if piece.isascii():
                yield piece


class Loop:
    """Scores texts one at a time in this process."""

    def __init__(self, folder: Path) -> None:
        self._score = load_saved_model(folder)["score_text"]

    def score(self, text: str) -> float:
        """Returns the log-probability of a text, in nats."""
        return float(self._score({"text": np.array([text.encode()])})["log_prob"][0])

    def expect(self) -> Expected:
        """Returns texts whose scores differ by more than twice the tolerance."""
        expected: dict[str, float] = {}
        taken: set[int] = set()
        for text in source_texts():
            value = self.score(text)
            place = round(value / (4 * TOLERANCE))
            if not taken & {place - 1, place, place + 1}:
                taken.add(place)
                expected[text] = value
            if len(expected) == NUM_TEXTS:
                break
        return expected

    def rate(self, texts: Sequence[str]) -> Rate:
        """Returns how fast texts are scored."""
        begin, cpu_begin, count = time.perf_counter(), time.process_time(), 0
        while (seconds := time.perf_counter() - begin) < LOOP_SECONDS:
            self.score(texts[count % len(texts)])
            count += 1
        return Rate(count / seconds, (time.process_time() - cpu_begin) / count)


# ---- the server and its clients ------------------------------------------------------------------


class Server(NamedTuple):
    """A running `lingo serve`."""

    pid: int
    port: int
    key: str = ""

    def cpu_seconds(self) -> float:
        """Returns the time that the process has had on processors."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Returns the memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0


@contextlib.contextmanager
def start_server(
    folder: Path, *flags: str, key: str = "", errors: IO[str] | None = None
) -> Iterator[Server]:
    """Serves an export at a free port, and ends the server by SIGTERM.

    Args:
        folder: of the export.
        flags: further flags of `lingo serve`.
        key: the key that requests send; a server that wants one also needs --api_key_file.
        errors: the file that receives standard error; None: this process's standard error.
    """
    command = [sys.executable, "-m", "lingo.cli.main", "serve", f"--export={folder}", "--port=0"]
    with subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
        try:
            lines: Any = process.stdout
            address = next(line for line in lines if line.startswith("serving at"))
            yield Server(process.pid, int(address.split(":")[2].partition("/")[0]), key)
        finally:
            process.terminate()
            code = process.wait()
    if code != 143:
        raise RuntimeError(f"lingo serve ended with {code} after SIGTERM")


async def ask(reader: Any, writer: Any, text: str, *, key: str = "") -> float | None:
    """Returns the score that a server answers; None for an error."""
    body = json.dumps({"signature_name": "score_text", "instances": [text]}).encode()
    head = (
        "POST /v1/models/tiny:predict HTTP/1.1\r\nHost: h\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    content = json.loads(await reader.readexactly(length))
    return content["predictions"][0]["log_prob"] if b" 200 " in answer.splitlines()[0] else None


async def send_load(
    server: Server, expected: Expected, *, num_clients: int, seconds: float
) -> Load:
    """Returns what clients see that ask without a pause for some time."""
    texts, numbers = list(expected), itertools.count()
    latencies: list[float] = []
    errors = {"lost": 0, "mixed": 0}
    begin = time.perf_counter()

    async def ask_often() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while (start := time.perf_counter()) < begin + seconds:
            text = texts[next(numbers) % len(texts)]
            score = await ask(reader, writer, text, key=server.key)
            if score is None:
                errors["lost"] += 1
                continue
            latencies.append(time.perf_counter() - start)
            errors["mixed"] += abs(score - expected[text]) > TOLERANCE
        writer.close()

    async def client() -> None:
        try:
            await ask_often()
        except (OSError, EOFError, ValueError):
            errors["lost"] += 1

    async def watch(megabytes: list[float]) -> None:
        while True:
            megabytes.append(server.megabytes())
            await asyncio.sleep(SAMPLE_SECONDS)

    megabytes: list[float] = []
    cpu_begin = server.cpu_seconds()
    watcher = asyncio.create_task(watch(megabytes))
    await asyncio.gather(*(client() for _ in range(num_clients)))
    watcher.cancel()
    spent = time.perf_counter() - begin
    cpu_seconds = server.cpu_seconds() - cpu_begin
    return Load(spent, cpu_seconds, latencies, errors["lost"], errors["mixed"], megabytes)


# ---- the report ----------------------------------------------------------------------------------


def report_load(load: Load, report: Report) -> None:
    """Prints rates, latencies, errors and memory."""
    p50, p99 = np.percentile(load.latencies, [50, 99]).tolist()
    warm = load.megabytes[int(WARM_SECONDS / SAMPLE_SECONDS) :]
    quarter = max(1, len(warm) // 4)
    growth = float(np.median(warm[-quarter:]) / np.median(warm[:quarter]))
    report.table(f"{CLIENTS} clients for {load.seconds:.0f} s")
    report.line("answers per second", load.rate.per_second, note=f"{len(load.latencies)} answers")
    report.line("latency, p50, s", p50)
    report.line("latency, p99, s", p99)
    report.line("lost answers", load.num_lost, at_most(0))
    report.line("mixed answers", load.num_mixed, at_most(0))
    report.line("memory of the server, MB", spread(warm), note=f"after {WARM_SECONDS:.0f} s")
    report.line("memory, last quarter / first", growth, at_most(1.02))


def run(report: Report) -> None:
    """Trains, exports, serves and compares."""
    with tempfile.TemporaryDirectory() as place:
        folder = export_model(Path(place))
        loop = Loop(folder)
        expected = loop.expect()
        texts = list(expected)
        print(f"{len(expected)} texts of {TEXT_BYTES} bytes")
        before = loop.rate(texts)
        with start_server(folder) as server:
            load = asyncio.run(send_load(server, expected, num_clients=CLIENTS, seconds=SECONDS))
        after = loop.rate(texts)
        with start_server(folder, "--max_batch_size=1") as server:
            one = asyncio.run(send_load(server, expected, num_clients=1, seconds=LOOP_SECONDS))
    report_load(load, report)
    report.table("rate / that of a loop with a batch of 1", "of it: per second, ms")
    ours = load.rate
    report.line("its own", 1.0, note=str(ours))
    single = one.rate
    ratio = ours.per_second / single.per_second
    # Until answers were sent at once, one client waited 40 ms for each, and the bound was 3.
    report.line("requests of one client", ratio, at_least(2), note=str(single))
    for name, rate in (("calls, before", before), ("calls, after", after)):
        report.line(name, ours.per_second / rate.per_second, note=str(rate))
