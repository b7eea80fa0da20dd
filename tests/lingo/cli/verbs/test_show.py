"""Showing experiments."""

from __future__ import annotations

import json
import pathlib
import shutil
import threading
from collections.abc import Callable

import numpy as np
import pytest

from lingo.cli.clock import run_with_clock
from lingo.cli.command import UsageError
from lingo.cli.verbs import show
from lingo.layers.feed_forward import FeedForward


def test_every_parameter_has_a_line_that_says_where_it_comes_from(lingo: Callable) -> None:
    done = lingo("show", "--exp=narrow", "--set=ToyLayer.rate=1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert "optimizer.learning_rate = 0.5" in lines
    assert "task.stack.layer.rate = 1.0" in lines
    assert "task.stack.layer.dim = 3  # inherited from Stack" in lines
    assert "seed = 0  # default" in lines
    assert lines == sorted(lines)


def test_only_what_differs_from_the_defaults_is_shown(lingo: Callable) -> None:
    changed = ("show", "--exp=narrow(num_layers=3)", "--set=ToyLayer.rate=1", "--changed")
    done = lingo(*changed)
    assert done.out.splitlines() == [
        "task.stack.layer.rate: 0.0 -> 1.0",
        "task.stack.num_layers: 2 -> 3",
    ]
    assert json.loads(lingo(*changed, "--format=json").out) == {
        "task.stack.layer.rate": ["0.0", "1.0"],
        "task.stack.num_layers": ["2", "3"],
    }
    same = lingo("show", "--exp=narrow", "--changed")
    assert (same.code, same.out) == (0, "")
    assert "nothing differs from the defaults of narrow" in same.err


def test_the_weights_are_a_table_with_a_total_or_json(lingo: Callable) -> None:
    lines = lingo("show", "--exp=narrow", "--weights").out.splitlines()
    paths = ["stack/layers/0/w", "stack/layers/1/w"]
    assert [line.split()[0] for line in lines] == ["path", *paths, "total"]
    assert lines[-1].split() == ["total", "18"]
    shown = json.loads(lingo("show", "--exp=narrow", "--weights", "--format=json").out)
    assert shown["total_parameters"] == 18
    weight = {"shape": [3, 3], "dtype": "float32", "axes": ["embed", "mlp"], "parameters": 9}
    assert shown["weights"][0] == {"path": paths[0], **weight, "frozen": False}


def test_the_weights_are_filtered_sorted_and_summed(lingo: Callable) -> None:
    tiny = ("show", "--exp=tiny(model_dim=32, num_layers=2)", "--weights")
    rows = [line.split() for line in lingo(*tiny, "--only=ffn/|embed").out.splitlines()[1:-1]]
    assert all("ffn/" in row[0] or "embed" in row[0] for row in rows)
    sizes = [
        int(line.split()[-1].replace(",", ""))
        for line in lingo(*tiny, "--sort=size").out.splitlines()[1:-1]
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 3
    lines = [line.split() for line in lingo(*tiny, "--depth=3").out.splitlines()[1:]]
    assert [line[0] for line in lines][1:3] == ["model/stack/layers/0", "model/stack/layers/1"]
    whole = json.loads(lingo(*tiny, "--format=json").out)["total_parameters"]
    assert sum(int(line[2].replace(",", "")) for line in lines[:-1]) == whole
    assert lines[-1][1:] == [str(sum(int(line[1]) for line in lines[:-1])), f"{whole:,}", "100.0%"]


def test_frozen_weights_are_marked(lingo: Callable) -> None:
    groups = "{.*embedding.*: Frozen, (?!.*embedding).*: AdamW}"
    tiny = ("show", "--exp=tiny(model_dim=32, num_layers=2)", "--weights")
    frozen = f"--set=optimizer=ByPath(learning_rate=1, groups={groups})"
    lines = lingo(*tiny, frozen).out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("  frozen")] == [
        "model/embedding/table"
    ]
    shown = json.loads(lingo(*tiny, frozen, "--format=json").out)["weights"]
    assert [w["path"] for w in shown if w["frozen"]] == ["model/embedding/table"]
    mesh = (*tiny, frozen, "--set=runtime=Mesh(data=2)")
    marked = [line for line in lingo(*mesh).out.splitlines() if line.endswith("  frozen")]
    assert [line.split()[0] for line in marked] == ["model/embedding/table"]
    shown = json.loads(lingo(*mesh, "--format=json").out)["weights"]
    assert [w["path"] for w in shown if w["frozen"]] == ["model/embedding/table"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--only=a",), "--only: only with --weights"),
        (("--weights", "--only=nowhere"), "--only=nowhere: no weight has such a path"),
        (("--weights", "--only=("), "not a regular expression"),
        (("--weights", "--depth=0"), "depth"),
        (("--weights", "--depth=1", "--format=json"), "--depth prints sums as text"),
    ],
)
def test_mistakes_about_the_table_are_told(lingo: Callable, flags, words) -> None:
    done = lingo("show", "--exp=narrow", *flags)
    assert done.code == 2
    assert words in done.err


def test_on_a_mesh_the_weights_say_how_they_are_split(lingo: Callable) -> None:
    mesh = ["--exp=narrow", "--set=runtime=Mesh(data=2,model=3)", "--weights"]
    lines = lingo("show", *mesh).out.splitlines()
    assert "[-, model]  [3, 1]" in lines[1]
    assert lines[-5].split() == ["weights", "24", "0"]
    shown = json.loads(lingo("show", *mesh, "--format=json").out)
    assert shown["weights"][0]["split"] == [[], ["model"]]
    assert shown["weights"][0]["bytes_per_device"] == 12
    assert shown["bytes_per_device"]["weights"] == 24


def test_json_is_what_a_run_keeps_and_shows_again(lingo: Callable, tmp_path: pathlib.Path) -> None:
    config = lingo("show", "--exp=narrow", "--set=max_steps=3", "--format=json").out
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(config)
    assert lingo("show", "--run=run", "--format=json").out == config
    assert lingo("show", "--run=run").out == lingo("show", "--exp=narrow", "--set=max_steps=3").out
    again = json.loads(lingo("show", "--run=run", "--set=max_steps=4", "--format=json").out)
    assert again["experiment"]["overrides"] == ["max_steps=3", "max_steps=4"]


def test_a_run_whose_classes_stand_in_a_file_of_its_own_needs_trust(lingo, tmp_path):
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
    refused = lingo("show", "--run=.", "--set=exp.num_layers=3")
    assert refused.code == 2
    assert "a run has no arguments" in refused.err


def test_what_a_swap_drops_is_noted(lingo: Callable) -> None:
    done = lingo("show", "--exp=lm.source.tiny", "--set=AdamW=Sgd")
    assert done.code == 0
    assert "note: --set=AdamW=Sgd drops optimizer.epsilon" in done.err


MISTAKES = [
    (
        ["--set=runtime=Mesh(model=2,uneven=False)", "--weights"],
        "'mlp' of 3 does not divide into 2",
    ),
    (['--set=runtime=Mesh(weight_rules={"mpl":[]})', "--weights"], "Did you mean 'mlp'?"),
    (["--weights", "--plot_schedule"], "--weights and --plot_schedule show different things"),
    (["--weights", "--pipeline"], "--weights and --pipeline show different things"),
    (["--graph=a.dot", "--format=json"], "--graph writes a picture"),
    (
        ["--set=optimizer.schedule=Exponential(num_steps=1,decay_rate=10)", "--plot_schedule"],
        "optimizer: learning_rate is inf at step",
    ),
]


@pytest.mark.parametrize(("flags", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_what_cannot_be_shown_is_refused(lingo, tmp_path, flags, message):
    done = lingo("show", "--exp=narrow", *flags)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not [*tmp_path.iterdir()]


def test_an_axis_of_activations_that_no_layer_names_is_refused(lingo) -> None:
    setting = '--set=runtime=Mesh(activation_rules={"lenght":[]})'
    done = lingo("show", "--exp=tiny(model_dim=32,num_layers=1)", setting, "--weights")
    assert (done.code, done.out) == (2, "")
    assert "activation_rules['lenght']: no layer names such an axis." in done.err
    assert "Did you mean 'length'" in done.err


# ---- learning rates

LINE = "--set=optimizer.schedule=LinearRate(num_steps=1000)"
GROUPS = (
    "--set=optimizer=ByPath(learning_rate=1,"
    "groups={'stack/layers/0/w': Frozen, 'stack/layers/1/w': Sgd})"
)


def test_the_schedule_is_drawn_with_values_below(lingo: Callable) -> None:
    done = lingo("show", "--exp=narrow", LINE, "--plot-schedule")
    assert (done.code, done.err) == (0, "")
    title, *curve, steps, rates, empty = done.out.splitlines()
    assert title == "learning_rate: 0.5 at most, at step 0"
    assert curve[0].startswith(" 0.5 ┤")
    assert steps.split() == ["step", *map(str, range(0, 1001, 125))]
    assert rates.split()[:3] == ["rate", "0.5", "0.4375"]
    assert rates.split()[-1] == "0"
    assert empty == ""
    out = lingo("show", "--exp=narrow", LINE, "--plot_schedule", "--format=json").out
    shown = json.loads(out)
    assert shown["steps"] == list(range(1001))
    assert shown["rates"]["learning_rate"][::500] == [0.5, 0.25, 0.0]


def test_every_group_has_a_curve_and_equal_ones_share_it(lingo: Callable) -> None:
    out = lingo("show", "--exp=narrow", GROUPS, "--plot_schedule").out
    titles = [line for line in out.splitlines() if line.startswith("learning_rate")]
    assert titles == [
        "learning_rate, learning_rate/stack/layers/1/w: 1 at most, at step 0",
        "learning_rate/stack/layers/0/w: 0 at most, at step 0",
    ]


@pytest.mark.parametrize("max_steps", [1, 3, 10**6])
def test_a_run_of_any_length_has_a_plot(lingo: Callable, max_steps: int) -> None:
    arguments = ["--exp=narrow", LINE, f"--set=max_steps={max_steps}", "--plot_schedule"]
    assert str(max_steps) in lingo("show", *arguments).out
    shown = json.loads(lingo("show", *arguments, "--format=json").out)
    assert shown["steps"][0] == 0
    assert shown["steps"][-1] == max_steps
    assert len(shown["steps"]) == min(max_steps, 1000) + 1


def test_a_schedule_of_schedules_reloads(lingo: Callable, tmp_path: pathlib.Path) -> None:
    parts = "SequentialSchedule(parts=[[LinearRate(end=1),10],[Cosine,90]])"
    flag = f"--set=optimizer.schedule={parts}"
    (tmp_path / "config.json").write_text(lingo("show", "--exp=narrow", flag, "--format=json").out)
    plots = [lingo("show", *a, "--plot_schedule") for a in (["--exp=narrow", flag], ["--run=."])]
    assert plots[0] == plots[1]
    assert plots[0].code == 0


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_directory_can_have_is_no_run(lingo: Callable, name: str) -> None:
    done = lingo("show", f"--run={name}")
    assert done.code == 2
    assert "is not a run directory" in done.err


def test_an_experiment_is_drawn_with_what_was_overridden(lingo, tmp_path):
    done = lingo("show", "--exp=narrow", "--set=max_steps=77", "--graph=a.dot")
    assert (done.code, done.out, done.err) == (0, "", "")
    drawn = (tmp_path / "a.dot").read_text()
    assert ">77<" in drawn
    assert "ToyLayer" in drawn


def test_long_work_runs_in_another_thread_and_leaves_stdout_alone(capsys):
    main = threading.get_ident()
    assert run_with_clock("working", lambda: threading.get_ident() != main)
    assert capsys.readouterr() == ("", "working\n")
    with pytest.raises(ZeroDivisionError):
        run_with_clock("working", lambda: 1 // 0)


# ---- graphs


FFN = FeedForward.params(hidden_dim=7, dim=3)


def test_a_text_for_graphviz_has_the_fields_that_were_set_in_the_order_of_the_class(tmp_path):
    show.write_graph(FFN, tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert "rankdir=LR" in text
    assert -1 < text.index(">dim<") < text.index(">hidden_dim<") < text.index(">init<")
    assert "dropout_rate" not in text
    assert [*FFN.__arguments__] == ["init", "hidden_dim", "dim"]  # these stay as they were set


def test_a_picture_is_what_the_program_dot_makes_of_the_text(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho $* && exec cat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    show.write_graph(FFN, tmp_path / "a.svg")
    show.write_graph(FFN, tmp_path / "a.dot")
    assert (tmp_path / "a.svg").read_text() == "-Tsvg\n" + (tmp_path / "a.dot").read_text()


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's program dot")
def test_graphviz_draws_it(tmp_path: pathlib.Path) -> None:
    show.write_graph(FFN, tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text()
    assert picture.rstrip().endswith("</svg>")
    assert ">hidden_dim</text>" in picture


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apt-get install graphviz. --graph=FILE.dot needs no program"),
        ("#!/bin/sh\necho no fonts >&2; exit 1\n", "dot failed: no fonts"),
    ],
)
def test_without_a_picture_there_is_no_file(script, message, tmp_path, monkeypatch):
    if script:
        (tmp_path / "dot").write_text(script)
        (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=message):
        show.write_graph(FFN, tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()


def test_a_name_that_cannot_be_written_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"a\.png: the name has to end in \.dot or \.svg"):
        show.write_graph(FFN, tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"cannot be written: No such file"):
        show.write_graph(FFN, tmp_path / "absent/a.dot")


# ---- curves


def dots(text: str) -> np.ndarray:
    """Returns the canvas of a plot as ones and zeros, [4 * height, 2 * width], top first."""
    rows = [line[max(line.find("┤"), line.find("│")) + 1 :] for line in text.splitlines()[:-2]]
    rows = [row.replace(" ", chr(show.BRAILLE)) for row in rows]
    width = max(map(len, rows))
    canvas = np.zeros((4 * len(rows), 2 * width), int)
    places = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1)]
    for i, row in enumerate(rows):
        for j, char in enumerate(row.ljust(width, chr(show.BRAILLE))):
            for bit, (down, right) in enumerate(places):  # the numbering of Unicode's braille block
                canvas[4 * i + down, 2 * j + right] = (ord(char) - show.BRAILLE) >> bit & 1
    return canvas


def draw(x, y, height=4):
    return show.draw_curve(
        np.asarray(x, float), np.asarray(y, float), names=("x", "y"), height=height
    )


def test_a_rising_line_rises_from_the_lower_left_to_the_upper_right():
    canvas = dots(draw(range(101), range(101)))
    assert canvas[-1, 0] == canvas[0, -1] == 1
    assert canvas[0, 0] == canvas[-1, -1] == 0
    height = [np.flatnonzero(column)[0] for column in canvas.T]
    assert height == sorted(height, reverse=True)


def test_a_curve_is_drawn_without_gaps_from_few_points():
    canvas = dots(draw([0, 1, 2], [0.0, 1.0, 0.0]))
    assert canvas.any(axis=0).all()
    np.testing.assert_array_equal(canvas, canvas[:, ::-1])


def test_a_curve_of_zeros_is_a_line_at_the_bottom():
    canvas = dots(draw([0, 10], [0.0, 0.0]))
    assert canvas[-1].all()
    assert not canvas[:-1].any()


def test_the_axis_has_the_highest_value_and_values_stand_below_their_places():
    *_, xs, ys = text = draw(range(17), np.arange(17) / 16).splitlines()
    assert text[0].split()[0] == "1"
    assert text[-3].split()[0] == "0"
    assert xs.split() == ["x", "0", "2", "4", "6", "8", "10", "12", "14", "16"]
    assert ys.split()[:4] == ["y", "0", "0.125", "0.25"]
    assert xs.index("8") == ys.index("0.5")


def test_places_that_coincide_are_written_once():
    assert draw([0, 1], [1.0, 0.5]).splitlines()[-2].split() == ["x", "0", "1"]
