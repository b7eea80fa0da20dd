"""Replicas, meshes and XLA train a GAN as one device does (see `on_runtimes.py`)."""

import json
import os

import numpy as np

from lingo.config.lazy import tf
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, printed
from tests.tasks.gan import on_runtimes


def test_every_runtime_trains_both_forms_as_one_device_does():
    environment = {**os.environ, **QUICK_TO_COMPILE}
    text = printed("-m", on_runtimes.__name__, env=environment)
    found = json.loads(text.splitlines()[-1])
    assert found.keys() == on_runtimes.FORMS.keys()
    refused = found["wasserstein"].pop("rows")["refused"]
    assert "ImageGan computes Conv2DBackpropInput of images whose rows" in refused
    for form, by_runtime in found.items():
        one = by_runtime.pop("local")
        for name, many in by_runtime.items():
            tf.nest.map_structure(
                lambda a, b, where=f"{form} {name}": np.testing.assert_allclose(
                    a, b, rtol=2e-3, atol=2e-5, err_msg=where
                ),
                many,
                one,
            )
