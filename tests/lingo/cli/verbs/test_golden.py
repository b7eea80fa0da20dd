"""Golden files."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from lingo.cli.verbs import golden
from lingo.config import registry, text
from lingo.config.roots import roots
from lingo.config.roots.roots import Roots


@pytest.fixture
def checkout(toys, tmp_path, monkeypatch) -> pathlib.Path:
    """A checkout whose experiments are the toys."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "params").symlink_to(toys)
    found = roots.find()
    packages = {**found.packages, "tasks": (tmp_path / "tasks",), "params": (toys,)}
    monkeypatch.setattr(golden.roots_, "find", lambda: Roots(packages))
    return tmp_path


def test_what_was_written_is_current(lingo: Callable, checkout: pathlib.Path) -> None:
    written = lingo("golden", "--write")
    assert (written.code, written.err) == (0, "")
    files = sorted(p.name for p in (checkout / "tests/goldens").iterdir())
    assert files == ["defaults.txt", "toys.deep.txt", "toys.narrow.txt"]
    assert lingo("golden") == (0, "", "")
    assert lingo("golden", "--write") == (0, "", "")


def test_a_golden_file_holds_parameters_and_alike_weights_once(lingo, checkout):
    lingo("golden", "--write")
    content = (checkout / "tests/goldens/toys.deep.txt").read_text()
    parameters, weights = content.split("\n\n")
    assert "task.stack.num_layers = 4" in parameters.splitlines()
    assert weights.splitlines()[1].split() == [
        *["stack/layers/[0:4]/w", "[3,", "3]", "float32", "embed,", "mlp", "36"]
    ]


def test_a_default_is_in_one_file(lingo, checkout):
    lingo("golden", "--write")
    folder = checkout / "tests/goldens"
    assert "Guard.max_rewinds = 10\n" in (folder / "defaults.txt").read_text()
    assert "guard" not in (folder / "toys.deep.txt").read_text()


def test_a_stale_file_is_shown_and_fails(lingo: Callable, checkout: pathlib.Path) -> None:
    lingo("golden", "--write")
    file = checkout / "tests/goldens/toys.deep.txt"
    file.write_text(file.read_text().replace("num_layers = 4", "num_layers = 5"))
    done = lingo("golden")
    assert done.code == 1
    assert "-task.stack.num_layers = 5\n+task.stack.num_layers = 4" in done.out
    assert "1 golden files are stale" in done.out


def test_a_file_of_no_experiment_is_reported_and_removed(lingo, checkout):
    lingo("golden", "--write")
    file = checkout / "tests/goldens/gone.txt"
    file.write_text("")
    done = lingo("golden")
    assert done.code == 1
    assert f"{file} belongs to no experiment" in done.out
    assert f"removed {file}" in lingo("golden", "--write").out
    assert not file.exists()


def test_an_installation_without_tests_has_no_goldens(lingo, checkout):
    (checkout / "tests").rmdir()
    done = lingo("golden")
    assert done.code == 2
    assert "checkout" in done.err


# ---- their texts


def params_of(name):
    return registry.get(name).params


def test_an_experiment_has_what_it_sets_and_passes_down():
    params = params_of("lm.source.tiny")
    found = golden.experiment_text(params, params.build()).splitlines()
    resolved = [str(line) for line in text.resolve(params) if line.origin != "default"]
    assert found[: len(resolved)] == resolved
    assert "task.model.norm.dim = 128  # inherited from LanguageModel" in resolved
    assert found[-1].split() == ["total", "824,832"]


def test_defaults_of_all_classes_stand_once():
    names = ("lm.source.tiny", "image.resnet.glyphs")
    lines = golden.defaults_text(map(params_of, names)).splitlines()
    assert lines == sorted(set(lines))
    assert "TransformerLayer.ffn = FeedForward" in lines
    assert "FeedForward.activation = 'relu'" in lines
    assert not any(line.startswith("TransformerLayer.ffn.activation") for line in lines)


def test_what_a_default_sets_in_another_class_is_the_default_of_the_outer_one():
    lines = golden.defaults_text([params_of("lm.source.tiny")]).splitlines()
    assert "Evaluation.sampling.max_tokens = 100" in lines
    assert "Sampling.temperature = 0.8" in lines
