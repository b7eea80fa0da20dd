"""Mask R-CNN learns on replicas what it learns on one device; `on_mask_rcnn.py` computes it."""

import pathlib

from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed

PROGRAM = pathlib.Path(__file__).with_name("on_mask_rcnn.py")


def test_losses_weights_and_predictions_are_those_of_one_device(tmp_path: pathlib.Path) -> None:
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    out = printed(str(PROGRAM), cwd=tmp_path, env=environment | QUICK_TO_COMPILE)
    assert out.splitlines()[-1] == "equal"
