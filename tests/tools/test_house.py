"""The figures of the house, of small projects whose figures are known."""

import json
import textwrap
from pathlib import Path

import pytest

from tools.before_gradient import trace_training
from tools.house import is_lone_participle, main, measure, names
from tools.source_tree import SourceTree, circles


def project(root: Path, files: dict[str, str]) -> Path:
    """Writes a project of some files, path -> text."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return root


def room_circles(root: Path) -> list[list[str]]:
    return circles(SourceTree(root).edges(lambda file: file.room))


def test_a_participle_or_adverb_without_a_noun_is_a_lone_participle():
    for name in ("placed", "_dealt", "standing", "beside", "upwards", "left_alone", "filled_up"):
        assert is_lone_participle(name), name
    verbs_and_nouns = ("embed", "seed", "read", "put", "padding", "sharding", "docstring", "of")
    for name in (*verbs_and_nouns, "is_finished", "examples_before", "merged_rows", "__init__"):
        assert not is_lone_participle(name), name


def test_names_are_of_functions_methods_and_fields_and_public_without_underscores(tmp_path):
    text = """
        class Batch(NamedTuple):
            padded: int
            finished: bool
        class Layer:
            untold: int
            def built(self):
                def held(): ...
            def _kept(self): ...
        class _Hidden:
            def shown(self): ...
    """
    (file,) = SourceTree(project(tmp_path, {"lingo/ops/a.py": text})).files
    found = {name.place.split(": ")[1]: name.is_public for name in names(file)}
    assert found == {
        "Layer.built": True,
        "Layer.built.held": False,
        "Layer._kept": False,
        "_Hidden.shown": False,
        "Batch.padded": True,
    }


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


def test_a_figure_out_of_its_bound_is_named_with_its_places_and_is_code_1(tmp_path, capsys):
    root = project(tmp_path, {"lingo/ops/a.py": "def scale(x):\n    return x\n"})
    assert main([f"--root={root}"]) == 0
    assert "missed" not in capsys.readouterr().out
    project(root, {"lingo/ops/a.py": "def scaled(x):\n    return x\n"})
    assert main([f"--root={root}", "--list=participles"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("participles:\n  lingo/ops/a.py:1: scaled\n")
    assert out.endswith("missed: public names that are participles is 1, wanted <= 0\n")
    assert main([f"--root={root}", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["rooms"] == {"ops": [1, 2]}
    assert report["figures"]["function lines, max"] == 2
    assert len(report["misses"]) == 1


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
