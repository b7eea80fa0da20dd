"""Who is who, as TF_CONFIG says it; and a process that is alone."""

import json
from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.processes.processes import ALONE, Cluster, cluster
from lingo.runtimes.local import Local
from lingo.runtimes.program import ProgramError

A, B, C = "10.0.0.1:4000", "[::1]:4001", "host-3:4002"


def read(cluster_: Any, task: Any = None) -> Cluster | None:
    config = {"cluster": cluster_} | ({} if task is None else {"task": task})
    return cluster({"TF_CONFIG": json.dumps(config)})


def worker(index: Any, kind: str = "worker") -> dict[str, Any]:
    return {"type": kind, "index": index}


def test_workers_are_numbered_as_listed():
    assert read({"worker": [A, B, C]}, worker(2)) == Cluster((A, B, C), 2)
    assert read({"worker": [A, B]}, {"index": 1}) == Cluster((A, B), 1)


def test_a_chief_is_the_first_worker():
    chief_and_two = {"chief": [A], "worker": [B, C]}
    assert read(chief_and_two, worker(0, "chief")) == Cluster((A, B, C), 0)
    assert read(chief_and_two, worker(1)) == Cluster((A, B, C), 2)


ONE = '{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}'


@pytest.mark.parametrize("text", [None, "", " ", "{}", '{"cluster": {}}', ONE])
def test_without_other_workers_a_process_is_alone(text):
    assert cluster({} if text is None else {"TF_CONFIG": text}) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "TF_CONFIG is not JSON: "),
        ("[" * 100_000, "TF_CONFIG is not JSON: "),
        ("[]", r"cluster is \[\], not a table"),
        ('{"cluster": 3}', "cluster is 3, not a table"),
        ('{"cluster": {"ps": ["a:1"]}}', "names no worker"),
        ('{"cluster": {"worker": "a:1"}}', "cluster.worker is 'a:1', not a list of host:port"),
        ('{"cluster": {"worker": ["a"]}}', r"cluster.worker is \['a'\], not a list of host:port"),
        ('{"cluster": {"worker": ["a:0"]}}', "not a list of host:port"),
        ('{"cluster": {"worker": ["a:99999"]}}', "not a list of host:port"),
        ('{"cluster": {"worker": ["a b:1"]}}', "not a list of host:port"),
        ('{"cluster": {"worker": ["a:1", "b:1", "a:1"]}}', "two workers have the address a:1"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}}', "has 2 chiefs and 0 workers"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": 0}', "task is 0, not a table"),
    ],
)
def test_what_is_no_cluster_is_refused(text, said):
    with pytest.raises(ParamError, match=said):
        cluster({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (None, "task.index is None, but there are 2 of type 'worker': 0 to 1"),
        (worker(2), "task.index is 2, but there are 2"),
        (worker(-1), "task.index is -1"),
        (worker(True), "task.index is True"),
        (worker("0"), "task.index is '0'"),
        (worker(0, "evaluator"), "task.type is 'evaluator': .* lingo eval --run=DIR --watch"),
        (worker(0, "chief"), "there are 0 of type 'chief'"),
    ],
)
def test_a_task_that_is_not_there_is_refused(task, said):
    with pytest.raises(ParamError, match=said):
        read({"worker": [A, B]}, task)


def test_a_runtime_of_one_process_refuses_several(monkeypatch):
    assert Local.params().build().join() is ALONE
    config = {"cluster": {"worker": [A, B]}, "task": worker(1)}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(
        ParamError, match=r"runtime=Local computes in one process, .* 2 workers: set"
    ):
        Local.params().build().join()


def test_who_is_alone_agrees_with_itself():
    with ALONE as processes:
        assert (processes.index, processes.count, processes.is_leader) == (0, 1, True)
        assert processes.any(True)
        assert not processes.any(False)
        assert processes.max(15) == 15
        processes.barrier("here")
        assert processes.share("name", "value") == "value"
        error = ProgramError("no memory")
        assert processes.blame(error) is error
        with pytest.raises(ValueError, match="the leader has no value for 'name'"):
            processes.share("name", None)
