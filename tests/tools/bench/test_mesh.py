"""What the benchmark of meshes prints."""

from collections.abc import Iterator

from tools.bench import mesh
from tools.bench.mesh import Seconds
from tools.harness import Report


def test_ratios_are_of_the_least_times(monkeypatch, capsys):
    times: Iterator[float] = iter([9.0, 3.0, 4.0, 2.0, 8.0, 6.0])  # two turns of three sizes
    monkeypatch.setattr(mesh, "compile_step", lambda num: Seconds(1.0, next(times)))
    monkeypatch.setattr(mesh, "REPEATS", 2)
    report = Report()
    mesh.compare_compilation(report)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert [line[2:6:2] for line in lines[1:4]] == [
        ["8", "1.000"],
        ["256", "1.500"],
        ["2048", "2.000"],
    ]
    assert [line[5] for line in lines[1:4]] == ["2.00", "3.00", "4.00"]
    assert [line[0] for line in lines[4:]] == ["trace"] * 3
    assert report.exit_code() == 1
    assert capsys.readouterr().out == "missed: compile for 2048 devices is 2, wanted <= 1.5\n"
