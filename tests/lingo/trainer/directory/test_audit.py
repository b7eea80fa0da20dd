"""The audit log has a whole row for every step, and none for steps that will be done again."""

import json

import numpy as np
import pytest

from lingo.storage.files import StorageError
from lingo.trainer.directory.audit import Audit, digest


@pytest.fixture
def audit(tmp_path):
    return Audit(tmp_path / "audit.jsonl")


def batch(step):
    return {"example_id": np.array([2 * step, 2 * step + 1]), "tokens": np.full([2, 3], step, "i")}


def written(audit, steps):
    for step in steps:
        loss = float(np.float32(1 / (step + 1)))
        known = {"examples": [2 * step, 2 * step + 1], "origins": ["0:1", "0:0"]}
        audit.add(step + 1, batch(step), number=step, loss=loss, **known)
    audit.write()
    return audit.path.read_bytes()


def test_a_row_says_exactly_what_a_step_was_done_on_and_what_came_of_it(audit):
    row = json.loads(written(audit, [2]))
    assert float.fromhex(row.pop("loss")) == np.float32(1 / 3)
    assert row == {
        "step": 3,
        "batch": 2,
        "digest": digest(batch(2)),
        "examples": [4, 5],
        "origins": ["0:1", "0:0"],
    }


def test_a_step_that_changed_nothing_says_why_and_a_part_of_a_batch_has_no_digest(audit):
    half, loss = {name: array[:1] for name, array in batch(2).items()}, float("nan")
    known = {"examples": [4, 5], "origins": [], "not_finite": "loss/total"}
    audit.add(3, half, number=2, loss=loss, **known)
    audit.write()
    assert json.loads(audit.path.read_text()) == {"step": 3, "batch": 2, "loss": "nan", **known}


def test_digests_differ_where_any_bit_name_or_type_does():
    same = {"x": np.arange(4), "y": np.zeros(2)}
    assert digest(same) == digest(dict(reversed(same.items())))
    others = [
        {**same, "x": np.array([0, 1, 2, 4])},
        {**same, "y": np.array([0.0, -0.0])},
        {**same, "x": np.arange(4).reshape(2, 2)},
        {**same, "x": np.arange(4).astype("u8")},
        {"x": same["x"], "z": same["y"]},
    ]
    assert len({digest(same), *map(digest, others)}) == 6


def test_rows_of_later_steps_are_cut_and_the_rest_stays_byte_for_byte(audit):
    four = written(audit, range(4))
    written(audit, range(4, 7))
    audit.cut(4)
    assert audit.path.read_bytes() == four
    audit.cut(0)
    assert audit.path.read_bytes() == b""


def test_a_row_that_a_crash_cut_short_is_removed_and_other_damage_stays_to_be_seen(audit, tmp_path):
    audit.cut(3)
    assert list(tmp_path.iterdir()) == []
    lines = written(audit, range(3)).splitlines(keepends=True)
    audit.path.write_bytes(lines[0] + b"garbage\n" + lines[2] + b'{"step": 4, "lo')
    audit.cut(9)
    assert audit.path.read_bytes() == lines[0] + b"garbage\n" + lines[2]


def test_a_link_is_neither_cut_nor_continued(audit, tmp_path):
    (tmp_path / "other").write_text("kept")
    audit.path.symlink_to(tmp_path / "other")
    for write in (lambda: audit.cut(0), lambda: written(audit, [0])):
        with pytest.raises(StorageError, match=r"audit\.jsonl: it is a link"):
            write()
    assert (tmp_path / "other").read_text() == "kept"


def test_rows_that_could_not_be_written_are_written_with_the_next(tmp_path):
    audit = Audit(tmp_path / "folder/audit.jsonl")
    with pytest.raises(StorageError, match=r"audit\.jsonl"):
        written(audit, [0])
    audit.path.parent.mkdir()
    assert len(written(audit, [1]).splitlines()) == 2
