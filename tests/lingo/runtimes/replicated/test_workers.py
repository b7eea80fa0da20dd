"""Processes meet: all of them, strangers not, and nobody waits for ever."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lingo.cli.workers import free_addresses
from lingo.processes.processes import Cluster, LostWorker
from lingo.runtimes.replicated.workers import meet


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_all_meet_whoever_comes_last():
    workers, left = tuple(free_addresses(3)), []

    def come(index: int) -> None:
        time.sleep(0.2 * index)
        meet(Cluster(workers, index), timeout_seconds=20)
        left.append(time.monotonic())

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(come, [2, 0, 1]))
    assert max(left) - min(left) < 2.0


@pytest.mark.parametrize(("index", "missing"), [(0, 1), (1, 0)])
def test_one_that_does_not_come_is_named(index, missing):
    workers = tuple(free_addresses(2))
    with pytest.raises(LostWorker, match=rf"worker {missing} \(127.0.0.1:.*\) did not connect"):
        meet(Cluster(workers, index), timeout_seconds=0.5)


def test_a_stranger_and_one_that_comes_again_change_nothing() -> None:
    workers = tuple(free_addresses(3))
    host, _, port = workers[0].rpartition(":")
    with ThreadPoolExecutor(3) as threads:
        met = [threads.submit(meet, Cluster(workers, 0), timeout_seconds=60)]
        while not listens(host, int(port)):
            assert not met[0].done()
        for words in (b"GET / HTTP/1.1\r\n", b"lingo worker 7", b"lingo worker 1"):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(words)
        met += [threads.submit(meet, Cluster(workers, i), timeout_seconds=60) for i in (1, 2)]
        for one in met:
            one.result(timeout=60)


def test_workers_of_one_machine_are_met_by_no_other():
    with socket.socket() as own, ThreadPoolExecutor(1) as threads:
        own.bind(("127.0.0.1", 0))  # and does not listen: nobody else gets the port
        port = own.getsockname()[1]
        workers = (f"127.0.0.2:{port}", "127.0.0.1:1")
        leader = threads.submit(meet, Cluster(workers, 0), timeout_seconds=20)
        while not listens("127.0.0.2", port):
            assert not leader.done()
        assert not listens("127.0.0.1", port)
        meet(Cluster(workers, 1), timeout_seconds=20)
        leader.result(timeout=20)


def test_an_address_that_is_taken_is_said_to_be():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(LostWorker, match="cannot listen at its address"):
            meet(Cluster((taken, "127.0.0.1:1"), 0), timeout_seconds=0.5)
