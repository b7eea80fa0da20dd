"""Showing experiments."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

from lingo.config import text


def test_every_parameter_has_a_line_that_says_where_it_comes_from(lingo: Callable) -> None:
    done = lingo("show", "--exp=narrow", "--set=ToyLayer.rate=1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert "optimizer.learning_rate = 0.5" in lines
    assert "task.stack.layer.rate = 1.0" in lines
    assert "task.stack.layer.dim = 3  # offered by Stack" in lines
    assert "seed = 0  # default" in lines
    assert lines == sorted(lines)


def test_overrides_apply_in_order(lingo: Callable) -> None:
    out = lingo("show", "--exp=narrow", "--set=max_steps=3", "--set=max_steps=4").out
    assert "max_steps = 4" in out.splitlines()


def test_an_argument_changes_what_follows_from_it(lingo: Callable) -> None:
    for arguments in (["--exp=narrow(num_layers=5)"], ["--exp=narrow", "--set=exp.num_layers=5"]):
        assert "task.stack.num_layers = 5" in lingo("show", *arguments).out


def test_an_experiment_of_any_file_can_be_asked_for(
    lingo: Callable, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "anywhere.py").write_text(
        "from lingo.config.registry import experiment\nfrom params.toys import narrow\n\n"
        "@experiment\ndef wide():\n    return narrow().set(max_steps=7)\n"
    )
    assert "max_steps = 7" in lingo("show", "--exp=anywhere.py:wide").out


def test_the_table_of_weights_ends_with_the_total(lingo: Callable) -> None:
    lines = lingo("show", "--exp=narrow", "--weights").out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "path",
        "stack/layers/0/w",
        "stack/layers/1/w",
        "total",
    ]
    assert lines[-1].split() == ["total", "18"]


def test_the_weights_as_json_name_shape_type_and_axes(lingo: Callable) -> None:
    shown = json.loads(lingo("show", "--exp=narrow", "--weights", "--format=json").out)
    assert shown["total_parameters"] == 18
    assert shown["weights"][0] == {
        "path": "stack/layers/0/w",
        "shape": [3, 3],
        "dtype": "float32",
        "axes": ["embed", "mlp"],
        "parameters": 9,
    }


def test_a_trillion_parameters_are_counted(lingo: Callable) -> None:
    overrides = ["--set=Stack.num_layers=1000", "--set=ToyLayer.dim=40000"]
    out = lingo("show", "--exp=narrow", *overrides, "--weights", "--format=json").out
    shown = json.loads(out)
    assert shown["total_parameters"] == 1_600_000_000_000


def test_json_is_what_a_run_keeps_and_shows_again(lingo: Callable, tmp_path: pathlib.Path) -> None:
    config = lingo("show", "--exp=narrow", "--set=max_steps=3", "--format=json").out
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(config)
    assert lingo("show", "--run=run", "--format=json").out == config
    assert lingo("show", "--run=run").out == lingo("show", "--exp=narrow", "--set=max_steps=3").out
    again = json.loads(lingo("show", "--run=run", "--set=max_steps=4", "--format=json").out)
    assert again["experiment"]["overrides"] == ["max_steps=3", "max_steps=4"]


def test_a_run_whose_classes_stand_in_a_file_of_its_own_needs_trust(
    lingo: Callable, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "own_layers.py"
    file.write_text(
        "from lingo.config.registry import experiment\n"
        "from params.toys import ToyLayer, narrow\n\n\n"
        "class Own(ToyLayer):\n    pass\n\n\n"
        "@experiment\ndef own():\n    params = narrow()\n    params.all(ToyLayer).swap(Own)\n"
        "    return params\n"
    )
    (tmp_path / "run").mkdir()
    config = lingo("show", "--exp=own_layers.py:own", "--format=json").out
    (tmp_path / "run" / "config.json").write_text(config)
    refused = lingo("show", "--run=run")
    assert refused.code == 2
    assert f"--trust={file}" in refused.err
    assert lingo("show", "--run=run", f"--trust={file}").code == 0
    file.write_text(file.read_text() + "# changed\n")
    noted = lingo("show", "--run=run", f"--trust={file}")
    assert noted.code == 0
    assert noted.err.startswith(f"note: {file} is not what it was")


def test_a_default_that_has_changed_since_is_noted(lingo: Callable, tmp_path: pathlib.Path) -> None:
    config = json.loads(lingo("show", "--exp=narrow", "--format=json").out)
    (tmp_path / "config.json").write_text(json.dumps(config | {"digest": "0" * 64}))
    done = lingo("show", "--run=.")
    assert done.code == 0
    assert done.err.startswith("note: . began with other code")


def test_an_argument_cannot_be_set_on_a_run(lingo: Callable, tmp_path: pathlib.Path) -> None:
    config = lingo("show", "--exp=narrow", "--format=json").out
    (tmp_path / "config.json").write_text(config)
    refused = lingo("show", "--run=.", "--set=exp.num_layers=3")
    assert refused.code == 2
    assert "a run has no arguments" in refused.err


def test_what_a_swap_drops_is_noted(lingo: Callable) -> None:
    done = lingo("show", "--exp=lm.source.tiny", "--set=AdamW=Sgd")
    assert done.code == 0
    assert "note: --set=AdamW=Sgd drops optimizer.weight_decay" in done.err


def test_the_text_can_be_read_back(lingo: Callable) -> None:
    out = lingo("show", "--exp=lm.source.tiny").out
    assert text.render(text.read(out)) == out
