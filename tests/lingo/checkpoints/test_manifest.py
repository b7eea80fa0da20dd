"""A manifest is what was written, or it is damage with a reason."""

import copy
import os
import shutil

import pytest

from lingo.checkpoints import manifest
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.manifest import MANIFEST, read_manifest, step_name, step_of


def test_a_step_has_one_name():
    for step in (0, 7, 123456789, 2**31 - 1):
        assert step_of(step_name(step)) == step
    others = ["step_7", "step_000000007", "step_00000007.corrupt-1", "step_99999999999", ".tmp-7-1"]
    assert {step_of(name) for name in others} == {None}


def test_it_says_what_is_in_a_checkpoint(tmp_path, save):
    body = read_manifest(save(tmp_path, 20))
    assert (body["format"], body["step"], body["metadata"]) == (1, 20, {"seed": 1})
    assert body["tensors"]["weights/ffn/w"] == {"shape": [3, 4], "dtype": "float32"}
    assert sorted(body["files"]) == ["tensors.data-00000-of-00001", "tensors.index"]
    assert body["files"]["tensors.data-00000-of-00001"]["size"] == 2 * 48 + 8


@pytest.mark.parametrize("text", ["", "{}", "\xff", '{"sha256": "x"}'])
def test_what_is_no_manifest_is_damage(tmp_path, save, text):
    path = save(tmp_path, 1)
    (path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedCheckpoint, match=f"damaged: {MANIFEST}"):
        read_manifest(path)


def test_a_manifest_that_is_too_long_is_not_read(tmp_path, save, monkeypatch):
    path = save(tmp_path, 1)
    monkeypatch.setattr(manifest, "MAX_BYTES", (path / MANIFEST).stat().st_size - 1)
    with pytest.raises(DamagedCheckpoint, match="it is longer than"):
        read_manifest(path)
    with pytest.raises(ValueError, match="3 tensors need a manifest of more than"):
        save(tmp_path, 2)
    assert os.listdir(tmp_path) == ["step_00000001"]


def test_another_spelling_of_the_same_content_is_damage(tmp_path, save):
    path = save(tmp_path, 1) / MANIFEST
    path.write_text(path.read_text().replace('"step": 1', '"step":  1'))
    with pytest.raises(DamagedCheckpoint, match="its bytes have changed"):
        read_manifest(path.parent)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"format": NaN}', b"\xff", b"[1]"])
def test_what_is_no_manifest_is_damage_whatever_its_digest(tmp_path, save, text):
    blank = b'{\n "sha256": "' + b"0" * 64 + b'",\n "a": ' + text + b"}\n"
    path = save(tmp_path, 1)
    (path / MANIFEST).write_bytes(manifest._with_digest(blank))
    with pytest.raises(DamagedCheckpoint, match=r"it is not a manifest|it has no format"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": "1"}, "step is str '1', not a whole number"),
        ({"step": 2}, "it is the manifest of step 2"),
        (
            {"files": {"../../etc/passwd": {"size": 1, "sha256": ""}}},
            "is not the name of a bundle's file",
        ),
        ({"format": True}, "it has no format"),
    ],
)
def test_a_right_digest_does_not_make_it_right(tmp_path, save, rewrite, changes, said):
    path = save(tmp_path, 1)
    rewrite(path, **changes)
    with pytest.raises(DamagedCheckpoint, match=said) as caught:
        read_manifest(path)
    assert (caught.value.path, caught.value.file) == (path, MANIFEST)


def test_a_later_format_is_not_called_damage(tmp_path, save, rewrite):
    path = save(tmp_path, 1)
    rewrite(path, format=2, files=None)
    with pytest.raises(NoUsableCheckpoint, match="has format 2; this lingo reads 1"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("link", "it is a link, not a file"),
        ("pipe", "it is a named pipe, not a file"),
        ("directory", "it is a directory, not a file"),
        ("missing", "No such file"),
    ],
)
def test_only_a_regular_file_is_read(tmp_path, save, kind, reason):
    path = save(tmp_path / "c", 1)
    away = shutil.move(path / MANIFEST, tmp_path / "away")
    if kind == "link":
        (path / MANIFEST).symlink_to(away)
    elif kind == "pipe":
        os.mkfifo(path / MANIFEST)
    elif kind == "directory":
        (path / MANIFEST).mkdir()
    with pytest.raises(DamagedCheckpoint, match=reason):
        read_manifest(path)


DATA, INDEX = "tensors.data-00000-of-00001", "tensors.index"
SHA256 = "0" * 64
FILE = {"size": 3, "sha256": SHA256}


def content():
    return {
        "format": 1,
        "step": 20,
        "metadata": {
            "seed": -1,
            "config": "abc",
            "skipped_steps": 0,
            "data_position": {"step": 20, "examples": 80, "epoch": 1},
            "own": None,
        },
        "tensors": {"weights/w": {"shape": [3, 0], "dtype": "bfloat16"}},
        "files": {DATA: FILE, INDEX: FILE},
    }


def changed(path, value):
    body = at = copy.deepcopy(content())
    *parents, last = path.split(" ")
    for name in parents:
        at = at[name]
    at[last] = value
    return body


def test_what_lingo_writes_is_accepted():
    manifest.check_schema(content())
    manifest.check_schema(content() | {"metadata": {}, "tensors": {}})


@pytest.mark.parametrize("field", ["step", "metadata", "tensors", "files"])
def test_no_field_may_be_missing(field):
    body = content()
    del body[field]
    with pytest.raises(ValueError, match=f"it has no '{field}'"):
        manifest.check_schema(body)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("step", True, "step is bool True, not a whole number"),
        ("step", -1, r"step is int -1, not in 0\.\."),
        ("metadata config", 1, "metadata.config is int 1, not a text"),
        ("metadata skipped_steps", -2, "metadata.skipped_steps is int -2"),
        ("metadata data_position", {"step": 1}, "metadata.data_position.examples is missing"),
        ("metadata skipped_steps", 21, "its counters are impossible after 20 steps"),
        ("metadata guard", {"spiked": "x"}, "its counters are|a counter is"),
        ("metadata metrics", {"loss": 3}, "its counters are invalid"),
        ("tensors weights/w", 3, "tensors.*weights/w.* is int 3, not an object"),
        ("tensors weights/w", {"dtype": "float32"}, "shape is missing"),
        ("tensors weights/w shape", [-1], "shape is int -1"),
        ("tensors weights/w dtype", "string", "dtype is 'string', not a type of numbers"),
        ("tensors a\x1b[2J", {"shape": [], "dtype": "int8"}, "is not the name of a tensor"),
        ("files ../../etc/passwd", FILE, "'../../etc/passwd' is not the name of a bundle's file"),
        ("files tensors.data-00001-of-00001", FILE, "does not name all files of the bundle"),
        ("files", {DATA: FILE}, "does not name all files of the bundle"),
        (f"files {DATA}", {"size": 3}, "sha256 is missing"),
        (f"files {DATA}", {"size": 3, "sha256": "x"}, "sha256 is not a digest"),
    ],
)
def test_what_no_manifest_says_is_refused_in_words(path, value, said):
    with pytest.raises(ValueError, match=said):
        manifest.check_schema(changed(path, value))
