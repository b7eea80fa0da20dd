"""Virtual devices: one processor as several, to try what is made for many on any machine.

They share the processor's cores. Accelerators of the machine are left alone: a run on virtual
devices is the same everywhere. An engine counts its devices once a process, when it first computes,
so they are made before that.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.config.params import ParamError

MAX_DEVICES = 4096
"""How many one process can have: more has not been tried."""


def split_processor(num_devices: int) -> None:
    """Makes TensorFlow see the processor as several devices, and no others.

    Raises:
        ParamError: if TensorFlow has already started with another number of devices.
    """
    (processor,) = tf.config.list_physical_devices("CPU")
    virtual = [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
    try:
        tf.config.set_logical_device_configuration(processor, virtual)
        tf.config.set_visible_devices(processor)
    except RuntimeError:
        check_devices("TensorFlow", num_devices, len(tf.config.list_logical_devices("CPU")))


def check_devices(engine: str, num_devices: int, there: int) -> None:
    """Raises ParamError if an engine has started, with another number of devices than are wanted.

    Args:
        engine: its name, for the message.
        num_devices: that are wanted.
        there: that it has.
    """
    if there != num_devices:
        raise ParamError(
            f"devices={num_devices}, but {engine} has already started with {there}: devices are"
            " chosen once a process, before anything is computed"
        )
