"""BERT trains on replicas as on one device; `on_bert.py` computes it."""

import json
import pathlib

import numpy as np

from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed

PROGRAM = pathlib.Path(__file__).with_name("on_bert.py")


def test_steps_on_two_replicas_are_those_of_one_device(tmp_path: pathlib.Path) -> None:
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    out = printed(str(PROGRAM), cwd=tmp_path, env=environment | QUICK_TO_COMPILE)
    found = json.loads(out.splitlines()[-1])
    one, two = found["losses"]
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert found["apart"] < 1e-5
