"""Trains on rows of two lengths, on several devices; `test_stages.py` runs it.

    python stages_everywhere.py FOLDER

It prints the losses of each runtime as JSON. A process of its own, because TensorFlow and JAX
choose their devices once a process.
"""

from __future__ import annotations

import json
import pathlib
import sys

import jax

from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.conftest import experiment, losses, run
from tests.lingo.trainer.staged_rows import staged

RUNTIMES = {
    "local": Local.params(),
    "replicated": Replicated.params(devices=["CPU:0", "CPU:1"]),
    "mesh": Mesh.params(data=2),
}


def main(folder: pathlib.Path) -> None:
    """Trains on each runtime."""
    split_processor(2)
    jax.config.update("jax_num_cpu_devices", 2)
    (folder / "text.txt").write_text("abcacbbca" * 40)
    found = {}
    for name, runtime in RUNTIMES.items():
        params = staged(experiment(f"{folder}/text.txt"))
        params.set(runtime=runtime, steps_per_loop=2, eval_inputs={})
        run(params, folder / name)
        found[name] = losses(folder / name)
    print(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
