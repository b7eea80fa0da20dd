"""Trains a tiny model on a mesh and on replicas, and exports it: `test_on_devices.py` runs this.

    python -m tests.lingo.export.on_devices FOLDER

It writes runs, FOLDER/<runtime>, and their exports, FOLDER/<runtime>.saved.

A process of its own for this, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import pathlib
import sys

import jax

import lingo
from lingo.runtimes.devices import split_processor
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.export.models import small

RUNTIMES = {"mesh": Mesh.params(data=2, model=2), "replicated": Replicated.params()}


def main(folder: pathlib.Path) -> None:
    split_processor(2)
    jax.config.update("jax_num_cpu_devices", 4)
    for name, runtime in RUNTIMES.items():
        lingo.train(small("tiny").set(runtime=runtime), folder / name)
        model = lingo.load(folder / name)
        model.export(folder / f"{name}.saved", format="savedmodel")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
