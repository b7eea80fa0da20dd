"""The JobSet for Kubernetes, against the schema that JobSet publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lingo.config.params import ParamError
from lingo.launch.job import ENDED, Record, submit
from lingo.launch.kubernetes import Kubernetes
from lingo.processes.processes import cluster

SCHEMA = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
POD = 'image = "i:1"\nshared = "/"\nclaim = "runs"\n'
GPUS = """\
nodes = 2
devices = 8
cpus = 96
memory_gib = 500
time = "24:00:00"
account = "us"
queue = "big"
environment.A = 3
kubernetes.nodeSelector."cloud.google.com/gke-accelerator" = "nvidia-h100-80gb"
"""


def job_set(job: Any) -> dict[str, Any]:
    """Returns a job's JobSet after a check by the schema."""
    made = json.loads(Kubernetes().text(job))
    jsonschema.validate(made, SCHEMA)
    return made


def worker(made: dict[str, Any]) -> dict[str, Any]:
    return made["spec"]["replicatedJobs"][0]["template"]["spec"]


def test_workers_find_each_other_by_the_names_that_jobset_gives(job_for):
    made = job_set(job_for(POD + "nodes = 2\nworkers_per_node = 2\n"))
    job, name = worker(made), made["metadata"]["name"]
    variables = {v["name"]: v for v in job["template"]["spec"]["containers"][0]["env"]}
    assert [*variables].index("JOB_COMPLETION_INDEX") < [*variables].index("TF_CONFIG")
    for index in range(4):
        text = variables["TF_CONFIG"]["value"].replace("$(JOB_COMPLETION_INDEX)", str(index))
        found = cluster({"TF_CONFIG": text})
        assert found is not None
        assert found.index == index
        # <jobset>-<replicated job>-<job>-<pod>.<subdomain>, as JobSet documents it
        assert found.workers[index] == f"{name}-worker-0-{index}.{name}:4000"
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (4, 4, "Indexed")
    assert made["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": name}


def test_the_keys_become_fields(job_for):
    made = job_set(job_for(POD + GPUS))
    job = worker(made)
    pod = job["template"]["spec"]
    amounts = {"cpu": 96, "memory": "500Gi", "nvidia.com/gpu": 8}
    assert pod["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}
    assert pod["containers"][0]["command"] == ["lingo", "train", "--exp=tiny"]
    assert {"name": "A", "value": "3"} in pod["containers"][0]["env"]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pod["terminationGracePeriodSeconds"] == 300  # in which a worker saves
    assert job["activeDeadlineSeconds"] == 86_400 - 300
    assert made["metadata"]["namespace"] == "us"
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "big"}


def test_mistakes_are_not_started_again(job_for):
    made = job_set(job_for(POD + "max_requeues = 3"))
    (rule,) = worker(made)["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["values"] == [2, 3, 4, 5, 7, 8]
    policy = made["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 3
    assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_the_schema_refuses_what_jobset_does_not_know(job_for):
    made = job_set(job_for(POD))
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["restarts"] = 3
    with pytest.raises(jsonschema.ValidationError, match="'restarts' was unexpected"):
        jsonschema.validate(made, SCHEMA)


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        (POD, {"is_sweep": True}, "a sweep is an array of Slurm's jobs"),
        ("", {}, "pods need an image"),
        (POD + "nodes = 2\ndevice = 'tpu'", {}, "fed by one process, without a JobSet"),
        ("image = 'i:1'", {}, "would be lost with the pod: give the cluster file `claim` and"),
        (POD.replace('"/"', '"/elsewhere"'), {}, "/run is not below /elsewhere"),
    ],
)
def test_a_job_that_cannot_run_is_refused(job_for, text, values, said):
    with pytest.raises(ParamError) as error:
        Kubernetes().check(job_for(text, **values))
    assert said in str(error.value)


def test_an_earlier_job_set_gives_way(job_for, program):
    calls = program("kubectl", "true")
    job = job_for(POD + 'account = "us"')
    id = submit(job, Kubernetes(), {}, {})
    assert calls.read_text().splitlines() == [
        f"kubectl --namespace=us delete jobset {id} --ignore-not-found",
        f"kubectl --namespace=us create --filename={job.folder / 'jobset.json'}",
    ]


@pytest.mark.parametrize(
    ("kubectl", "state", "has_ended"),
    [
        ("true", "Active", False),
        ("echo Completed", "Completed", True),
        ("echo Failed", "Failed", True),
        ("echo 'Error from server (NotFound): jobsets \"x\" not found' >&2; exit 1", ENDED, True),
    ],
)
def test_a_state_is_in_words_of_jobset(tmp_path, program, kubectl, state, has_ended):
    program("kubectl", kubectl)
    found = Kubernetes().state(Record(tmp_path, "kubernetes", "x", "", "", 1))
    assert found == state
    assert (found in Kubernetes.end_states) == has_ended


def test_logs_and_stop_name_the_job_set(tmp_path, program):
    calls = program("kubectl", "echo said")
    record = Record(tmp_path, "kubernetes", "x", "us", "", 2)
    assert Kubernetes().logs(record) == "said\n"
    Kubernetes().stop(record)
    logs, stop = calls.read_text().splitlines()
    assert logs.startswith(
        "kubectl --namespace=us logs --selector=jobset.sigs.k8s.io/jobset-name=x"
    )
    assert stop == "kubectl --namespace=us delete jobset x --ignore-not-found"
