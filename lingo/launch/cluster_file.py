"""The cluster file: what a job asks of Slurm or Kubernetes, in TOML.

nodes = 4
devices = 8                 # GPUs of each node
time = "24:00:00"
account = "translation"
shared = "/data"

[environment]
NCCL_DEBUG = "WARN"

[slurm]                     # any other option of sbatch
constraint = "h200"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lingo.config.base import regular_file
from lingo.config.options import Declaration, declarations, option, option_class
from lingo.config.params import ParamError, suggest

MAX_BYTES = 2**20

_TABLES = ("environment", "slurm", "kubernetes")
_TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OPTION = re.compile(r"[a-z][a-z0-9-]*")


@option_class
class ClusterFile:
    """The keys of a cluster file. Each has a default, and holds for Slurm and Kubernetes."""

    nodes: int = option("Number of nodes.", default=1, minimum=1, maximum=8192)
    workers_per_node: int = option(
        "Processes per node; 1 if a node has devices.", default=1, minimum=1, maximum=64
    )
    devices: int = option(
        "GPUs, or chips of a TPU, per node; 0: processors only.", default=0, minimum=0, maximum=64
    )
    device: Literal["gpu", "tpu"] = option("The kind of devices.", default="gpu")
    cpus: int | None = option("Processors per worker.", minimum=1, maximum=4096)
    memory_gib: int | None = option("Memory per node, in GiB.", minimum=1, maximum=2**16)
    time: str | None = option("Time limit of a job, [DAYS-]HOURS:MINUTES:SECONDS.")
    save_seconds: int = option(
        "How long before the time limit, and before a pod is killed, a worker is told to save.",
        default=300,
        minimum=1,
        maximum=86_400,
    )
    max_requeues: int = option(
        "How often a job that has not finished is started again.",
        default=10,
        minimum=0,
        maximum=10_000,
    )
    account: str | None = option("Account of Slurm; namespace of Kubernetes.")
    queue: str | None = option("Partition of Slurm; local queue of Kueue.")
    image: str | None = option("Image of the containers. Slurm runs it by Pyxis.")
    shared: str | None = option("Directory that all nodes have in common, such as /data.")
    claim: str | None = option("PersistentVolumeClaim of Kubernetes that is mounted at `shared`.")
    environment: Mapping[str, Any] = option("Variables of the workers.")
    slurm: Mapping[str, Any] = option("More options of sbatch, by their long names.")
    kubernetes: Mapping[str, Any] = option("More fields of the pods' spec.")

    @property
    def num_workers(self) -> int:
        """The number of processes of a run."""
        return self.nodes * self.workers_per_node

    @property
    def seconds(self) -> int | None:
        """The time limit in seconds, or None."""
        match = _TIME.fullmatch(self.time or "")
        if match is None:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def read(path: str) -> ClusterFile:
    """Returns the content of a cluster file; raises ParamError for any mistake in it."""
    try:
        content = regular_file.read(path, max_bytes=MAX_BYTES)
        table = tomllib.loads(content.decode())
    except OSError as error:
        raise ParamError(f"--cluster={path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of UTF-8 or of TOML
        raise ParamError(f"{path} is not TOML: {error}") from None
    known = {declared.field: declared for declared in declarations(ClusterFile)}
    for key, value in table.items():
        if key not in known:
            raise ParamError(
                f"{path}: there is no key {key!r:.80}.{suggest(key, known)}\n"
                f"Keys: {', '.join(known)}."
            )
        if wanted := _mismatch(value, known[key]):
            raise ParamError(f"{path}: {key} is {value!r:.80}, not {wanted}")
    tables: dict[str, Any] = {name: {} for name in _TABLES}
    cluster = ClusterFile(**(tables | table))
    if mistake := _contradiction(cluster):
        raise ParamError(f"{path}: {mistake}")
    return cluster


def _mismatch(value: Any, key: Declaration) -> str:
    """Returns what a key's value should be, if it is something else, or ""."""
    given = key.option
    if key.choices:
        return "" if value in key.choices else f"one of {', '.join(key.choices)}"
    if int in key.types:
        low, high = given.minimum or 0, given.maximum or 0
        is_inside = type(value) is int and low <= value <= high
        return "" if is_inside else f"a number from {low} to {high}"
    if str in key.types:
        is_line = isinstance(value, str) and value and value.isprintable()
        return "" if is_line else "a line of text"
    return "" if isinstance(value, dict) else f"a table: [{key.field}]"


def _contradiction(cluster: ClusterFile) -> str:
    """Returns a sentence on what is wrong with keys that are valid by themselves, or ""."""
    seconds = cluster.seconds
    if cluster.time is not None and seconds is None:
        return f"time is {cluster.time!r}, not [DAYS-]HOURS:MINUTES:SECONDS, such as '24:00:00'"
    if seconds is not None and seconds <= cluster.save_seconds:
        return f"time is {seconds} s, but must be longer than save_seconds, {cluster.save_seconds}"
    if cluster.devices and cluster.workers_per_node > 1:
        return "a worker uses all devices of its node: leave out workers_per_node"
    if cluster.shared is not None and not Path(cluster.shared).is_absolute():
        return f"shared is {cluster.shared!r}, not an absolute path"
    for key, value in cluster.environment.items():
        if not _VARIABLE.fullmatch(key) or not isinstance(value, str | int | float):
            return f"environment.{key} is not a variable with a text or a number"
    for key, value in cluster.slurm.items():
        is_line = isinstance(value, str) and value.isprintable()
        if not _OPTION.fullmatch(key) or not (is_line or isinstance(value, int)):
            return f"slurm.{key} is not a long option of sbatch with a text, a number or true"
    return ""
