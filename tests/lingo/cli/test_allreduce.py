"""`lingo plan --allreduce` on the command line."""

from __future__ import annotations

import json

import pytest

from lingo.cli.main import main


def run(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["plan", *arguments])
    return code, *capsys.readouterr()


def test_every_planner_is_compared_and_refusals_say_why(capsys) -> None:
    code, out, _ = run(
        capsys,
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


def test_json_has_the_costs(capsys) -> None:
    flags = ("--mesh=16x8", "--payload=bfloat16", "--elements=1280", "--format=json")
    _, out, _ = run(capsys, "--allreduce=multiring", *flags)
    found = json.loads(out)
    assert found["is_prediction"] is True
    (plan,) = found["plans"]
    assert (plan["steps"], plan["padding"], plan["bytes_sent"]) == (44, 0, 2 * 127 * 10 * 2)
    assert (found["elements"], found["payload"], found["hardware"]) == (1280, "bfloat16", "tpu_v3")
    assert (found["mesh"], found["links"], found["holes"]) == ([16, 8], ["ring", "ring"], [])


def test_a_mesh_on_named_hardware_is_a_slice_of_its_torus(capsys) -> None:
    flags = ("--allreduce=all", "--elements=100", "--format=json")
    found = json.loads(run(capsys, "--mesh=6x8", "--hardware=tpu_v3", *flags)[1])
    assert (found["hardware"], found["links"]) == ("tpu_v3", ["line", "ring"])
    found = json.loads(run(capsys, "--mesh=6x8", *flags)[1])
    assert found["links"] == ["ring", "ring"]
    for mesh in ("64x64", "2x2x2"):
        code, _, err = run(capsys, f"--mesh={mesh}", "--hardware=tpu_v3", *flags)
        assert code == 2
        assert f"--mesh={mesh} is not in the torus of tpu_v3, 128 x 32 chips" in err
        assert run(capsys, f"--mesh={mesh}", *flags)[0] == 0


def test_machines_of_gpus_are_switches(capsys) -> None:
    flags = ("--mesh=32x8", "--hardware=h100", "--format=json")
    (plan,) = json.loads(run(capsys, "--allreduce=multiring", *flags)[1])["plans"]
    assert plan["steps"] == 2 * (3 + 5)
    for mesh, message in (("8x32", "an axis of 32, and h100 has 8 there"), ("2x2x2", "has 2,")):
        code, _, err = run(capsys, "--allreduce=multiring", f"--mesh={mesh}", "--hardware=h100")
        assert (code, message in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--allreduce=ring"], "--mesh is missing: --allreduce needs sizes, as --mesh=16x32"),
        (["--allreduce=ring", "--mesh=4x"], "--mesh is '4x'"),
        (["--mesh=4x4"], "--mesh is of --allreduce, which is missing"),
        (["--payload=float32"], "--payload is of --allreduce, which is missing"),
        (["--allreduce=ring", "--mesh=4x4", "--devices=4"], "leave out --devices"),
        (
            ["--allreduce=ring", "--mesh=4x4", "--price=0", "--input_rate=1", "--measure_input"],
            "leave out --input_rate, --measure_input, --price",
        ),
        (
            ["--allreduce=ring", "--mesh=2x8", "--hardware=h100", "--links=mesh"],
            "--links=mesh is of a torus, and h100 has none: leave it out",
        ),
        (["--allreduce=ring", "--mesh=4x4", "--noverify"], "leave out --verify"),
        (["--allreduce=ring", "--mesh=4x4", f"--elements={'9' * 5000}"], "has too many digits"),
        (["--allreduce=ring", "--mesh=4x4", f"--elements={'9' * 400}"], "is not an integer in"),
        (["--allreduce=all", "--mesh=4x4", "--plot=a.png"], "--plot draws one plan"),
        (["--allreduce=ring", "--mesh=3x3", "--links=mesh"], "no ring of single hops"),
        (["--allreduce=ring", "--mesh=4x4", "--plot=a.txt"], "--plot=a.txt: the file ends in"),
    ],
)
def test_wrong_flags_are_refused(flags, message, capsys) -> None:
    code, out, err = run(capsys, *flags)
    assert (code, out) == (2, "")
    assert message in err
