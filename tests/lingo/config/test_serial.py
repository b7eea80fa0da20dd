"""Claims about configurations as JSON."""

from __future__ import annotations

import collections
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lingo.config import codec, serial, text
from lingo.config.node.tree import nodes, same
from lingo.config.params import ParamError
from lingo.config.serial import Origin
from lingo.layers.linear import Linear

HERE = str(Path(__file__).parent / "conftest.py")


def test_what_was_set_is_written_and_nothing_else(toys: Any) -> None:
    toy = toys.Toy.params(name="x")
    toy.optimizer.betas = (0.5, 0.25)
    toy.eval_inputs["new"] = toys.Input  # changed inside the container
    written = json.loads(serial.dump(toy, Origin(), "0"))
    assert written["params"] == {
        "@": "conftest.py:Toy",
        "optimizer": {"@": "conftest.py:Adam", "betas": {"@tuple": [0.5, 0.25]}},
        "eval_inputs": {"heldout": {"@": "conftest.py:Input"}, "new": {"@": "conftest.py:Input"}},
        "name": "x",
    }


def test_random_trees_come_back_exactly(toys: Any, random_tree: Any) -> None:
    for seed in range(60):
        tree = random_tree(seed)
        written = serial.dump(tree, Origin(overrides=("a=b",)), "d1")
        again = serial.load(written, trust=[HERE])
        assert same(again.params, tree)
        assert text.resolve(again.params) == text.resolve(tree)
        assert serial.dump(again.params, again.origin, again.digest) == written


def test_the_header_comes_back(toys: Any) -> None:
    origin = Origin(
        "lm.tiny",
        "/a/b.py",
        "tiny",
        {"dim": 3, "norm": toys.Norm.params(dim=2)},
        ("x=1", "exp.dim=3"),
    )
    again = serial.load(serial.dump(toys.Toy.params(), origin, "abc"), trust=[HERE])
    assert again.origin._replace(arguments={}) == origin._replace(arguments={})
    assert same(again.origin.arguments, origin.arguments)
    assert again.digest == "abc"


def test_size_and_work_are_linear(toys: Any) -> None:
    def measure(n: int) -> tuple[int, int]:
        stack = toys.Stack.params(layer=[toys.Block.params(dim=3) for _ in range(n)])
        work = collections.Counter[str]()
        sys.setprofile(lambda frame, event, argument: work.update([event]))
        try:
            written = serial.dump(stack, Origin(), "0")
            serial.load(written, trust=[HERE])
        finally:
            sys.setprofile(None)
        return len(written), work["call"] + work["c_call"]

    (size, calls), (large, more) = measure(200), measure(2000)
    assert large < 10.5 * size
    assert more < 10.5 * calls


def test_a_tree_too_deep_to_be_read_is_not_written(toys: Any) -> None:
    node = toys.Norm.params()
    for _ in range(80):
        node = toys.Remat.params(layer=node)
    with pytest.raises(ParamError, match="too deep"):
        serial.dump(node, Origin(), "")


def hostile(params: Any, arguments: Any = None, overrides: Any = (), **changes: Any) -> str:
    experiment = {"name": "", "file": "", "function": "", "arguments": arguments or {}}
    content = {"format": 1, "experiment": {**experiment, "overrides": overrides}, "files": {}}
    return json.dumps({**content, "digest": "", "params": params, **changes})


def linear(**fields: Any) -> dict[str, Any]:
    return {"@": LINEAR, **fields}


def in_file(path: str) -> str:
    return hostile({"@": "x.py:X"}, files={"x.py": {"path": path, "sha256": "", "module": "x"}})


LINEAR = f"{Linear.__module__}:Linear"
ROOTS = "lingo.config.roots.roots"
NESTED = json.loads("[" * 200 + "]" * 200)


HOSTILE = {
    "getoutput": (hostile({"@": "subprocess:getoutput"}), "in no trusted place"),
    "popen": (hostile(linear(dim={"@": "subprocess:Popen", "args": "x"})), "in no trusted place"),
    "function of lingo": (
        hostile({"@": "lingo.config.registry:get"}),
        "has no class or function get",
    ),
    "module of lingo": (hostile({"@": "lingo.config:roots"}), "has no class or function roots"),
    "imported name": (hostile({"@": f"{ROOTS}:Path"}), "has no class or function Path"),
    "class of no fields": (hostile({"@": f"{ROOTS}:Roots"}), "has no class or function Roots"),
    "dotted name": (hostile({"@": f"{ROOTS}:Roots.find"}), "not the name of a class"),
    "slash": (hostile({"@": "/tmp/x.py:X"}), "not the name of a class"),
    "long name of a part": (hostile({"@": f"lingo.{'a' * 180}:X"}), "in no trusted place"),
    "many dots": (hostile({"@": "lingo" + ".a" * 100_000 + ":X"}), "not the name of a class"),
    "Params": (hostile({"@": "lingo.config.params:Params"}), "has no class or function Params"),
    "unlisted file": (hostile({"@": "x.py:X"}), "'files' does not say where 'x.py' is"),
    "untrusted file": (in_file("/tmp/x.py"), "--trust=/tmp/x.py"),
    "path with a zero": (in_file("/tmp/\0x.py"), "has the path"),
    "path of no text": (in_file("/tmp/\ud800"), "has the path"),
    "relative path": (in_file("x.py"), "has the path 'x.py'"),
    "number for a name": (hostile({"@": 3}), "not the name of a class"),
    "object for a name": (hostile({"@": {"@": "subprocess:Popen"}}), "not the name of a class"),
    "in the arguments": (hostile(linear(), {"a": {"@": "os:x"}}), "in no trusted place"),
    "escaped key": (hostile({"@": "nope:X"}).replace('"@"', '"\\u0040"'), "trusted"),
    "unknown field": (hostile(linear(dmi=3)), "no field 'dmi'. Did you mean 'dim'"),
    "wrong type": (hostile(linear(dim="3")), "dim takes int, got '3'"),
    "unknown mark": (hostile(linear(dim={"@pickle": "x"})), "'@pickle' means nothing here"),
    "two marks": (hostile(linear(dim={"@tuple": [], "@dict": []})), "means nothing here"),
    "half a pair": (hostile(linear(dim={"@dict": [["a"]]})), "pairs"),
    "deep lists": (hostile(linear(dim=NESTED)), "nested more than 64 deep"),
    "very deep lists": ("[" * 10_000_000, "nested more than 64 deep"),
    "large": (" " * (16 * 2**20 + 1), "larger than 16 MiB"),
    "large in bytes": (("é" * (2**23 + 1)).encode(), "larger than 16 MiB"),
    "expansion": (hostile(linear(dim=[{"@": LINEAR}] * 60_000)), "more than 50000 Params"),
    "many digits": (hostile(linear(dim=1)).replace("1}", "1" * 10_000 + "}"), "too many digits"),
    "not a number": (hostile(linear(dim=float("nan"))), "NaN is not a finite number"),
    "infinite": (hostile(linear(dim=1)).replace("1}", "1e999}"), "1e999 is not a finite number"),
    "twice": ('{"format": 1, "format": 2}', "'format' is twice"),
    "empty": ("", "not JSON"),
    "bytes": (b"\xff\xfe", "not text"),
    "other JSON": ('{"a": 1}', "not a configuration of lingo"),
    "arguments with a class": (hostile(linear(), linear()), "arguments have"),
    "large number": (hostile(linear(dim=2**63)), "A whole number has 64 bits"),
    "format that is true": (hostile(linear(), format=True), "format True, and"),
    "format of many digits": (hostile(linear(), format=10**4000), "format 1000"),
    "deep format": (hostile(linear(), format=NESTED), "reads format 1"),
    "newer format": (hostile(linear(), format=2), "format 2, and this lingo reads format 1"),
    "no params": (hostile({}), "no class"),
    "params are a list": (hostile([]), "'params' that is not a dict"),
    "unknown member": (hostile(linear(), code="x"), "must consist of"),
    "overrides of another type": (hostile(linear(), overrides=[3]), "not all texts"),
    "file of another shape": (hostile(linear(), files={"x.py": "y"}), "consist of path, sha256"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_refused_at_once_and_imports_nothing(name: str) -> None:
    content, message = HOSTILE[name]
    before = set(sys.modules)
    start = time.process_time()
    with pytest.raises(ParamError, match=message) as caught:
        serial.load(content)
    assert time.process_time() - start < 5.0
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000
    assert set(sys.modules) == before


def test_the_digest_can_be_read_without_the_classes(toys: Any) -> None:
    written = serial.dump(toys.Toy.params(), Origin(), "abc")
    assert serial.recorded_digest(written.replace("conftest.py:", "gone.py:")) == "abc"
    assert serial.recorded_digest("{}") is None
    assert serial.recorded_digest("[" * 100_000) is None


def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ParamError, match="it is a named pipe, not a file"):
        serial.read(tmp_path / "config.json")
    with pytest.raises(ParamError, match="cannot be read: No such file"):
        serial.read(tmp_path / "none.json")


def test_what_could_not_be_read_is_not_written(toys: Any) -> None:
    with pytest.raises(ParamError, match=r"cannot be saved, since .* larger than"):
        serial.dump(toys.Toy.params(name="x" * 2**24), Origin(), "")


def test_what_is_counted_is_what_there_is(toys, tmp_path, monkeypatch):
    """A part that is written counts once, not once more in the defaults of each one around it."""
    toy = toys.Toy.params(name="x")
    toy.optimizer.betas = (0.5, 0.25)
    monkeypatch.setattr(codec, "MAX_PARAMS", len(nodes(toy)))
    written = serial.dump(toy, Origin(), "")
    assert same(serial.load(written, trust=[HERE]).params, toy)
    monkeypatch.setattr(codec, "MAX_PARAMS", len(nodes(toy)) - 1)
    with pytest.raises(ParamError, match=r"more than .* Params"):
        serial.load(written, trust=[HERE])
    with pytest.raises(ParamError, match=r"more than .* Params"):
        serial.dump(toy, Origin(), "")
