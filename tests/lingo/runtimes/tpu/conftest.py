"""A TPU that is not there: 8 cores, 2 x 2 chips, as TensorFlow's cluster resolver describes one."""

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.runtimes.tpu.cores import cores

TORUS = (2, 2, 1, 2)


def torus() -> Any:
    from tensorflow.python.tpu.topology import Topology as Torus

    places = np.array(list(np.ndindex(*TORUS)), np.int32)
    return Torus(mesh_shape=list(TORUS), device_coordinates=places[None])


class Resolver(tf.distribute.cluster_resolver.ClusterResolver):
    """What `TPUStrategy` asks."""

    tpu_hardware_feature = None

    def get_tpu_system_metadata(self) -> Any:
        from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

        host = "/job:localhost/replica:0/task:0/device:TPU"
        devices = [tf.config.LogicalDevice(f"{host}:{i}", "TPU") for i in range(8)]
        return TPUSystemMetadata(8, 1, 8, torus(), devices)

    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec({})

    def master(self, *_: Any) -> str:
        return ""


def raises_without_a_tpu() -> Any:
    """Returns a context for a call that is traced, and then wants a TPU.

    `tensorflow` has no kernel of the call; `tensorflow-tpu` rewrites it, and counts no TPUs.
    """
    errors = (tf.errors.InvalidArgumentError, tf.errors.InternalError)
    return pytest.raises(errors, match=r"TPUPartitionedInputV2|TPUReplicate|num_tpus_per_task")


@pytest.fixture
def absent_tpu():
    """Returns its cores in the order of a mesh."""
    return lambda mesh: cores(Resolver(), torus(), mesh)
