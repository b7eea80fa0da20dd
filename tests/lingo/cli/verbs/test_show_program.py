"""Showing the program of a step: what the devices of a mesh exchange."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lingo.mesh.topology import topology
from lingo.runtimes.mesh import engine
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import CompiledProgram
from lingo.runtimes.tpu.tpu_mesh import TpuMesh
from tests.lingo.runtimes.child import QUICK_TO_COMPILE

pytestmark = pytest.mark.xdist_group("show_program")  # the script runs once

MESH = "--set=runtime=Mesh(data=2,model=4)"
SMALL = ["--exp=lm.source.tiny(model_dim=32,num_layers=2)", MESH, "--set=eval_inputs={}"]

# JAX counts its devices once a process: this one shows, and trains, on eight.
SCRIPT = f"""
import contextlib, io, json
from lingo.cli.main import main

def printed(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*arguments, "--devices=8", *{SMALL!r}])
    return code, out.getvalue()

json.dump({{
    "json": printed("show", "--program", "--format=json"),
    "eval": printed("show", "--program=eval", "--format=json"),
    "tpu": printed("show", "--program", "--format=json", "--compiler=tpu"),
    "train": printed("train", "--logdir=run", "--set=max_steps=1"),
}}, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script printed, and `program`, what the run keeps of its program."""
    directory = tmp_path_factory.mktemp("program")
    root = str(pathlib.Path(__file__).parents[4])
    subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": root} | QUICK_TO_COMPILE,
        check=True,
        cwd=directory,
        capture_output=True,
    )
    shown = json.loads((directory / "found.json").read_text())
    events = EventAccumulator(str(directory / "run" / "train")).Reload()
    (text,) = events.Tensors("program")
    return shown | {
        "program": (directory / "run" / "program.txt").read_text(),
        "tensorboard": text.tensor_proto.string_val[0].decode(),
    }


def test_json_has_what_each_layer_exchanges_along_which_axes(found: dict[str, Any]) -> None:
    code, out = found["json"]
    shown = json.loads(out)
    assert (code, shown["devices"]) == (0, 8)
    assert {row["kind"] for row in shown["collectives"]} == {"all-reduce"}
    by_layer = {(r["phase"], r["layer"], tuple(r["axes"])): r for r in shown["collectives"]}
    for layer in (
        f"model/stack/layers/{i}/{part}" for i in (0, 1) for part in ("attention", "ffn")
    ):
        assert (
            by_layer["forward", layer, ("model",)]["tensors"] == 1
        )  # Megatron's: one, and no more
        assert by_layer["backward", layer, ("model",)]["tensors"] >= 1
        assert by_layer["backward", layer, ("data",)]["tensors"] >= 3  # gradients of its weights
    rows = 4 // 2
    assert by_layer["forward", "model/embedding", ("model",)]["bytes"] == rows * 256 * 32 * 4


def test_json_has_the_memory_of_a_device(found: dict[str, Any]) -> None:
    memory = json.loads(found["json"][1])["memory"]
    assert set(memory) == {"arguments", "outputs", "aliased", "temporaries"}
    assert 0 < memory["aliased"] <= memory["outputs"]


def test_an_evaluation_goes_forward_only(found: dict[str, Any]) -> None:
    shown = json.loads(found["eval"][1])
    assert {row["phase"] for row in shown["collectives"] if row["layer"]} == {"forward"}
    assert shown["product_flops"] * 3 <= json.loads(found["json"][1])["product_flops"]


def test_the_program_of_tpus_exchanges_as_much_and_has_cycles(found: dict[str, Any]) -> None:
    code, out = found["tpu"]
    shown, here = json.loads(out), json.loads(found["json"][1])
    assert (code, shown["devices"]) == (0, 8)
    assert sum(shown["bytes_by_kind"].values()) <= 1.05 * sum(here["bytes_by_kind"].values())
    assert abs(shown["product_flops"] / here["product_flops"] - 1) < 0.05
    tpu = shown["tpu"]
    assert (tpu["topology"], here["tpu"]) == ("v5e:2x4", None)
    assert 0 < tpu["utilization"] < 1
    assert tpu["seconds"] == tpu["cycles"] / 1.5e9


def test_a_run_keeps_the_table(found: dict[str, Any]) -> None:
    assert found["train"][0] == 0
    lines = found["program"].splitlines()
    assert lines[0] == "on one of 8 devices: data=2, model=4"
    assert ["model", "forward", "model/stack/layers/*/ffn"] in [line.split()[-3:] for line in lines]
    shown = json.loads(found["json"][1])
    assert f"{shown['product_flops']:.4g}," in [line.split()[1] for line in lines[-3:]]


def test_tensorboard_shows_the_table_as_it_is(found: dict[str, Any]) -> None:
    lines = found["tensorboard"].splitlines()
    assert [line.removeprefix("    ") for line in lines] == found["program"].splitlines()


def test_the_table_ends_with_the_time_that_it_took(lingo, monkeypatch):
    made: list[int] = []
    text = "ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2]{0} parameter(0)\n}\n"
    program = CompiledProgram(topology({"data": 2, "model": 4}), text, 1, {}, 1.5, 2.5)
    monkeypatch.setattr(Mesh, "make_devices", lambda self, num: made.append(num))
    monkeypatch.setattr(Mesh, "compile_program", lambda *args, **_: program)
    done = lingo("show", "--exp=lm.source.tiny", MESH, "--program")
    assert (done.code, done.err) == (0, "compiling a step for 8 devices\n")
    assert done.out.splitlines()[-1] == "seconds  1.5 to trace, 2.5 to compile"
    assert made == [8]  # as many as the mesh has, unless --devices says otherwise
    lingo("show", "--exp=lm.source.tiny", MESH, "--program", "--devices=16")
    assert made == [8, 16]


TPU = "--set=runtime=TpuMesh(data=2)"


def test_processors_stand_in_for_the_cores_of_a_tpu_that_is_compiled_for(lingo, monkeypatch):
    made: list[int] = []
    wanted: list[str | None] = []

    def compile_program(*args: Any, **options: Any) -> CompiledProgram:
        wanted.append(options["topology"])
        text = "ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2]{0} parameter(0)\n}\n"
        return CompiledProgram(topology({"data": 2}), text, 1, {}, 1.5, 2.5)

    monkeypatch.setattr(engine, "make_devices", made.append)
    monkeypatch.setattr(TpuMesh, "compile_program", compile_program)
    done = lingo("show", "--exp=lm.source.tiny", TPU, "--program", "--compiler=tpu")
    assert (done.code, done.err) == (0, "compiling a step for 2 devices of TPUs, v5e:2x2\n")
    assert (made, wanted) == ([2], ["v5e:2x2"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--program"], "runtime=Local: every device computes the whole step"),
        (["--program", "--set=runtime=Replicated"], "runtime=Replicated: every device computes"),
        (
            ["--program", "--set=runtime=Replicated(shard_update=True)"],
            "sums whole gradients by an all-reduce (TensorFlow's reduce-scatter only times out",
        ),
        ([TPU, "--program", "--devices=8"], "devices=8: TpuMesh computes on the cores of a TPU"),
        ([MESH, "--program=decode"], "value should be one of train|eval"),
        (["--devices=8"], "--devices goes with --program and --pipeline"),
        (["--compiler=tpu"], "--compiler goes with --program"),
        (["--topology=v5e:2x4"], "--topology goes with --program"),
        ([MESH, "--program", "--compiler=tpu", "--topology=v9:2"], "no generation 'v9': v3, v4"),
        ([MESH, "--program", "--topology=v5e:2x4"], "--topology=v5e:2x4 goes with --compiler=tpu"),
    ],
)
def test_what_has_no_program_is_refused(lingo: Any, flags: list[str], message: str) -> None:
    done = lingo("show", "--exp=lm.source.tiny", *flags)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_mesh_of_a_tpu_becomes_one_of_other_devices(lingo: Any) -> None:
    done = lingo("show", "--exp=lm.source.tiny", TPU, "--set=TpuMesh=Mesh")
    assert "runtime = Mesh\n" in done.out
