"""Every runtime measures the ranges of a quantized model that one device measures.

Eight devices of JAX and two of TensorFlow, in one process (see `quantized.py`).
"""

import json
import pathlib

import numpy as np
import pytest

from tests.lingo.runtimes.child import printed

PROGRAM = pathlib.Path(__file__).with_name("quantized.py")


@pytest.mark.parametrize(
    "names",
    [
        ("accumulation", "replicated", "stages"),
        ("data8", "pipeline"),
    ],
    ids=" ".join,
)
def test_losses_ranges_and_steps_are_those_of_one_device(names):
    found = json.loads(printed(str(PROGRAM), "local", *names).splitlines()[-1])
    one = found.pop("local")
    assert found.keys() == {*names}
    steps = [value for name, value in one["states"].items() if name.endswith("/steps")]
    assert steps == [[2.0, 2.0]]
    for name, many in found.items():
        np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-5, err_msg=name)
        assert many["states"].keys() == one["states"].keys()
        for state, value in one["states"].items():
            np.testing.assert_allclose(many["states"][state], value, rtol=1e-5, err_msg=state)
