"""The processes of a mesh: JAX's coordination service, and waiting for joint computations.

A process that is lost in the middle of a step leaves the rest in a collective that may never end:
gloo informs only the lost process's neighbours. So the main thread does not compute: it waits for a
thread that does, and gives up when it hears that a process is lost.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from lingo.mesh.split import Split
from lingo.processes.group import Group
from lingo.processes.processes import ALONE, Cluster, LostWorker, Processes, cluster
from lingo.runtimes.mesh import coordinator
from lingo.runtimes.mesh.arrays import sharding
from lingo.runtimes.mesh.engine import engine, explain_engine_errors
from lingo.runtimes.program import ProgramError

_MEET_SECONDS = 300
_LOOK_SECONDS = 0.2  # between two checks for a lost process


class Service:
    """JAX's coordination service, as `KeyValues`.

    `abort_reason` is why the joint computation cannot end; "" while no process is lost.
    """

    def __init__(self, client: Any, host: subprocess.Popen[str] | None = None) -> None:
        """Takes a connected JAX client and, in the leader, the process that runs the service."""
        self._client, self._host = client, host  # the service runs while it is referenced
        self.abort_reason = ""

    def put(self, key: str, value: str) -> None:
        self._ask(lambda: self._client.key_value_set(key, value, allow_overwrite=True))

    def get(self, key: str, *, timeout_seconds: float) -> str | None:
        milliseconds = int(1000 * timeout_seconds)
        return self._ask(lambda: self._client.blocking_key_value_get(key, milliseconds))

    def delete(self, key: str) -> None:
        self._ask(lambda: self._client.key_value_delete(key))

    def abort(self, reason: str) -> None:
        self.abort_reason = reason

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Returns the service's answer; None if it is late, or the key does not exist."""
        try:
            return question()
        except engine().errors.JaxRuntimeError as error:
            if str(error).startswith(("DEADLINE_EXCEEDED: GetKeyValue", "NOT_FOUND")):
                return None
            raise ConnectionError(str(error)) from error


class Members(Group):
    """The processes of a mesh, which compute together."""

    def __init__(self, cluster: Cluster, service: Service) -> None:
        super().__init__(cluster, service)
        self._engine = service

    def wait(self, compute: Callable[..., Any], *args: Any) -> Any:
        """Runs a jitted function of arrays of any shape, as all processes do; returns its results.

        Raises ProgramError if the function fails, or another process is lost.
        """
        result: Future[Any] = Future()

        def work() -> None:
            try:
                with explain_engine_errors():
                    result.set_result(engine().block_until_ready(compute(*args)))
            except Exception as error:  # noqa: BLE001 - the waiting thread raises it
                result.set_exception(error)

        threading.Thread(target=work, name="compute", daemon=True).start()
        while not self._engine.abort_reason:
            try:
                return result.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                continue
        raise ProgramError(self._engine.abort_reason)

    def start(self, compute: Callable[..., Any], *args: Any) -> Any:
        """Does the same as `wait`, because only a call that waits learns of a lost process."""
        return self.wait(compute, *args)

    def gather(self, number: int) -> list[int]:
        """Returns every process's number, by process index; all processes have to call it."""
        jax = engine()
        mesh = jax.sharding.Mesh(jax.devices(), ("device",))
        split, whole = (sharding(mesh, Split((axes,))) for axes in (("device",), ()))
        own = jax.make_array_from_callback(
            (jax.device_count(),), split, lambda _: np.array([number], np.int32)
        )
        copies = np.asarray(self.wait(jax.jit(lambda x: x, out_shardings=whole), own))
        numbers = {d.process_index: int(n) for d, n in zip(jax.devices(), copies, strict=True)}
        return [numbers[index] for index in range(self.count)]


class One:
    """The only process of a run, with the interface of `Members`."""

    index = 0
    count = 1

    def wait(self, compute: Callable[..., Any], *args: Any) -> Any:
        return engine().block_until_ready(compute(*args))

    def start(self, compute: Callable[..., Any], *args: Any) -> Any:
        """Returns results that may not be computed yet."""
        return compute(*args)

    def gather(self, number: int) -> list[int]:
        return [number]


@functools.cache
def join() -> Processes:
    """Connects to the other processes that `TF_CONFIG` names; returns ALONE if it names none.

    Raises ParamError if `TF_CONFIG` is invalid, LostWorker if a process does not connect in time.
    """
    several = cluster(os.environ)
    if several is not None:
        return Members(several, _meet(several))
    # TensorFlow exports functions with the names of cuBLAS's. If TensorFlow is loaded first, CUDA's
    # libraries bind to these; JAX then finds the version too old and computes on the CPU.
    engine().local_devices()
    return ALONE


def members() -> Members | One:
    """Returns the processes that compute together."""
    joined = join()
    return joined if isinstance(joined, Members) else One()


def _meet(cluster: Cluster) -> Service:
    """Waits until all processes are connected; returns the service, which JAX uses from then on."""
    jax = engine()
    from jax._src.distributed import global_state  # `jax.distributed` would host the service here
    from jax._src.lib import _jax

    host = _serve(cluster) if cluster.index == 0 else None
    client = _jax.get_distributed_runtime_client(
        cluster.workers[0],
        cluster.index,
        init_timeout=_MEET_SECONDS,
        heartbeat_timeout=coordinator.NEVER_SECONDS,
        shutdown_timeout=1,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    try:
        client.connect()
    except jax.errors.JaxRuntimeError as error:
        raise LostWorker(0, f"the workers did not meet at {cluster.name(0)}: {error}") from error
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    global_state.client, global_state.coordinator_address = client, cluster.workers[0]
    global_state.process_id, global_state.num_processes = cluster.index, len(cluster.workers)
    return Service(client, host)


def _serve(cluster: Cluster) -> subprocess.Popen[str]:
    """Starts a process for the coordination service, which outlives this process for a while."""
    command = [sys.executable, "-m", coordinator.__name__, cluster.workers[0]]
    deadline = time.monotonic() + _MEET_SECONDS
    while time.monotonic() < deadline:  # the service of a killed run may still use the address
        process = subprocess.Popen(
            [*command, str(len(cluster.workers))],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # so that signals to this process group do not reach it
        )
        if process.stdout is not None and process.stdout.readline().strip() == coordinator.READY:
            return process
        process.wait()
        time.sleep(1.0)
    raise LostWorker(0, f"{cluster.name(0)}: nothing can listen at this address")
