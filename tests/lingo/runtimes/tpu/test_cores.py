"""Cores of a TPU: in the order of the mesh, and one clear error where there are none."""

import re
import socket

import pytest

from lingo.config.params import ParamError
from lingo.mesh.topology import topology
from lingo.runtimes.tpu import cores as cores_
from lingo.runtimes.tpu.cores import NoTpu, connect


def test_one_replica_is_on_all_cores_in_the_order_of_the_mesh(absent_tpu):
    found = absent_tpu(topology({"data": 2, "model": 4}))
    numbers = [int(name.rpartition(":")[2]) for name in found.devices]
    assert numbers == [0, 1, 5, 4, 2, 3, 7, 6]  # row-major in x, y, core; each beside the last
    assert set(found.hosts) == {"/job:localhost/task:0/device:CPU:0"}
    assert found.strategy.num_replicas_in_sync == 1


def test_a_mesh_takes_all_cores(absent_tpu):
    with pytest.raises(
        ParamError, match=r"4 devices .* does not fit a TPU of 8 cores, 2 x 2 x 1 x 2"
    ):
        absent_tpu(topology({"model": 4}))


def test_without_a_tpu_one_line_says_what_was_looked_for_and_what_to_do():
    with pytest.raises(NoTpu) as raised:
        connect("local", topology({"model": 4}))
    said = str(raised.value)
    reason = "TPUs not found|Graph execution error: .* RET_CHECK failure"  # of tensorflow, -tpu
    assert re.match(rf"runtime.tpu='local': no TPU of this machine answers \(({reason})", said)
    assert said.endswith(
        "--set=runtime.tpu=grpc://10.0.0.2:8470, or compute elsewhere: --set=runtime=Local"
    )
    assert "\n" not in said


def test_an_address_where_nobody_answers_is_not_waited_for():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(NoTpu, match=f"{address}: Connection refused"):
            connect(f"grpc://{address}", topology({"model": 4}))


def test_an_address_or_a_name_that_nobody_knows_is_refused(monkeypatch):
    with pytest.raises(NoTpu, match="no TPU of this name or address"):
        connect("grpc://nowhere", topology({}))

    def unknown(tpu: str) -> None:
        raise ValueError(f"no project for {tpu}")

    resolvers = cores_.tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", unknown)
    with pytest.raises(NoTpu, match=r"runtime.tpu='mine': .* \(no project for mine\)"):
        connect("mine", topology({}))
