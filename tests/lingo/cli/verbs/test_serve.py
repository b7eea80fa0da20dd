"""Mistakes in the flags of `lingo serve`; tests/lingo/serving has the servers."""

from __future__ import annotations

import pathlib
import sys

import pytest

from lingo.cli.main import main
from lingo.export.manifest import write_manifest


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give either --run=DIR or --export=FOLDER\n"),
        (["--run=a", "--export=b"], "give either --run=DIR or --export=FOLDER, not both"),
        (["--run=nowhere"], "nowhere is not a run directory"),
        (["--export=nowhere"], "nowhere is not an export: it has no export.json"),
        (["--export=here", "--step=best"], "--step applies to --run only: an export's"),
        (["--export=here", "--set=max_steps=1"], "--set applies to --run only: an export's"),
        (["--export=here"], "here is a model of tflite"),
        (["--export=here", "--host=no.such.host.invalid"], "--host=no.such.host.invalid --port=0"),
        (["--export=here", "--max_requests=0"], "--max_requests"),
        (["--export=here", "--api_key_file=none"], "--api_key_file=none cannot be read: No such"),
        (
            ["--export=here", "--api_key_file=here"],
            "--api_key_file=here cannot be read: Is a",
        ),
        (["--export=here", "--api_key_file=empty"], "--api_key_file=empty holds no key"),
    ],
)
def test_a_mistake_is_named(flags, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "empty").write_text("\n")
    write_manifest(tmp_path / "here", {"format": "tflite"})
    assert main(["serve", "--port=0", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["prometheus_client", "starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(
    package: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["serve", f"--export={tmp_path}", "--port=0"]) == 2
    assert "pip install 'lingo-tf[serve]'" in capsys.readouterr().err
