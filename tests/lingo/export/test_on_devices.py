"""A model that was trained on several devices becomes a program for one."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from lingo.export.manifest import verify_export


def test_a_mesh_and_replicas_export_what_they_compute(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.lingo.export.on_devices", str(tmp_path)]
    root = pathlib.Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    for name in ("mesh", "replicated"):
        manifest = verify_export(tmp_path / f"{name}.saved")
        differences = manifest["check"]["differences"]
        assert {*differences} == {"predict", "score", "decode", "score_text", "decode_text"}
        for found in differences.values():
            assert (found["floats"] < 1e-5, found["others"]) == (True, 0)
