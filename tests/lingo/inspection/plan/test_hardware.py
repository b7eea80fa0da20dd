"""Hardware: the networks of so many devices, and files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from lingo.config.params import ParamError
from lingo.inspection.plan.hardware import HARDWARE, Dimension, read, write


@pytest.mark.parametrize(
    ("name", "num_devices", "sizes"),
    [
        ("tpu_v3", 8, [2, 2, 2]),
        ("tpu_v3", 2048, [2, 32, 32]),
        ("tpu_v3", 8192, [2, 128, 32]),  # a multipod
        ("tpu_v3", 1, [1, 1, 1]),
        ("tpu_v4", 64, [4, 4, 4]),
        ("tpu_v5e", 64, [8, 8]),
        ("tpu_v6e", 256, [16, 16]),
        ("a10", 8, [4, 2]),
        ("p100", 256, [4, 64]),
        ("h100", 4, [4, 1]),
        ("h100", 6, [6, 1]),
        ("h100", 7, [7, 1]),
        ("h100", 12, [6, 2]),
        ("h100", 64, [8, 8]),
    ],
)
def test_devices_form_the_most_cubic_network(name: str, num_devices: int, sizes: list[int]) -> None:
    dimensions = HARDWARE[name].arrange(num_devices)
    assert [one.size for one in dimensions] == sizes
    assert math.prod(sizes) == num_devices


@pytest.mark.parametrize(
    ("name", "num_devices", "closed"),
    [
        ("tpu_v3", 2048, [True, True]),
        ("tpu_v4", 32, [True, True, False]),  # 4 x 4 x 2
        ("tpu_v5e", 64, [False, False]),
        ("tpu_v6e", 256, [True, True]),
    ],
)
def test_rows_of_a_torus_are_rings_if_it_has_the_links(
    name: str, num_devices: int, closed: list[bool]
) -> None:
    dimensions = HARDWARE[name].arrange(num_devices)
    assert [one.wraps for one in dimensions if one.kind == "ring"] == closed


def test_a_torus_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ParamError, match=r"131 chips of tpu_v3 form no torus within 128 x 32"):
        HARDWARE["tpu_v3"].arrange(262)


@pytest.mark.parametrize("name", HARDWARE)
def test_a_file_has_all_of_it(name: str, tmp_path: Path) -> None:
    write(HARDWARE[name], tmp_path / "one.json")
    assert read(str(tmp_path / "one.json")) == HARDWARE[name]


def test_what_is_no_hardware_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"'H100' is not one of tpu_v3, .* Did you mean 'h100'\?"):
        read("H100")
    with pytest.raises(ParamError, match=r"none\.json cannot be read: No such file"):
        read(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a file of hardware: Expecting property name"),
        ("[]", "it is not of the form {field: value}"),
        ('{"name": "one", "torus": 0}', "it lacks memory_bytes, flops_per_second, "),
        ('{"memory": 1}', "it has no field 'memory' Did you mean 'memory_bytes'"),
    ],
)
def test_a_file_that_is_not_of_hardware_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ParamError, match=re.escape(message)):
        read(str(tmp_path / "bad.json"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("memory_bytes", "80GB", "memory_bytes='80GB' is not a number above 0"),
        ("memory_bandwidth", 0, "memory_bandwidth=0 is not a number above 0"),
        ("flops_per_second", {}, "need an entry each"),
        ("combined_bytes", math.inf, "combined_bytes=inf is not 0 or above and finite"),
        ("dimensions", [], "need an entry each"),
        ("torus", 1.0, "torus=1.0 is not a number of its dimensions"),
        ("torus", True, "torus=True is not a number of its dimensions"),
        ("devices_per_host", 8.0, "devices_per_host=8.0 is not a whole number"),
        ("torus", 5, "torus=5 is not a number of its dimensions"),
        ("matrix_tile", -1, "matrix_tile=-1 is not a number above 0"),
        ("more", 1, "it has no field 'more'"),
        ("devices_per_host", 1.5, "devices_per_host=1.5 is not a whole number"),
        ("cores_per_host", True, "cores_per_host=True is not a number above 0"),
        ("dimensions", [{"kind": "ring", "size": 2}], r"dimensions\[0\] lacks bandwidth, latency"),
        ("dimensions", {}, "dimensions is not a list"),
        ("flops_per_second", 1e12, "flops_per_second is not of the form"),
        ("combined_bytes", -1, "combined_bytes=-1 is not 0 or above"),
    ],
)
def test_a_field_that_is_no_possible_value_is_named(
    field: str, value: object, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.json"
    write(HARDWARE["h100"], file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ParamError, match=message):
        read(str(file))


def test_more_chips_than_there_are_is_refused() -> None:
    with pytest.raises(ParamError, match="tpu_v4 has 4,096 devices at most, and 8,192 are asked"):
        HARDWARE["tpu_v4"].arrange(8192)


def test_measured_devices_are_all_there_are() -> None:
    measured = HARDWARE["h100"]._replace(
        name="here", dimensions=(Dimension("switch", 4, 1e9, 1e-6),), torus=0
    )
    assert [one.size for one in measured.arrange(2)] == [2]
    with pytest.raises(ParamError, match="here has 4 devices at most, and 8 are asked for"):
        measured.arrange(8)


def test_a_type_without_a_rate_of_its_own_has_that_of_bfloat16() -> None:
    assert HARDWARE["h100"].rate("int8") == HARDWARE["h100"].rate("bfloat16") == 989e12
