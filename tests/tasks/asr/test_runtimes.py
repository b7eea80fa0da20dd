"""Replicas, meshes and XLA train a recognizer as one device does (see `on_runtimes.py`)."""

import json
import os
import pathlib

import numpy as np
import pytest

from lingo.config.lazy import tf
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, printed
from tests.tasks.asr import on_runtimes


@pytest.mark.parametrize("experiment", on_runtimes.RUNTIMES)
def test_every_runtime_trains_as_one_device_does(experiment: str, tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, **QUICK_TO_COMPILE, "XDG_CACHE_HOME": str(tmp_path)}
    text = printed("-m", on_runtimes.__name__, experiment, env=environment)
    found = json.loads(text.splitlines()[-1])
    one = found.pop("local")
    assert found.keys() == on_runtimes.RUNTIMES[experiment].keys() - {"local"}
    for name, many in found.items():
        tf.nest.map_structure(
            lambda a, b, where=name: np.testing.assert_allclose(
                a, b, rtol=2e-3, atol=2e-5, err_msg=where
            ),
            many,
            one,
        )
