"""Kubernetes: a JobSet of one pod per worker, in JSON, which `kubectl` takes as it takes YAML.

Pods find each other by the names that JobSet gives them. A pod that is evicted, or reaches the time
limit, gets SIGTERM, saves and ends; JobSet then starts all workers again, which resume the run. It
does not do so after the exit codes of mistakes.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from lingo.config.params import ParamError
from lingo.launch.job import ENDED, Job, Record, SchedulerError, call
from lingo.processes.processes import VARIABLE

PORT = 4000
MAX_NAME = 40  # characters; the names of pods add the worker's index

_INDEX = "JOB_COMPLETION_INDEX"
_RESOURCES = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}
_MISTAKES = [2, 3, 4, 5, 7, 8]  # exit codes; the same command would end so again
_WORKER = "worker"


class Kubernetes:
    """Kubernetes with JobSet, by `kubectl`."""

    name = "kubernetes"
    program = "kubectl"
    file = "jobset.json"
    end_states = (ENDED, "Completed", "Failed")

    def check(self, job: Job) -> None:
        cluster = job.cluster
        if job.is_sweep:
            raise ParamError(
                "a sweep is an array of Slurm's jobs: on Kubernetes, launch each command that"
                " `lingo sweep --print` shows"
            )
        if cluster.image is None:
            raise ParamError("pods need an image: name it in the cluster file, image = ...")
        if cluster.device == "tpu" and cluster.num_workers > 1:
            raise ParamError(
                "a TPU of several hosts is fed by one process, without a JobSet: see"
                " docs/tpu_pods.md; a job with device = 'tpu' has one node"
            )
        if job.run.address is None:
            if cluster.claim is None or cluster.shared is None:
                raise ParamError(
                    f"--logdir={job.place} would be lost with the pod: give the cluster file"
                    " `claim` and `shared`, or name a bucket, gs:// or s3://"
                )
            job.check_shared()

    def text(self, job: Job) -> str:
        return json.dumps(_job_set(job, self.planned_id(job)), indent=1) + "\n"

    def planned_id(self, job: Job) -> str:
        """Returns a name that is valid for hosts, and different for each run directory."""
        name = re.sub(r"[^a-z0-9]+", "-", job.run.path.name.lower())
        digest = hashlib.sha256(job.place.encode()).hexdigest()[:6]
        return f"lingo-{name[:MAX_NAME].strip('-')}-{digest}".replace("--", "-")

    def submit(self, job: Job) -> str:
        id, account = self.planned_id(job), job.cluster.account or ""
        self._call(account, "delete", "jobset", id, "--ignore-not-found")  # of an earlier job
        self._call(account, "create", f"--filename={job.folder / self.file}")
        return id

    def state(self, record: Record) -> str:
        field = "--output=jsonpath={.status.terminalState}"
        try:
            shown = self._call(record.account, "get", "jobset", record.id, field)
            return shown.strip() or "Active"
        except SchedulerError as error:
            if "NotFound" in str(error):
                return ENDED
            raise

    def logs(self, record: Record) -> str:
        selector = f"--selector=jobset.sigs.k8s.io/jobset-name={record.id}"
        every = ("--prefix", "--tail=-1", f"--max-log-requests={record.nodes}")
        return self._call(record.account, "logs", selector, *every)

    def stop(self, record: Record) -> None:
        self._call(record.account, "delete", "jobset", record.id, "--ignore-not-found")

    @staticmethod
    def _call(account: str, *arguments: str) -> str:
        return call("kubectl", *([f"--namespace={account}"] if account else []), *arguments)


def _job_set(job: Job, name: str) -> dict[str, Any]:
    """Returns the JobSet, whose pods are restarted together."""
    cluster = job.cluster
    metadata: dict[str, Any] = {"name": name}
    if cluster.account:
        metadata["namespace"] = cluster.account
    if cluster.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": cluster.queue}
    mistake = {
        "name": "mistake",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {"maxRestarts": cluster.max_requeues, "rules": [mistake]},
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [
                {"name": _WORKER, "replicas": 1, "template": {"spec": _workers(job, name)}}
            ],
        },
    }


def _workers(job: Job, name: str) -> dict[str, Any]:
    """Returns the spec of the Job with a pod per worker."""
    cluster = job.cluster
    codes = {"containerName": _WORKER, "operator": "In", "values": _MISTAKES}
    spec: dict[str, Any] = {
        "parallelism": cluster.num_workers,
        "completions": cluster.num_workers,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]},
        "template": {"spec": _pod(job, name)},
    }
    if cluster.seconds is not None:
        spec["activeDeadlineSeconds"] = cluster.seconds - cluster.save_seconds
    return spec


def _pod(job: Job, name: str) -> dict[str, Any]:
    cluster = job.cluster
    container: dict[str, Any] = {
        "name": _WORKER,
        "image": cluster.image,
        "command": [*job.program, *job.commands[0]],
        "env": _environment(job, name),
        "ports": [{"containerPort": PORT}],
    }
    if amounts := _amounts(job):
        container["resources"] = {"requests": amounts, "limits": amounts}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": cluster.save_seconds,
        "containers": [container],
    }
    if cluster.claim:
        container["volumeMounts"] = [{"name": "shared", "mountPath": cluster.shared}]
        claim = {"claimName": cluster.claim}
        spec["volumes"] = [{"name": "shared", "persistentVolumeClaim": claim}]
    return spec | dict(cluster.kubernetes)


def _environment(job: Job, name: str) -> list[dict[str, Any]]:
    """Returns the variables of a pod. Kubernetes replaces $(NAME) by an earlier variable."""
    cluster = job.cluster
    variables = {"PYTHONUNBUFFERED": "1", **cluster.environment}
    env: list[dict[str, Any]] = [{"name": k, "value": str(v)} for k, v in variables.items()]
    if cluster.num_workers > 1:
        indices = range(cluster.num_workers)
        addresses = [f"{name}-{_WORKER}-0-{index}.{name}:{PORT}" for index in indices]
        path = f"metadata.annotations['batch.kubernetes.io/{_INDEX.lower().replace('_', '-')}']"
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        text = json.dumps(config).replace('"index": 0', f'"index": $({_INDEX})')
        env.append({"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": path}}})
        env.append({"name": VARIABLE, "value": text})
    return env


def _amounts(job: Job) -> dict[str, Any]:
    """Returns what a pod reserves of its node."""
    cluster = job.cluster
    amounts: dict[str, Any] = {}
    if cluster.cpus:
        amounts["cpu"] = cluster.cpus
    if cluster.memory_gib:
        amounts["memory"] = f"{cluster.memory_gib // cluster.workers_per_node}Gi"
    if cluster.devices:
        amounts[_RESOURCES[cluster.device]] = cluster.devices
    return amounts
