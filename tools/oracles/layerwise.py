"""Writes weights that optax's LAMB and LARS train, with which tests compare lingo's.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install optax
    /tmp/oracle/bin/python tools/oracles/layerwise.py

It runs without lingo, in an environment of its own, and writes tests/lingo/optim/layerwise.json.
Gradients and first weights are those of tests/lingo/optim/conftest.py. Last run with optax 0.2.8.
"""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import numpy as np

FILE = pathlib.Path(__file__).parents[2] / "tests/lingo/optim/layerwise.json"
SHAPE, NUM_STEPS = (4, 3), 20

CASES: dict[str, tuple[str, dict[str, Any]]] = {  # name -> function of optax, its arguments
    "lamb": ("lamb", {"learning_rate": 0.01, "weight_decay": 0.1}),
    "lamb, other betas": (
        "lamb",
        {"learning_rate": 0.02, "b1": 0.8, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.5},
    ),
    "lars": ("lars", {"learning_rate": 0.5, "weight_decay": 0.0, "trust_coefficient": 0.02}),
    "lars, epsilon": (
        "lars",
        {"learning_rate": 0.5, "weight_decay": 0.0, "momentum": 0.7, "trust_coefficient": 0.02}
        | {"eps": 0.5},
    ),
}


def main() -> None:
    """Writes, for each case, the arguments and the weight after the last step."""
    optax, draw = importlib.import_module("optax"), np.random.default_rng(0)
    gradients = [draw.normal(size=SHAPE).astype(np.float32) for _ in range(NUM_STEPS)]
    found = {}
    for name, (function, arguments) in CASES.items():
        optimizer = getattr(optax, function)(**arguments)
        weight = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
        state = optimizer.init(weight)
        for gradient in gradients:
            step, state = optimizer.update(gradient, state, weight)
            weight = optax.apply_updates(weight, step)
        found[name] = {"function": function, "arguments": arguments, "weight": weight.tolist()}
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
