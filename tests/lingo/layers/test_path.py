"""Paths: a program path stands for one name per layer, and gives each the key of its name."""

from __future__ import annotations

import pytest

from lingo.layers import path
from lingo.ops import random

ROOT = random.root_key(0)


@pytest.mark.parametrize(
    ("where", "names", "shape"),
    [
        ("ffn/w", ["ffn/w"], ()),
        ("l/[0:2]/w", ["l/0/w", "l/1/w"], (2,)),
        ("l/[1:6:2]/w", ["l/1/w", "l/3/w", "l/5/w"], (3,)),
        ("a/[0:2]/b/[3:5]/w", ["a/0/b/3/w", "a/0/b/4/w", "a/1/b/3/w", "a/1/b/4/w"], (2, 2)),
    ],
)
def test_a_slice_stands_for_every_index_in_row_major_order(where, names, shape):
    assert path.names(where) == names
    assert path.stack_shape(where) == shape


def test_only_a_whole_part_is_a_slice() -> None:
    assert path.index_range(path.slice_part(2, 7, 3)) == range(2, 7, 3)
    assert path.index_range(path.slice_part(0, 4)) == range(4)
    for part in ("4", "x[0:4]", "[:4]", "[0:4]x", ""):
        assert path.index_range(part) is None


def test_joining_leaves_out_empty_parts() -> None:
    assert path.join("", "a", "", "b/c") == "a/b/c"
    assert path.join("", "") == ""


def test_the_key_of_a_stacked_layer_is_that_of_its_name() -> None:
    where = "a/[0:2]/b/[1:6:2]/w"
    keys = [
        path.key(ROOT, where, {"a/[0:2]": i, "a/[0:2]/b/[1:6:2]": j})
        for i in (0, 1)
        for j in (1, 3, 5)
    ]
    assert keys == [path.key(ROOT, name) for name in path.names(where)]
    assert len(set(keys)) == 6


def test_keys_depend_on_the_whole_path() -> None:
    paths = ["", "a", "a/b", "b/a", "a/0", "a/1", "ab", "0/a"]
    assert len({path.key(ROOT, p) for p in paths}) == len(paths)
