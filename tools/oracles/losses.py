"""Writes losses of vectors by optax, with which tests compare lingo's.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install optax
    /tmp/oracle/bin/python tools/oracles/losses.py > tests/lingo/ops/losses.json

Last run with optax 0.2.8.
"""

import importlib
import json
from typing import Any

import numpy as np

SIZES = (6, 5)  # vectors, dims


def main() -> None:
    """Prints {name of a loss: values}, and the vectors."""
    optax: Any = importlib.import_module("optax")
    draw = np.random.default_rng(0)
    a, p, n = (draw.normal(size=SIZES).astype(np.float32) for _ in range(3))
    pairs = np.array([0, 1, 2, 0, 1, 2])  # one other vector of the same label
    found = {
        "triplet": optax.losses.triplet_margin_loss(a, p, n, margin=2.0),
        "contrastive": optax.losses.ntxent(a, pairs, temperature=0.5),
        "vectors": [a, p, n],
    }
    print(json.dumps({k: np.asarray(v).tolist() for k, v in found.items()}, indent=1))


if __name__ == "__main__":
    main()
