"""Every runtime trains several tasks as one device does.

Eight devices of JAX and three of TensorFlow, in one process (see `tasks_in_turn.py`).
"""

import json

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.runtimes.replicated.simulated_torus import SimulatedTorus
from tests.lingo.learner import several_tasks
from tests.lingo.runtimes import tasks_in_turn
from tests.lingo.runtimes.child import printed


@pytest.mark.parametrize(
    "names",
    [
        ("xla", "accumulation", "replicated", "replicated_xla", "replicated_update"),
        ("data8", "model"),
        ("mesh_update", "mesh_weights"),
    ],
    ids=" ".join,
)
def test_every_runtime_trains_the_tasks_of_one_device_and_resumes_between_them(names):
    found = json.loads(printed("-m", tasks_in_turn.__name__, "local", *names).splitlines()[-1])
    one = found.pop("local")
    assert one["is_exact"]
    assert found.keys() == {*names}
    for name, many in found.items():
        assert many["is_exact"], name
        tf.nest.map_structure(
            lambda a, b, name=name: np.testing.assert_allclose(
                a, b, rtol=1e-4, atol=1e-6, err_msg=name
            ),
            many["found"],
            one["found"],
        )


def test_a_simulated_torus_trains_one_task():
    learner = several_tasks.learner(several_tasks.tasks())
    with pytest.raises(ParamError, match="SimulatedTorus trains one task"):
        SimulatedTorus.params(shape=[2, 2]).build().check_learner(learner)
