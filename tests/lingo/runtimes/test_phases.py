"""Every runtime does the phases of a step as one device does them.

Eight devices of JAX and three of TensorFlow, in one process (see `phases.py`).
"""

import json

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.phase import Phase
from tests.lingo.runtimes import phases
from tests.lingo.runtimes.child import printed


@pytest.mark.parametrize(
    "names",
    [
        ("xla", "accumulation", "replicated", "replicated_xla", "replicated_update"),
        ("torus", "torus_update"),
        ("data8", "model"),
        ("mesh_update", "mesh_weights"),
    ],
    ids=" ".join,
)
def test_every_runtime_does_the_phases_of_one_device_and_resumes_between_them(names):
    found = json.loads(printed("-m", phases.__name__, "local", *names).splitlines()[-1])
    one = found.pop("local")
    assert one["is_exact"]
    assert found.keys() == {*names}
    due = one["reports"]["metric_states"]["loss/teacher/error"]["weight"]
    assert due == [0, 1, 0, 1], "the teacher's turns"
    for name, many in found.items():
        assert many["is_exact"], name
        tf.nest.map_structure(
            lambda a, b, name=name: np.testing.assert_allclose(
                a, b, rtol=1e-4, atol=1e-6, err_msg=name
            ),
            [many["state"], many["reports"]],
            [one["state"], one["reports"]],
        )


def test_stages_on_devices_do_the_phases_of_one_device_bit_for_bit():
    found = json.loads(printed("-m", phases.__name__, "stages").splitlines()[-1])
    assert found["1"] == found["3"]


def test_stages_on_devices_refuse_a_phase_that_is_not_due_at_every_step(monkeypatch):
    late = {"all": Phase((".*",), "error", every_steps=2)}
    monkeypatch.setattr(phases.InStages, "phases", lambda self: late)
    with pytest.raises(ParamError, match="stage_devices=3 computes every phase at every step"):
        phases.staged(3).build()
