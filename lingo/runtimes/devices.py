"""Virtual devices: one CPU split into several, to run multi-device code on any machine.

Virtual devices share the cores of the CPU. Accelerators of the machine are not used, so a run on
virtual devices is the same everywhere. TensorFlow and JAX count their devices once per process,
when they first compute, so virtual devices must be made before that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import ParamError

MAX_VIRTUAL_DEVICES = 4096
"""Limit on the virtual devices of one process; larger numbers have not been tried."""


def split_processor(num_devices: int) -> None:
    """Makes TensorFlow see the CPU as several devices, and no other devices.

    Raises ParamError if TensorFlow has already started with another number of devices.
    """
    (processor,) = tf.config.list_physical_devices("CPU")
    virtual = [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
    try:
        tf.config.set_logical_device_configuration(processor, virtual)
        tf.config.set_visible_devices(processor)
    except RuntimeError:
        check_devices("TensorFlow", num_devices, len(tf.config.list_logical_devices("CPU")))


def advise_devices(num_devices: int) -> str:
    """Returns the end of a message: how to split the CPU into devices, or that it is impossible."""
    if num_devices > MAX_VIRTUAL_DEVICES:
        return f"--devices makes at most {MAX_VIRTUAL_DEVICES} of the CPU"
    return f"--devices={num_devices} makes {num_devices} of the CPU"


def check_devices(engine: str, num_devices: int, num_started: int) -> None:
    """Raises ParamError if an engine has started with another number of devices than requested."""
    if num_started != num_devices:
        raise ParamError(
            f"devices={num_devices}, but {engine} has already started with {num_started}: devices"
            " are chosen once per process, before anything is computed"
        )


# ---- GPUs ----------------------------------------------------------------------------------------

_AMPERE = (8, 0)
"""The compute capability of NVIDIA's first GPUs that multiply matrices in bfloat16."""


class Gpu(NamedTuple):
    """A GPU that TensorFlow sees."""

    name: str  # such as "NVIDIA H100 80GB HBM3"; "" if it is not known
    capability: tuple[int, int] | None  # CUDA's, as in (9, 0); None for other GPUs


def list_gpus() -> list[Gpu]:
    """Returns the GPUs that TensorFlow sees, without starting them."""
    gpus: list[Gpu] = []
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        gpus.append(Gpu(details.get("device_name", ""), details.get("compute_capability")))
    return gpus


def peak_memory_bytes() -> int:
    """Returns the peak memory so far of any one of TensorFlow's GPUs or TPU cores, in bytes.

    It is 0 if there are no such devices, or if they do not report their memory.
    """
    peaks = [0]
    for kind in ("GPU", "TPU"):
        for device in tf.config.list_logical_devices(kind):
            with contextlib.suppress(ValueError, tf.errors.OpError):  # the device has no statistics
                peaks.append(tf.config.experimental.get_memory_info(device.name)["peak"])
    return max(peaks)


def advise_settings(gpus: Sequence[Gpu], *, dtype: str, xla: bool | None) -> list[str]:
    """Returns advice: a sentence for each setting that is usually faster on these GPUs, if any.

    `dtype` is the task's; `xla` is whether XLA compiles the step, None if it always does.
    """
    if not gpus:
        return []
    advice: list[str] = []
    name = gpus[0].name or "this GPU"
    if dtype == "float32" and all((gpu.capability or (0, 0)) >= _AMPERE for gpu in gpus):
        advice.append(f"hint: {name} multiplies faster in bfloat16: --set=task.dtype=bfloat16")
    if xla is False:
        advice.append(f"hint: XLA often makes steps faster on {name}: --set=runtime.xla=True")
    return advice
