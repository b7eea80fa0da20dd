"""The figures of the house, of small projects whose figures are known."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tools.before_gradient import trace_training
from tools.house import main, measure
from tools.source_tree import SourceTree, circles, room_of


def project(root: Path, files: dict[str, str]) -> Path:
    """Writes a project of some files, path -> text."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return root


def room_circles(root: Path) -> list[list[str]]:
    return circles(SourceTree(root).edges(lambda file: file.room))


def test_code_proper_has_no_docstrings_comments_or_empty_lines(tmp_path):
    text = '''
        """Says what."""

        import os
        from lingo.ops import (
            a,
        )

        # why
        def f():
            """Does it.

            At length.
            """
            return os, a
    '''
    files = {"lingo/ops/b.py": text, "lingo/models/c.py": "x = 1\n", "lingo/ops/a.py": "y = 1\n"}
    figures = measure(project(tmp_path, files)).figures
    assert figures["its lines of code proper"] == 6 + 1
    lines = figures["lines of lingo without models and datasets"]
    assert lines == text.count("\n") + 1
    assert figures["% of its lines that are imports"] == pytest.approx(100 * 4 / lines)


def test_phrases_that_are_read_twice_are_listed(tmp_path):
    root = project(tmp_path, {"lingo/ops/a.py": '"""The length, that of all."""\nnobody = 1\n'})
    assert [place.split(": ")[:2] for place in measure(root).places["phrases"]] == [
        ["lingo/ops/a.py:1", "that of"],
        ["lingo/ops/a.py:2", "nobody"],
    ]


def test_a_package_that_only_exports_makes_no_circle_of_folders(tmp_path):
    files = {
        "lingo/ops/__init__.py": "import lingo.ops.image.b\n",
        "lingo/ops/a.py": "",
        "lingo/ops/image/b.py": "import lingo.ops.a\n",
    }
    assert measure(project(tmp_path, files)).figures["circles of folders"] == 0
    files["lingo/ops/a.py"] = "import lingo.ops.image.b\n"
    assert measure(project(tmp_path, files)).figures["circles of folders"] == 1


@pytest.mark.parametrize(
    ("definition", "figure"),
    [
        ('def f(x: tf.Tensor):\n    """Doubles x, [B, ...]."""', (1, 100)),
        ('def f(x: tf.Tensor):\n    """Doubles x, a float32 scalar."""', (1, 100)),
        ('def f(x: tf.Tensor):\n    """Doubles x, see [this](page), layers[i]."""', (1, 0)),
        ('def f(b: Mapping[str, "np.ndarray | None"]):\n    """Doubles."""', (1, 0)),
        ('def f() -> tuple[int, jax.Array]:\n    """Counts."""', (1, 0)),
        ('def f(x: Any):\n    """Doubles."""', (1, 0)),
        ("class A:\n    def __call__(self, x: tf.Tensor): ...", (1, 0)),
    ],
)
def test_a_docstring_states_a_shape_or_none(tmp_path, definition, figure):
    root = project(tmp_path, {"lingo/ops/a.py": definition + "\n"})
    figures = measure(root).figures
    assert figures["public functions with tensors"] == figure[0]
    assert figures["% of functions with tensors that state shapes"] == figure[1]


def test_shapes_are_asked_of_public_functions_with_tensors_where_they_are_declared(tmp_path):
    text = '''
        class Layer:
            def step(self, x: tf.Tensor):
                """Computes [B, D]."""
        class Linear(Layer):
            def step(self, x: tf.Tensor): ...
            def gradient(self, x: tf.Tensor): ...
            def _product(self, x: tf.Tensor): ...
        def apply(function: Callable[[tf.Tensor], tf.Tensor], size: int): ...
    '''
    root = project(tmp_path, {"lingo/layers/a.py": text, "tools/b.py": "def f(x: tf.Tensor): ..."})
    report = measure(root)
    assert report.figures["public functions with tensors"] == 2
    assert report.places["shapes"] == ["lingo/layers/a.py:7: Linear.gradient"]


@pytest.mark.parametrize(
    "back",
    [
        "from lingo.layers.a import f",
        "def g():\n    from lingo.layers import a",
        "if TYPE_CHECKING:\n    import lingo.layers.a",
        "importlib.import_module('lingo.layers.a')",
    ],
)
def test_rooms_that_import_each_other_in_any_way_are_a_circle(tmp_path, back):
    files = {"lingo/layers/a.py": "import lingo.ops.b\n", "lingo/data/c.py": "import lingo.ops.b\n"}
    root = project(tmp_path, {**files, "lingo/ops/b.py": ""})
    assert room_circles(root) == []
    assert room_circles(project(root, {"lingo/ops/b.py": back})) == [["layers", "ops"]]


def test_a_circle_of_files_of_config_is_shown_with_its_imports(tmp_path):
    files = {
        f"lingo/config/{a}.py": f"from lingo.config import {b}\n" for a, b in ("ab", "bc", "ca")
    }
    report = measure(project(tmp_path, {**files, "lingo/config/d.py": "import lingo.config.a\n"}))
    assert report.figures["circles of files of config"] == 1
    assert "files of config:   lingo/config/a.py:1: lingo.config.b" in report.places["circles"]
    assert not any("d.py" in line for line in report.places["circles"])


def test_a_relative_import_is_refused(tmp_path):
    tree = SourceTree(project(tmp_path, {"lingo/a.py": "\nfrom . import b\n"}))
    with pytest.raises(ValueError, match=r"lingo/a\.py:2: imports are absolute"):
        list(tree.imports)


def test_files_with_one_importer_are_those_that_no_package_exports_again(tmp_path):
    files = {
        "lingo/ops/shown.py": "x = 1\n",
        "lingo/ops/__init__.py": "from lingo.ops.shown import x\n",
        "lingo/ops/used.py": "y = 1\n",
        "lingo/ops/user.py": "from lingo.ops.used import y\nfrom lingo.ops.shown import x\n",
        "lingo/ops/other.py": "def f():\n    import lingo.ops.user\n",
        "lingo/ops/another.py": "import lingo.ops.user\n",
    }
    assert measure(project(tmp_path, files)).places["importers"] == [
        "lingo/ops/used.py: 1 lines, for lingo/ops/user.py"
    ]


def test_rooms_are_folders_of_lingo_and_folders_beside_it():
    modules = ["lingo", "lingo.contract", "lingo.ops.scan", "tasks.lm.model"]
    assert [*map(room_of, modules)] == ["__init__", "contract", "ops", "tasks"]


def test_a_figure_out_of_its_bound_is_named_with_its_places_and_is_code_1(tmp_path, capsys):
    root = project(tmp_path, {"lingo/ops/a.py": "def scale(x):\n    return x\n"})
    assert main([f"--root={root}"]) == 0
    assert "missed" not in capsys.readouterr().out
    project(root, {"lingo/ops/b/c.py": "import lingo.ops.a\n"})
    project(root, {"lingo/ops/a.py": "import lingo.ops.b.c\ndef scale(x):\n    return x\n"})
    assert main([f"--root={root}", "--list=circles"]) == 1
    out = capsys.readouterr().out
    assert "folders: circle of 2: lingo/ops lingo/ops/b" in out
    assert "missed: circles of folders is 1, wanted <= 0\n" in out
    assert main([f"--root={root}", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["rooms"] == {"ops": [2, 4]}
    assert report["figures"]["function lines, max"] == 2
    assert len(report["misses"]) == 2  # a file of imports, and the circle


def test_silencers_of_lines_and_files_are_found_where_they_stand(tmp_path):
    text = "# pyright: basic\nx = 1  # noqa: E501\ny = 2  # type: ignore\n"
    report = measure(project(tmp_path, {"lingo/a.py": text, "tests/b.py": "x = 1  # noqa\n"}))
    assert report.figures["silencers"] == 3
    assert report.figures["silencers in tests"] == 1
    assert report.places["silencers"][1] == "lingo/a.py:2: x = 1  # noqa: E501"


TRAINS = {
    "pyproject.toml": '[project.scripts]\nlingo = "lingo.cli.main:program"\n',
    "lingo/__init__.py": "",
    "lingo/cli/main.py": """
        def program():
            from lingo.trainer import run
            run.train()
    """,
    "lingo/cli/early.py": "def register(): ...\n",
    "lingo/trainer/run.py": """
        from lingo.cli import early
        from lingo.storage import rows
        from other import backprop
        early.register()
        def train():
            rows.write()
            backprop.gradient()
            rows.write_more()
    """,
    "lingo/storage/rows.py": "def write(): ...\n",
    "other/backprop.py": "def gradient(): ...\n",
}


def test_files_count_from_the_command_to_the_gradient_without_imports(tmp_path):
    before = trace_training(project(tmp_path, TRAINS))
    assert before.files == ["lingo/cli/main.py", "lingo/trainer/run.py", "lingo/storage/rows.py"]
    assert before.stack == ["lingo/cli/main.py:4: program", "lingo/trainer/run.py:8: train"]


def test_a_training_without_a_gradient_is_an_error_with_what_it_printed(tmp_path):
    main_file = {"lingo/cli/main.py": "def program():\n    raise OSError('no room')\n"}
    with pytest.raises(RuntimeError, match="no room"):
        trace_training(project(tmp_path, {**TRAINS, **main_file}))
