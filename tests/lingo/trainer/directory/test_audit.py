"""The audit log has a whole row for every step, and none for steps that will be done again."""

import json
import os

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


def lines(audit):
    return audit.path.read_bytes().splitlines(keepends=True)


def test_a_whole_log_is_resumed_as_it_is(audit):
    assert audit.resume(0) == ""
    assert not audit.path.exists()
    five = written(audit, range(5))
    with audit.path.open("ab") as file:
        file.write(b'{"step": 6, "lo')  # a crash
    assert audit.resume(5) == ""
    assert audit.path.read_bytes() == five
    assert audit.resume(3) == ""
    assert lines(audit) == five.splitlines(keepends=True)[:3]


@pytest.mark.parametrize(
    ("harm", "missing"),
    [
        (lambda rows: [], [[1, 6]]),
        (lambda rows: rows[:-1], [[6, 6]]),
        (lambda rows: [*rows[:-1], rows[-1][:-1]], [[6, 6]]),  # without its end
        (lambda rows: [*rows[:-1], rows[-1][:9]], [[6, 6]]),
        (lambda rows: [rows[0], b"garbage\n", *rows[2:]], [[2, 2]]),
        (lambda rows: [rows[0], rows[1][:40] + b"\0" + rows[1][41:], *rows[2:]], [[2, 2]]),
        (lambda rows: [rows[0], b"\n", *rows[3:5], b'{"step": 6}\n'], [[2, 3], [6, 6]]),
        (lambda rows: [rows[0], rows[1][:20] + rows[3][20:], *rows[4:]], [[3, 4]]),
        (lambda rows: [*rows[:5], b"[" * 10**5 + b"\n"], [[6, 6]]),
        (lambda rows: [*rows[:5], b'{"step": ' + b"9" * 5000 + b", 1\n"], [[6, 6]]),
    ],
)
def test_rows_that_are_missing_are_named_once_and_what_is_there_stays(audit, harm, missing):
    written(audit, range(6))
    harmed = harm(lines(audit))
    audit.path.write_bytes(b"".join(harmed))
    assert audit.resume(6) == ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in missing)
    *stayed, mark = lines(audit)
    assert stayed == [line for line in harmed if line.endswith(b"\n")]
    assert json.loads(mark) == {"step": 6, "missing": missing}
    written(audit, [6])
    assert audit.resume(7) == ""
    assert len(lines(audit)) == len(stayed) + 2


def test_a_deleted_log_begins_with_what_it_lacks(audit):
    assert audit.resume(40) == "1 to 40"
    written(audit, [40])
    mark, row = map(json.loads, lines(audit))
    assert mark == {"step": 40, "missing": [[1, 40]]}
    assert row["step"] == 41
    audit.cut(20)  # a rewind
    assert lines(audit) == []
    assert audit.resume(20) == "1 to 20"


@pytest.mark.parametrize("claim", [7, [[1]], [[1, 10**18]], [["a", "b"]], [[1.5, 2]], {"a": 1}])
def test_a_line_cannot_claim_more_than_the_steps_before_it(audit, claim):
    written(audit, [0])
    with audit.path.open("ab") as file:
        file.write(json.dumps({"step": 2, "missing": claim}).encode() + b"\n")
    assert audit.resume(4) == ("3 to 4" if claim == [[1, 10**18]] else "2 to 4")


def test_rows_are_on_the_disk_after_sync(audit, monkeypatch):
    seen, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda d: (seen.append(os.fstat(d).st_ino), fsync(d)))
    written(audit, [0])
    seen.clear()
    audit.sync()
    assert seen == [audit.path.stat().st_ino, audit.path.parent.stat().st_ino]


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


@pytest.mark.parametrize("lost", ["all", "half"])
def test_rows_that_are_lost_while_it_is_written_are_named(audit, lost, caplog):
    content = written(audit, range(4))
    audit.path.unlink()
    if lost == "half":
        audit.path.write_bytes(content[: len(content) // 2])  # ends inside the row of step 3
    rows = [json.loads(line) for line in written(audit, [4]).splitlines()]
    missing = [[1, 4]] if lost == "all" else [[3, 4]]
    assert {"step": 4, "missing": missing} in rows
    assert rows[-1]["step"] == 5
    assert "has lost the written rows of steps" in caplog.text
    assert written(audit, [5]).count(b"missing") == 1


def test_rows_that_a_rewind_cuts_are_not_missing(audit, caplog):
    written(audit, range(4))
    audit.cut(2)
    assert b"missing" not in written(audit, [2])
    assert caplog.text == ""
