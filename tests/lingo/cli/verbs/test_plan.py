"""Plans on the command line."""

from __future__ import annotations

import json
import math
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from lingo.inspection.plan import input_part
from lingo.inspection.plan.table import duration
from tools.predictions import PAGES, tables
from tools.studies.page import fill_tables

TINY = ("plan", "--exp=lm.source.tiny(num_layers=2)", "--hardware=h100")


def test_a_search_ends_with_flags_that_build(lingo: Callable) -> None:
    done = lingo(*TINY, "--devices=4", "--top=3", "--batch=8")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("lm.source.tiny(num_layers=2): 8 examples a step, ")
    assert any("A prediction, not a measurement" in line for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("   ")] == ["1", "2", "3"]
    flags = shlex.split(lines[-1])
    assert flags[:2] == [TINY[1], "--set=train_input.batch_size=8"]
    assert lingo("check", *flags).code == 0


def test_json_has_the_same_ways(lingo: Callable) -> None:
    found = json.loads(lingo(*TINY, "--devices=4", "--format=json").out)
    assert found["is_prediction"] is True
    times = [way["step_seconds"] for way in found["ways"]]
    assert times == sorted(times)
    assert len({json.dumps(way["mesh"]) for way in found["ways"]}) == len(times)
    for way in found["ways"]:
        assert way["step_seconds"] == pytest.approx(sum(way["seconds"].values()))
        assert way["settings"][0].startswith("runtime=Mesh(")


def test_json_has_what_the_text_has(lingo: Callable) -> None:
    arguments = (*TINY, "--devices=16", "--batch=32", "--price=3", "--input_rate=500", "--top=2")
    arguments = (*arguments, "--input_variation=0.5")
    lines, found = lingo(*arguments).out, json.loads(lingo(*arguments, "--format=json").out)
    first, plan_lines = found["ways"][0], lines.splitlines()
    price, need = first["price"], first["input"]["need"]
    assert first["step_seconds_with_input"] == need["even_seconds"] * need["slowdown"]
    assert price["step"] == pytest.approx(3 * 16 * first["step_seconds_with_input"] / 3600)
    assert price["million_examples"] == pytest.approx(1e6 * price["step"] / 32)
    assert price["training"] == pytest.approx(1200 * price["step"])
    assert price["training"] == pytest.approx(3 * first["device_hours"])
    assert (found["max_steps"], found["training_examples"]) == (1200, 1200 * 32)
    assert found["training_tokens"] == 1200 * 32 * 256
    assert found["input_rate"] == {
        "examples_per_second": 500,
        "variation": 0.5,
        "source": "given",
    }
    assert first["flags"] == plan_lines[-1]
    assert f"price {price['step']:.4g} a step, " in lines
    assert f"{price['training']:.3g} the training" in lines
    assert f"each host needs {need['cores']:.3g} cores and has 112; " in lines
    assert "uneven hosts, simulated for 2,000 steps: batches vary by 50%" in lines
    assert "from 2 hosts" in lines
    assert first["input"]["hosts"] == 2
    (head,) = [line for line in plan_lines if line.startswith("rank ")]
    assert "price/million" in head


def test_an_input_that_is_too_slow_is_the_limit_of_time_and_price(lingo: Callable) -> None:
    arguments = (*TINY, "--devices=8", "--batch=64", "--price=3", "--input_rate=1")
    way = json.loads(lingo(*arguments, "--format=json").out)["ways"][0]
    assert way["input"]["need"]["limit"] == "input"
    assert way["step_seconds_with_input"] == pytest.approx(64 / 112)  # one host of 112 cores
    assert way["step_seconds"] < 0.1
    assert way["training_seconds"] == pytest.approx(1200 * 64 / 112)
    assert way["price"]["step"] == pytest.approx(3 * 8 * 64 / 112 / 3600)
    assert "; the input is the limit: 571 ms a step\n" in lingo(*arguments).out


def test_an_input_that_is_measured_is_timed(lingo: Callable, monkeypatch) -> None:
    monkeypatch.setattr(
        input_part, "measure", lambda data, number: input_part.InputRate(7.0, 0.25, f"of {number}")
    )
    found = json.loads(
        lingo(*TINY, "--devices=16", "--batch=32", "--measure_input", "--format=json").out
    )
    assert found["input_rate"] == {"examples_per_second": 7, "variation": 0.25, "source": "of 16"}


def test_the_batch_of_an_input_inside_another_one_is_set(lingo: Callable) -> None:
    mixed = ("plan", "--exp=image.vit.b16", "--hardware=h100", "--devices=8")
    done = lingo(*mixed, "--batch=2048")
    assert (done.code, "2,048 examples a step" in done.out) == (0, True)
    flags = shlex.split(done.out.splitlines()[-1])
    assert flags[1:3] == [
        "--set=train_input.batch_size=2048",
        "--set=train_input.input.batch_size=2048",
    ]
    assert lingo("check", *flags).code == 0


def test_what_would_be_faster_but_is_too_large_is_named(lingo: Callable) -> None:
    arguments = ("plan", "--exp=lm.source.base", "--hardware=h100", "--devices=2", "--batch=512")
    found = json.loads(lingo(*arguments, "--format=json").out)
    faster = found["faster_but_too_large"]
    assert faster["step_seconds"] < found["ways"][0]["step_seconds"]
    assert faster["total_bytes"] > found["memory_bytes"]
    assert not faster["fits"]
    assert found["advice"] is None
    assert "\nfaster, but too large: " in lingo(*arguments).out


def test_the_own_runtime_is_predicted_without_devices(lingo: Callable) -> None:
    own = lingo(*TINY, "--set=runtime=Mesh(data=2, model=2)", "--price=2", "--batch=8").out
    assert "8 examples a step" in own.splitlines()[0]
    assert "\ndata=2, model=2:\n" in own
    assert "\nprice " in own
    assert "--exp=" not in own
    done = lingo(*TINY, "--set=runtime=Replicated")
    assert done.code == 2
    assert "--devices=N is missing: runtime=Replicated fixes no number of them" in done.err


def test_a_plan_of_which_nothing_fits_says_how_many_devices_would_be_enough(
    lingo: Callable, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "small.json"
    program = [sys.executable, "-m", "lingo.cli.main"]  # JAX forbids to fork, as others here do
    subprocess.run([*program, "plan", f"--calibrate={file}"], check=True, capture_output=True)
    hardware = json.loads(file.read_text()) | {"memory_bytes": 12e6}
    hardware["dimensions"][0]["size"] = 64
    file.write_text(json.dumps(hardware))
    arguments = (*TINY[:2], f"--hardware={file}", "--devices=1")
    done = lingo(*arguments)
    assert done.code == 1
    last = done.out.splitlines()[-1]
    assert last.startswith("nothing fits: the smallest way needs ")
    assert last.endswith(" devices are enough")
    found = json.loads(lingo(*arguments, "--format=json").out)
    assert last.endswith(f"; {found['advice']['enough_devices']} devices are enough")
    assert found["advice"]["smallest_bytes"] > 12e6


@pytest.mark.parametrize(
    "name", ["image.mask_rcnn.r50", "image.mask_rcnn.bot50", "mlperf.mask_rcnn.v07_pod"]
)
def test_mask_rcnn_fits_as_it_is_registered(name: str, lingo: Callable) -> None:
    """ResNet-50's convolutions have 11.1 M outputs for 224 x 224 pixels: twice 443 MiB for 1024."""
    done = lingo("plan", f"--exp={name}", "--hardware=tpu_v3", "--format=json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    (way,) = found["ways"]
    assert not found["missing_flops"] + found["unknown_residuals"]
    assert 0.5 * 2**30 < way["total_bytes"] < 2 * 2**30
    # the arithmetic of a core of 61.5 TFLOP/s
    devices = math.prod(way["mesh"].values())
    at_peak = found["model_flops"] / devices / 61.5e12
    assert at_peak < way["step_seconds"] < 1.5 * at_peak


def test_an_own_way_that_does_not_fit_is_told_of_one_on_as_many_devices(lingo: Callable) -> None:
    arguments = ("plan", "--exp=lm.source.base", "--hardware=tpu_v3", "--batch=16")
    done = lingo(*arguments)
    assert done.code == 1
    assert done.out.endswith("; 1 device is enough in another way: see --devices=1\n")
    assert lingo(*arguments, "--devices=1").code == 0


SILENT = """
from lingo import experiment
from lingo.layers import FeedForward, Layer
from params.lm.source import tiny


class Silent(FeedForward):
    residuals = Layer.residuals


@experiment
def silent():
    cfg = tiny()
    cfg.task.model.stack.layer.ffn = Silent.params()
    return cfg
"""


def test_what_is_not_known_of_layers_is_said(lingo: Callable, tmp_path: pathlib.Path) -> None:
    part = "--set=FeedForward=Remat(layer=_)"
    assert "\nRemat only of model/stack/layers/0/ffn" in lingo(*TINY, part).out
    file = tmp_path / "silent.py"
    file.write_text(SILENT)
    done = lingo("plan", f"--exp={file}:silent", *TINY[2:])
    assert "\nBytes kept for the gradient are not known for layers Silent" in done.out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (9.996e-4, "1 ms"),
        (119.96, "2 min"),
        (7199.0, "2 h"),
    ],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_picture_is_written(lingo: Callable, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    assert lingo(*TINY, "--devices=2", f"--plot={tmp_path / 'plan.png'}").code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (TINY[:2], "--hardware=NAME is missing: tpu_v3, "),
        ((*TINY[:2], "--hardware=H100", "--devices=2"), "Did you mean 'h100'?"),
        ((*TINY, "--devices=94"), "no mesh of 94 divides what this experiment has"),
        (("plan", "--calibrate=file.txt"), "the file ends in .json"),
        (("plan", "--calibrate=a.json", "--exp=tiny"), "takes --devices=N alone"),
        (("plan", "--calibrate=a.json", "--top=3", "--price=2"), "leave out --price, --top"),
        (("plan", "--calibrate=a.json", "--devices=5000"), "has at most 4096 virtual devices"),
        (("plan", "--calibrate=none/a.json"), "there is no folder none"),
        ((*TINY, "--input_variation=0.1"), "--input_variation needs the rate of a core"),
        ((*TINY, "--input_rate=0"), "feeds no step"),
        ((*TINY, "--input_rate=1e-320"), "less than 1e-06 examples/s feeds no step"),
        ((*TINY, "--input_rate=5", "--input_variation=11"), "is not a number in the range [0, 10"),
        ((*TINY, "--input_rate=5", "--measure_input"), "leave one of them out"),
        ((*TINY, "--price=inf"), "--price=inf is not a finite number"),
        ((*TINY, "--price=nan"), "--price=nan is not a finite number"),
        ((*TINY, "--plot=a.txt"), "the file ends in .png or .svg or .pdf"),
        ((*TINY, "--verify"), "one device exchanges nothing"),
        (
            (*TINY, "--set=Stack=Pipeline(num_stages=2, num_micro_batches=2)"),
            "a pipeline of 2 stages on 1 device is not predicted",
        ),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], message: str, lingo: Callable) -> None:
    done = lingo(*arguments)
    assert done.code == 2
    assert message in done.err


def test_a_trillion_weights_are_planned_without_tensorflow() -> None:
    code = (
        "import sys; from lingo.cli.main import main;"
        "code = main(['plan', '--exp=lm.lingvo_dense.dense_1t', '--devices=2048',"
        " '--hardware=tpu_v3', '--format=json']);"
        "assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["num_fitting"] + found["num_too_large"] > 1100
    first = found["ways"][0]
    assert sum(first["bytes"].values()) <= 16 * 2**30


def test_the_page_shows_what_is_predicted() -> None:
    made = tables()
    for page in PAGES:
        assert (text := page.read_text()) == fill_tables(text, made)


# ---- all-reduce


def plan_allreduce(lingo: Callable, *arguments: str) -> tuple[int, str, str]:
    done = lingo("plan", *arguments)
    return done.code, done.out, done.err


def test_every_planner_is_compared_and_refusals_say_why(lingo: Callable) -> None:
    code, out, _ = plan_allreduce(
        lingo,
        "--allreduce=all",
        "--mesh=8x8",
        "--links=mesh",
        "--holes=2x2@2,2",
        "--holes=2x2@6,6",
    )
    assert code == 0
    assert "on 56 chips, 8 x 8 mesh without 8 chips" in out
    assert "times are predictions" in out
    assert [line.split()[:2] for line in out.splitlines()[4:6]] == [
        ["ring", "110"],
        ["row_pairs", "36"],
    ]
    assert "multiring needs every chip" in out


def test_json_has_the_costs(lingo: Callable) -> None:
    flags = ("--mesh=16x8", "--payload=bfloat16", "--elements=1280", "--format=json")
    _, out, _ = plan_allreduce(lingo, "--allreduce=multiring", *flags)
    found = json.loads(out)
    assert found["is_prediction"] is True
    (plan,) = found["plans"]
    assert (plan["steps"], plan["padding"], plan["bytes_sent"]) == (44, 0, 2 * 127 * 10 * 2)
    assert (found["elements"], found["payload"], found["hardware"]) == (1280, "bfloat16", "tpu_v3")
    assert (found["mesh"], found["links"], found["holes"]) == ([16, 8], ["ring", "ring"], [])


def test_a_mesh_on_named_hardware_is_a_slice_of_its_torus(lingo: Callable) -> None:
    flags = ("--allreduce=all", "--elements=100", "--format=json")
    found = json.loads(plan_allreduce(lingo, "--mesh=6x8", "--hardware=tpu_v3", *flags)[1])
    assert (found["hardware"], found["links"]) == ("tpu_v3", ["line", "ring"])
    found = json.loads(plan_allreduce(lingo, "--mesh=6x8", *flags)[1])
    assert found["links"] == ["ring", "ring"]
    for mesh in ("64x64", "2x2x2"):
        code, _, err = plan_allreduce(lingo, f"--mesh={mesh}", "--hardware=tpu_v3", *flags)
        assert code == 2
        assert f"--mesh={mesh} is not in the torus of tpu_v3, 128 x 32 chips" in err
        assert plan_allreduce(lingo, f"--mesh={mesh}", *flags)[0] == 0


def test_machines_of_gpus_are_switches(lingo: Callable) -> None:
    flags = ("--mesh=32x8", "--hardware=h100", "--format=json")
    (plan,) = json.loads(plan_allreduce(lingo, "--allreduce=multiring", *flags)[1])["plans"]
    assert plan["steps"] == 2 * (3 + 5)
    for mesh, message in (("8x32", "an axis of 32, and h100 has 8 there"), ("2x2x2", "has 2,")):
        flags = (f"--mesh={mesh}", "--hardware=h100")
        code, _, err = plan_allreduce(lingo, "--allreduce=multiring", *flags)
        assert (code, message in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--allreduce=ring"], "--mesh is missing: --allreduce needs sizes, as --mesh=16x32"),
        (["--allreduce=ring", "--mesh=4x"], "--mesh is '4x'"),
        (["--mesh=4x4"], "--mesh goes with --allreduce, which is missing"),
        (["--payload=float32"], "--payload goes with --allreduce, which is missing"),
        (["--allreduce=ring", "--mesh=4x4", "--devices=4"], "leave out --devices"),
        (
            ["--allreduce=ring", "--mesh=4x4", "--price=0", "--input_rate=1", "--measure_input"],
            "leave out --input_rate, --measure_input, --price",
        ),
        (
            ["--allreduce=ring", "--mesh=2x8", "--hardware=h100", "--links=mesh"],
            "--links=mesh needs a torus, and h100 has none: leave it out",
        ),
        (["--allreduce=ring", "--mesh=4x4", "--noverify"], "leave out --verify"),
        (["--allreduce=ring", "--mesh=4x4", f"--elements={'9' * 5000}"], "has too many digits"),
        (["--allreduce=ring", "--mesh=4x4", f"--elements={'9' * 400}"], "is not an integer in"),
        (["--allreduce=all", "--mesh=4x4", "--plot=a.png"], "--plot draws one plan"),
        (["--allreduce=ring", "--mesh=3x3", "--links=mesh"], "no ring of single hops"),
        (["--allreduce=ring", "--mesh=4x4", "--plot=a.txt"], "--plot=a.txt: the file ends in"),
    ],
)
def test_wrong_flags_of_all_reduce_are_refused(flags, message, lingo: Callable) -> None:
    code, out, err = plan_allreduce(lingo, *flags)
    assert (code, out) == (2, "")
    assert message in err


def staged(exp: str, stages: int) -> list[str]:
    chain = f"--set=Chain=PipelinedChain(num_stages={stages}, num_micro_batches=4)"
    return ["plan", f"--exp={exp}", chain, f"--set=runtime=Local(stage_devices={stages})"]


def test_a_chain_in_stages_shows_every_stage(lingo: Callable) -> None:
    flags = [*staged("image.amoebanet.digits(num_filters=8)", 3), "--hardware=h100"]
    done = lingo(*flags)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert "in 3 stages on 3 x h100" in lines[0]
    table = lines.index("") + 1
    assert [line.split()[0] for line in lines[table : table + 4]] == ["stage", "0", "1", "2"]
    assert "it fits" in done.out
    found = json.loads(lingo(*flags, "--format=json").out)
    assert [len(stage["layers"]) for stage in found["stages"]] == [1, 1, 1]
    assert f"bubble {found['bubble']:.1%}" in done.out
    refused = lingo(*flags, "--price=3")
    assert refused.code != 0
    assert "leave out --price" in refused.err


def test_stages_that_do_not_fit_return_1(lingo: Callable) -> None:
    exp = "image.amoebanet.amoebanet_d(num_layers=3, num_filters=2048)"
    done = lingo(*staged(exp, 2), "--hardware=tpu_v3")
    assert done.code == 1
    assert "it does not fit" in done.out
