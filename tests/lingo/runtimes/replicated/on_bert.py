"""Trains a BERT on one device and on two replicas; `test_bert.py` runs it.

It prints the losses of both as JSON, and the largest difference of a weight after the steps. A
process of its own, because TensorFlow chooses its devices once a process.
"""

from __future__ import annotations

import json

import numpy as np

from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.mesh.test_bert import model, trained

if __name__ == "__main__":
    split_processor(2)
    (one, weights), (two, others) = (
        trained(model(), runtime)
        for runtime in (Local.params(), Replicated.params(devices=["CPU:0", "CPU:1"]))
    )
    losses = [np.asarray(report["loss/total"]).tolist() for report in (one, two)]
    apart = [np.abs(np.asarray(others[k]) - value).max() for k, value in weights.items()]
    print(json.dumps({"losses": losses, "apart": float(max(apart))}))
