"""Writes results of torchvision's `roi_align`, with which tests compare lingo's.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch torchvision
    /tmp/oracle/bin/python tools/oracles/roi_align.py > tests/lingo/ops/roi_align.json

Last run with torchvision 0.29.1.
"""

import importlib
import json
from typing import Any

import numpy as np

SHAPE = (7, 9, 2)  # of the map: height, width, channels
BOXES = (  # top, left, bottom, right, in values of the map; two reach beyond it, one is thin
    (1.0, 1.0, 3.0, 3.0),
    (0.5, 0.25, 3.5, 3.0),
    (-2.5, -3.0, 4.0, 5.5),
    (2.0, 4.0, 11.5, 12.25),
    (3.25, 2.0, 3.5, 8.0),
)


def main() -> None:
    """Prints the map, and crops by form: "aligned 2" has 2 x 2 points of each bin."""
    torch, ops = importlib.import_module("torch"), importlib.import_module("torchvision.ops")
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    plane = torch.tensor(values).permute(2, 0, 1)[None]
    boxes = torch.tensor(BOXES)[:, [1, 0, 3, 2]]
    crops: dict[str, Any] = {}
    for form, samples in (("aligned", 1), ("aligned", 2), ("legacy", 2), ("legacy", 3)):
        found = ops.roi_align(plane, [boxes], 3, sampling_ratio=samples, aligned=form == "aligned")
        crops[f"{form} {samples}"] = found.permute(0, 2, 3, 1).numpy().tolist()
    print(json.dumps({"plane": values.tolist(), "boxes": BOXES, "crops": crops}))


if __name__ == "__main__":
    main()
