"""Promise 3: a damaged checkpoint is found before use, set aside, and the one before is used."""

import json
import os
import pathlib
import shutil

from lingo.checkpoints import store

FILES = ("MANIFEST.json", "tensors.data-00000-of-00001", "tensors.index")
POSITIONS = 40  # at which bytes are flipped in each file


def truncated(file):
    os.truncate(file, file.stat().st_size // 2)


def flipped(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(data)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def times(directory):
    """Returns when each file was written, but for the lock."""
    return {p: p.stat().st_mtime_ns for p in directory.rglob("*") if p.name != ".lock"}


def test_a_flipped_byte_anywhere_and_a_file_cut_short_or_missing_are_found_before_use(
    runs, reference
):
    directory = runs.folder / "checkpoints"
    shutil.copytree(reference.folder / "whole/checkpoints", directory)
    for name in FILES:
        file = directory / "step_00000012" / name
        whole = file.read_bytes()
        for i in range(POSITIONS):
            data = bytearray(whole)
            data[i * (len(data) - 1) // (POSITIONS - 1)] ^= 1 << i % 8
            file.write_bytes(data)
            found = store.latest(directory)
            assert found.step == 9, (name, i)
            assert found.later_errors[0].file == name
        for harm in (truncated, pathlib.Path.unlink):
            file.write_bytes(whole)
            harm(file)
            found = store.latest(directory)
            assert (found.step, found.later_errors[0].file) == (9, name)
        file.write_bytes(whole)


def test_the_run_goes_on_from_the_one_before_and_ends_the_same(runs, reference, again):
    flipped(runs.folder / "run/checkpoints/step_00000012/tensors.data-00000-of-00001")
    flipped(runs.folder / "run/checkpoints/step_00000009/MANIFEST.json")
    done = again()
    assert done.returncode == 0, done.stderr
    for step, file in ((12, "tensors.data-00000-of-00001"), (9, "MANIFEST.json")):
        name = f"step_{step:08d}"
        assert f"{name} is damaged: {file}: its bytes have changed" in done.stdout or (
            f"{name} is damaged: {file}: it is not a manifest" in done.stdout
        )
        assert f"renamed to {name}.corrupt-1" in done.stdout
    assert "resumed from" in done.stdout
    runs.assert_same(reference)
    assert names(runs.folder / "run/checkpoints") == [
        *("step_00000003", "step_00000006", "step_00000009", "step_00000009.corrupt-1"),
        *("step_00000012", "step_00000012.corrupt-1"),
    ]


def test_if_all_are_damaged_they_are_listed_and_nothing_is_written(runs, again):
    directory = runs.folder / "run/checkpoints"
    for step in runs.checkpoints("run"):
        flipped(store.step_path(directory, step) / "tensors.index")
    (directory / ".trash-step_00000001-0").mkdir()  # it may be what saves somebody's day
    (directory / "step_00000015").mkdir()
    before = times(runs.folder / "run")
    refused = again()
    assert refused.returncode == 3
    for step in (15, 12, 9, 6, 3):
        assert f"step_{step:08d} is damaged: " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert times(runs.folder / "run") == before


def test_who_only_reads_passes_over_damage_and_renames_nothing(runs, reference):
    run = runs.folder / "run"
    shutil.copytree(reference.folder / "whole", run)
    flipped(run / "checkpoints/step_00000012/tensors.index")
    before = names(run / "checkpoints")
    listed = runs.lingo("checkpoint", "verify", f"--run={run}", "--format=json")
    assert listed.returncode == 3
    found = {row["step"]: row["damage"] for row in json.loads(listed.stdout)["checkpoints"]}
    assert found == {
        **dict.fromkeys((3, 6, 9), None),
        12: "tensors.index: its bytes have changed",
    }
    inspected = runs.lingo("checkpoint", "inspect", f"--run={run}", "--format=json")
    assert inspected.returncode == 0
    assert json.loads(inspected.stdout)["step"] == 9
    assert "step_00000012 is damaged: tensors.index" in inspected.stderr
    assert names(run / "checkpoints") == before
