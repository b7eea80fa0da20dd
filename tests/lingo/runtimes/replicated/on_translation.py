"""Trains models of translation on one device and on two replicas; `test_translation.py` runs it.

It prints, for each model, the losses of five steps on both as JSON, and the largest difference of a
weight after them. A process of its own, because TensorFlow chooses its devices once a process.
"""

from __future__ import annotations

import json

import numpy as np

from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.mesh.test_translation import mlperf, recurrent, trained, wmt14

if __name__ == "__main__":
    split_processor(2)
    found = {}
    for made in (wmt14, mlperf, recurrent):
        (one, weights), (two, others) = (
            trained(made(), runtime)
            for runtime in (Local.params(), Replicated.params(devices=["CPU:0", "CPU:1"]))
        )
        losses = [np.asarray(report["loss/total"]).tolist() for report in (one, two)]
        apart = [np.abs(np.asarray(others[k]) - value).max() for k, value in weights.items()]
        found[made.__name__] = {"losses": losses, "apart": float(max(apart))}
    print(json.dumps(found))
