"""Checks that Mask R-CNN learns on four replicas what it learns on one device.

`test_mask_rcnn.py` runs it, in a process of its own, because TensorFlow chooses its devices once a
process.
"""

from __future__ import annotations

from lingo.runtimes.devices import split_processor
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.mesh.test_instance_segmentation import check, train

if __name__ == "__main__":
    split_processor(4)
    check(train(Replicated.params(devices=[f"CPU:{i}" for i in range(4)])))
    print("equal")
