"""A manifest of any origin either says what manifests say, or is refused in words."""

import copy

import pytest

from lingo.checkpoints import schema

DATA, INDEX = "tensors.data-00000-of-00001", "tensors.index"
SHA256 = "0" * 64
FILE = {"size": 3, "sha256": SHA256}


def manifest():
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
    body = at = copy.deepcopy(manifest())
    *parents, last = path.split(" ")
    for name in parents:
        at = at[name]
    at[last] = value
    return body


def test_what_lingo_writes_is_accepted():
    schema.check(manifest())
    schema.check(manifest() | {"metadata": {}, "tensors": {}})


@pytest.mark.parametrize("field", ["step", "metadata", "tensors", "files"])
def test_no_field_may_be_missing(field):
    body = manifest()
    del body[field]
    with pytest.raises(ValueError, match=f"it has no '{field}'"):
        schema.check(body)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("step", True, "step is bool True, not a whole number"),
        ("step", -1, r"step is int -1, not in 0\.\."),
        ("metadata config", 1, "metadata.config is int 1, not a text"),
        ("metadata skipped_steps", -2, "metadata.skipped_steps is int -2"),
        ("metadata data_position", {"step": 1}, "metadata.data_position.examples is missing"),
        ("metadata skipped_steps", 21, "no run can have|can have after 20 steps"),
        ("metadata guard", {"spiked": "x"}, "its position is|a count in its position"),
        ("metadata metrics", {"loss": 3}, "its position is not one that was written"),
        ("tensors weights/w", 3, "tensors.*weights/w.* is int 3, not an object"),
        ("tensors weights/w", {"dtype": "float32"}, "shape is missing"),
        ("tensors weights/w shape", [-1], "shape is int -1"),
        ("tensors weights/w dtype", "string", "dtype is 'string', not a type of numbers"),
        ("tensors a\x1b[2J", {"shape": [], "dtype": "int8"}, "is not the name of a tensor"),
        ("files ../../etc/passwd", FILE, "'../../etc/passwd' is not the name of a file in it"),
        ("files tensors.data-00001-of-00001", FILE, "does not name all files of the bundle"),
        ("files", {DATA: FILE}, "does not name all files of the bundle"),
        (f"files {DATA}", {"size": 3}, "sha256 is missing"),
        (f"files {DATA}", {"size": 3, "sha256": "x"}, "sha256 is not a digest"),
    ],
)
def test_what_no_manifest_says_is_refused_in_words(path, value, said):
    with pytest.raises(ValueError, match=said):
        schema.check(changed(path, value))
