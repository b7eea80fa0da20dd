"""Virtual devices: one processor as several, to try what is made for many on any machine."""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.lazy import tf


def split_processor(num_devices: int) -> None:
    """Makes TensorFlow see the processor as several devices that share its cores.

    It holds for the process, and has to be called before TensorFlow computes anything.

    Raises:
        ParamError: if TensorFlow has already started with another number of devices.
    """
    (processor,) = tf.config.list_physical_devices("CPU")
    virtual = [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
    try:
        tf.config.set_logical_device_configuration(processor, virtual)
    except RuntimeError:
        there = len(tf.config.list_logical_devices("CPU"))
        if there != num_devices:
            raise ParamError(
                f"devices={num_devices}, but TensorFlow has already started with {there}:"
                " devices are chosen once a process, before anything is computed"
            ) from None
