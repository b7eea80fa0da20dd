"""A mesh that splits time trains Conformers as one device does (see `on_meshes.py`)."""

import json
import os
import pathlib

import pytest

from tests.lingo.models.speech import on_meshes
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, printed


@pytest.mark.parametrize("context", on_meshes.CONTEXTS)
def test_parts_of_recordings_train_as_the_whole_does(context: str, tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, **QUICK_TO_COMPILE, "XDG_CACHE_HOME": str(tmp_path)}
    text = printed("-m", on_meshes.__name__, context, env=environment)
    found = json.loads(text.splitlines()[-1])
    assert found["shortest"] < 64  # some devices have only padding of a recording
    assert found["moved"] > 1  # nats per label, between the losses of the five steps
    assert max(found[name] for name in ("weights", "states", "losses")) < 1e-5
