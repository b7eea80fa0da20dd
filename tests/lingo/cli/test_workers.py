"""Real processes as workers: what they are told, what is shown of them, and how they end."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from lingo.cli import workers
from lingo.cli.workers import Ending, Patience, first_failed, free_addresses
from lingo.processes.signals import Signals
from lingo.storage.files import StorageError

PATIENCE = Patience(grace=0.3, kill=0.3)
WHO = "import os, json; me = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


def program(code: str) -> list[str]:
    return [sys.executable, "-c", WHO + "import sys, time, signal\n" + code]


def run(code: str, number: int = 2, *, logs: pathlib.Path | None = None) -> list[Ending]:
    addresses = free_addresses(number)
    return workers.run(program(code), addresses, signals=Signals(), logs=logs, patience=PATIENCE)


def codes(endings: list[Ending]) -> dict[int, int]:
    return {ending.index: ending.code for ending in endings}


def test_each_worker_learns_who_it_is(tmp_path: pathlib.Path) -> None:
    endings = run(f"open(f'{tmp_path}/{{me}}', 'w').write(os.environ['TF_CONFIG'])", 3)
    assert codes(endings) == {0: 0, 1: 0, 2: 0}
    found = [json.loads((tmp_path / str(index)).read_text()) for index in range(3)]
    assert [one["task"] for one in found] == [{"type": "worker", "index": i} for i in range(3)]
    (addresses,) = {tuple(one["cluster"]["worker"]) for one in found}
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_lines_are_shown_with_the_number_of_their_worker(tmp_path, capfdbinary):
    said = "os.write(1, b'one\\ntwo' + bytes([me, 255])); os.write(2, b'wrong\\n')"
    run(said, logs=tmp_path / "logs")
    out, err = capfdbinary.readouterr()
    assert sorted(out.splitlines()) == [
        b"[0] one", b"[0] two\x00\xff", b"[1] one", b"[1] two\x01\xff"
    ]  # fmt: skip
    assert sorted(err.splitlines()) == [b"[0] wrong", b"[1] wrong"]
    log = (tmp_path / "logs/worker_1.log").read_bytes().splitlines()
    assert sorted(log) == [b"one", b"two\x01\xff", b"wrong"]


def test_a_log_goes_on_after_what_it_holds(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        run("print(me)", 1, logs=tmp_path)
    assert (tmp_path / "worker_0.log").read_text() == "0\n0\n"


def test_a_log_that_cannot_be_written_starts_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        run(f"open('{tmp_path}/started', 'w')", logs=tmp_path / "file")
    assert not (tmp_path / "started").exists()


def test_the_others_are_waited_for_when_one_has_ended() -> None:
    assert codes(run("time.sleep(0.1 * me); sys.exit(3 * me)")) == {0: 0, 1: 3}


def test_those_that_do_not_end_are_told_to_and_then_killed() -> None:
    assert codes(run("time.sleep(60 * me)")) == {0: 0, 1: -signal.SIGTERM}
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60 * me + 0.2)"
    assert codes(run(deaf)) == {0: 0, 1: -signal.SIGKILL}


def test_one_that_is_stopped_is_not_waited_for() -> None:
    stops = "time.sleep(0.2) if me == 0 else os.kill(os.getpid(), signal.SIGSTOP)"
    started = time.monotonic()
    endings = workers.run(program(stops), free_addresses(2), signals=Signals())
    assert codes(endings) == {0: 0, 1: -signal.SIGKILL}
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_every_worker_once(number: int, tmp_path: pathlib.Path) -> None:
    heeds = f"""
def heed(number, frame):
    with open(f'{tmp_path}/heard', 'a') as file: file.write(f'{{me}} {{number}}\\n')
    time.sleep(0.2)
    sys.exit(128 + number)
signal.signal({int(number)}, heed)
open(f'{tmp_path}/ready{{me}}', 'w')
time.sleep(60)
"""

    # whoever runs the tests may ignore SIGHUP, as `nohup` does: then it stays ignored
    before = signal.signal(number, signal.SIG_DFL)

    def send() -> None:
        while not all((tmp_path / f"ready{index}").exists() for index in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    with Signals() as signals:
        sender.start()
        endings = workers.run(program(heeds), free_addresses(2), signals=signals)
    sender.join()
    signal.signal(number, before)
    assert codes(endings) == {0: 128 + number, 1: 128 + number}
    heard = sorted((tmp_path / "heard").read_text().splitlines())
    assert heard == [f"0 {int(number)}", f"1 {int(number)}"]


def test_no_worker_outlives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def fail(processes: list, *_: object) -> list[Ending]:
        started.extend(process.pid for process in processes)
        raise RuntimeError

    monkeypatch.setattr(workers, "_wait_for_workers", fail)
    with pytest.raises(RuntimeError):
        run("time.sleep(60)")
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([(0, 0), (1, 0)], None),
        ([(1, 1), (0, 7)], (0, 7)),
        ([(1, -9), (0, 1)], (1, -9)),
        ([(1, 1), (0, 1)], (1, 1)),
        ([(1, 0), (0, 143), (2, 2)], (0, 143)),
    ],
)
def test_the_first_that_failed_for_a_reason_of_its_own_is_named(ended, expected):
    assert first_failed([Ending(*one) for one in ended]) == expected


def test_how_a_worker_ended_in_words_and_as_a_shell_has_it() -> None:
    killed, failed = Ending(0, -9), Ending(1, 7)
    assert (killed.words, killed.exit_code) == ("was killed by SIGKILL", 137)
    assert (failed.words, failed.exit_code) == ("ended with code 7", 7)


LAUNCH = """
from lingo.cli import workers
from lingo.processes.signals import Signals
print(workers.run({program}, workers.free_addresses(1), signals=Signals()))
"""


def test_ctrl_z_suspends_the_workers_with_their_launcher(tmp_path: pathlib.Path) -> None:
    own, end = tmp_path / "pid", tmp_path / "end"
    code = f"open('{own}', 'w').write(str(os.getpid()))\n"
    code += f"while not os.path.exists('{end}'): time.sleep(0.01)"
    text = LAUNCH.format(program=program(code))
    launcher = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    wait_until(lambda: own.exists() and own.read_text() != "")
    processes = [launcher.pid, int(own.read_text())]
    launcher.send_signal(signal.SIGTSTP)
    wait_until(lambda: [state(process) for process in processes] == ["T", "T"])
    launcher.send_signal(signal.SIGCONT)
    wait_until(lambda: "T" not in [state(process) for process in processes])
    end.touch()
    assert b"Ending(index=0, code=0)" in launcher.communicate(timeout=300)[0]


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def state(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
