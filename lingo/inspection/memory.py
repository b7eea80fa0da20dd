"""Checks that a run fits into memory, since the kernel would kill it without a message.

`check_memory` counts the training state and one batch, before any weight is initialized.
`step_memory` also counts the tensors of the forward pass that the gradient keeps, which it finds in
the traced graph of a step. Short-lived tensors are not counted, so a step needs more.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment

# A step whose counted bytes exceed this share of the memory causes a warning, since measured steps
# take 0.9 to 1.8 times the counted bytes.
_WARNED = 0.6

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(experiment: Experiment) -> None:
    """Raises ParamError if the training state or one batch exceeds this machine's memory."""
    available = memory_bytes()
    if (state := experiment.runtime.host_bytes(experiment.learner)) > available:
        raise ParamError(
            f"task: weights and optimizer slots take {size(state)}, but this machine has"
            f" {size(available)} of memory"
        )
    specs = experiment.train_input.specs().values()
    batch = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in specs)
    if batch > available:
        raise ParamError(
            f"train_input: a batch takes {size(batch)}, but this machine has {size(available)} of"
            " memory: set a smaller batch_size or length"
        )


class StepMemory(NamedTuple):
    """An estimate of the bytes of this machine's memory that a training step holds."""

    state: int  # bytes of weights, optimizer slots and statistics
    activations: int  # bytes of forward tensors that the gradient reads; 0 on accelerators
    available: int  # bytes of memory that this process may use

    def __str__(self) -> str:
        """Returns the three numbers as a sentence without a full stop."""
        whole, state, read, there = map(
            size, (self.state + self.activations, self.state, self.activations, self.available)
        )
        return (
            f"a step holds about {whole}: {state} of weights and optimizer slots, {read} of"
            f" activations for the gradient; this machine has {there} of memory"
        )


def step_memory(experiment: Experiment, graph: tf.Graph, *, num_processes: int = 1) -> StepMemory:
    """Returns the memory that a step needs, estimated from `graph`, the step for a whole batch.

    Each of `num_processes` processes computes an equal part of the batch.
    """
    runtime = experiment.runtime
    on_processors = all("cpu" in name.lower() for name in runtime.device_names())
    kept = kept_bytes(graph) // num_processes if on_processors else 0
    return StepMemory(runtime.host_bytes(experiment.learner), kept, memory_bytes())


def check_step(
    memory: StepMemory, *, tell: Callable[[str], None], was_killed: bool = False
) -> None:
    """Warns if a step may not fit in memory; raises ParamError if it needs over twice the memory.

    A step that needs less may still run, for example with a swap file.

    Args:
        memory: the estimate.
        tell: called with each warning.
        was_killed: whether the previous process of the run ended without a message, perhaps killed
            by the kernel.
    """
    if was_killed:
        tell(f"the last process was killed, or ended inside a step: {memory}")
    needed = memory.state + memory.activations
    advice = "set a smaller batch_size or length, accumulation_steps, or Remat around layers"
    if needed > 2 * memory.available:
        raise ParamError(f"{memory}: {advice}")
    if needed > _WARNED * memory.available:
        tell(f"warning: {memory}, and the kernel may end the run: {advice}")


def memory_bytes() -> int:
    """Returns the bytes of memory for this process: of the machine, its container, or `ulimit`."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_container_limits(_LIMITS)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(limits if soft == resource.RLIM_INFINITY else [*limits, soft])


def _container_limits(files: Iterable[str]) -> list[int]:
    """Returns the memory limits in the kernel's files; missing files and "max" are skipped."""
    limits: list[int] = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return limits


def size(num_bytes: float) -> str:
    """Returns a number of bytes as text with three or four digits and a unit: "1.5 MiB"."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if num_bytes < 1024 or unit == "PiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} {unit}" if num_bytes >= 1000 else f"{num_bytes:.3g} {unit}"


# ---- tensors that a gradient keeps, in the graph of a step ---------------------------------------

_GRADIENT = "gradient_tape/"  # in the name of each operation of a gradient
_ALIASES = {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
_GIVEN = {"Placeholder", "Const", "TensorListGetItem"}  # state and batch, or slices of them
_LOOPS = {"While", "StatelessWhile"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


def kept_bytes(graph: tf.Graph) -> int:
    """Returns the bytes of all tensors of the forward pass that the gradient reads.

    Each tensor counts once. If a gradient goes back through a loop, TensorFlow pushes such tensors
    to lists, one tensor per iteration, which all count. Tensors of unknown shape count as 0.
    """
    read: dict[Any, int] = {}
    for op in graph.get_operations():
        for tensor in op.inputs if _GRADIENT in op.name else ():
            source = _source(tensor)
            if _GRADIENT not in source.op.name and source.op.type not in _GIVEN:
                read[source.ref()] = _bytes(source)
    return sum(read.values()) + sum(_call_bytes(body, times) for body, times in _bodies(graph))


def _call_bytes(body: tf.Graph, times: int) -> int:
    """Returns the bytes that `times` calls of a loop's or function's body keep at once.

    If a gradient goes back through the calls, the body pushes tensors to lists, and each call keeps
    its own tensors. Otherwise a call frees its tensors before the next call begins, for example
    when the body computes a part of a batch together with its gradient.
    """
    pushed = [op.inputs[1] for op in body.get_operations() if op.type == "TensorListPushBack"]
    own = sum(_bytes(x) for x in pushed if _source(x).op.type != "TensorListGetItem")
    return (times if pushed else 1) * (own + kept_bytes(body))


def _bodies(graph: tf.Graph) -> Iterator[tuple[tf.Graph, int]]:
    """Yields pairs (body of a loop or call, number of times it is called; 0 if not known)."""
    for op in graph.get_operations():
        if op.type in _LOOPS:
            limit = tf.get_static_value(op.inputs[1])
            times = 0 if limit is None else max(0, int(limit))
            yield graph._get_function(op.get_attr("body").name).graph, times
        elif op.type in _CALLS:
            yield graph._get_function(op.get_attr("f").name).graph, 1


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor that an alias (a reshaped or forwarded tensor) shares its memory with."""
    while tensor.op.type in _ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor


def _bytes(tensor: tf.Tensor) -> int:
    known = tensor.shape.is_fully_defined() and tensor.dtype.is_numpy_compatible
    return tensor.shape.num_elements() * tensor.dtype.size if known else 0
