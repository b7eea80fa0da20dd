"""What the benchmark of meshes prints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.bench import mesh
from tools.bench.mesh import MESHES, Seconds
from tools.bounds import Bounds


def test_ratios_are_of_the_least_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times: Iterator[float] = iter([9.0, 3.0, 4.0, 2.0, 8.0, 6.0])  # two turns of three sizes
    monkeypatch.setattr(mesh, "compiled", lambda num: Seconds(1.0, next(times)))
    monkeypatch.setattr(mesh, "REPEATS", 2)
    bounds = Bounds()
    mesh.report_compilation(bounds)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[2] == ["8", "1.00", "1.00", "2.00", "1.00"]
    assert lines[3] == ["256", "1.00", "1.00", "3.00", "1.50"]
    assert lines[4] == ["2048", "1.00", "1.00", "4.00", "2.00"]
    assert bounds.exit_code() == 1
    assert capsys.readouterr().out == "missed: compile for 2048 devices is 2, wanted <= 1.5\n"


def test_the_meshes_have_the_devices_that_they_are_named_by() -> None:
    assert [data * model for data, model in MESHES.values()] == list(MESHES)
