"""The wheel: `lingo` alone at the top, every experiment inside, nothing needed from a checkout."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

FLAGS = re.DOTALL | re.MULTILINE
ROOT = pathlib.Path(__file__).parent.parent
pytestmark = pytest.mark.xdist_group("wheel")  # it is built and installed once

MINE = """
from lingo.config.registry import experiment
from params.lm.source import tiny

@experiment
def mine():
    cfg = tiny(model_dim=32, num_layers=1)
    cfg.max_steps = 2
    cfg.eval_inputs = {}
    return cfg
"""

TEST_OF_MINE = """
import lingo
from params.lm.source import tiny
from tasks.lm.model import LanguageModel

def test_mine():
    assert issubclass(tiny().task.model.cls, LanguageModel)
    assert lingo.get("mine.py:mine").max_steps == 2
"""

TYPED = """
import lingo

params = lingo.get("lm.source.tiny", "max_steps=3")
reveal_type(params)
reveal_type(lingo.train)
lingo.train(params, [3])
"""

WHERE = """
import lingo
from params.lm import source
from tasks.lm import task

assert lingo.get("tiny").task.cls is task.LanguageModeling
print(source.__file__, task.__file__)
"""


def pip(verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--no-deps", "--quiet", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("dist")
    pip("wheel", "-w", str(folder), str(ROOT))
    (found,) = folder.glob("lingo_tf-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns an environment in which the wheel is installed and the checkout is not."""
    target = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(target), str(wheel))
    # packages on PYTHONPATH run no .pth files, so an editable install there does not count
    return os.environ | {"PYTHONPATH": f"{target}{os.pathsep}{sysconfig.get_path('purelib')}"}


def python(arguments: list[str], environment: dict[str, str], cwd: pathlib.Path) -> str:
    command = [sys.executable, "-S", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lingo(arguments: list[str], environment: dict[str, str], cwd: pathlib.Path) -> str:
    return python(["-m", "lingo.cli.main", *arguments], environment, cwd)


def test_only_lingo_is_installed_at_the_top(wheel: pathlib.Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"lingo"}


@pytest.fixture(scope="module")
def metadata(wheel: pathlib.Path) -> str:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (n for n in content.namelist() if n.endswith(".dist-info/METADATA"))
        return content.read(name).decode()


def test_the_licence_is_named_and_in_the_wheel(wheel: pathlib.Path, metadata: str) -> None:
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nAuthor: The lingo authors\n" in metadata
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "lingo/py.typed" in names


def test_the_description_has_no_links_into_the_repository(metadata: str) -> None:
    description = metadata.partition("\n\n")[2]
    assert "# lingo" in description
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "Train on your own text: files" in description


def test_a_type_checker_reads_the_annotations_of_the_wheel(installed, tmp_path) -> None:
    site = installed["PYTHONPATH"].split(os.pathsep)[0]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [site]}))
    (tmp_path / "mine.py").write_text(TYPED)
    program = pathlib.Path(sys.executable).with_name("pyright")
    command = [program, "--outputjson", "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = [(m["severity"], m["message"]) for m in json.loads(done.stdout)["generalDiagnostics"]]
    assert ("information", 'Type of "params" is "Params"') in found
    signature = (
        "(params: Params, logdir: str | Path, *, allow_change: bool = False,"
        " note: str | None = None, tag: Sequence[str] = (), audit: bool = False) -> Outcome"
    )
    assert ("information", f'Type of "lingo.train" is "{signature}"') in found
    (error,) = [message for severity, message in found if severity == "error"]
    assert "list[int]" in error


def test_what_few_need_is_an_extra(metadata: str) -> None:
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?:.*; extra == '([\w-]+)')?", metadata, re.M)
    named = set(re.findall(r"^Provides-Extra: ([\w-]+)$", metadata, re.M))
    assert named >= {extra for _, extra in required} - {""}
    assert {("tensorflow", ""), ("jax", "mesh"), ("optuna", "sweep")} <= set(required)
    assert not {"jax", "optuna"} & {package for package, extra in required if not extra}


def test_an_installed_lingo_lists_and_trains_its_experiments(installed, tmp_path):
    assert "lm.source.tiny" in lingo(["list"], installed, tmp_path)
    small = ["--set=exp.model_dim=32", "--set=max_steps=2", "--set=eval_inputs={}"]
    lingo(["train", "--exp=lm.source.tiny", "--logdir=run", *small], installed, tmp_path)
    assert (tmp_path / "run/STATUS").read_text() == "done at step 2\n"


def test_the_first_experiment_of_the_readme_trains_in_an_empty_directory(installed, tmp_path):
    (code,) = re.findall(
        r"^```python first.py\n(.*?)^```$", (ROOT / "README.md").read_text(), FLAGS
    )
    assert len(re.findall(r"^(?:from|import) ", code, FLAGS)) <= 5
    (tmp_path / "first.py").write_text(code)
    python(["first.py"], installed, tmp_path)
    assert (tmp_path / "runs/first/STATUS").read_text() == "done at step 20\n"
    lingo(["train", "--exp=first.py:first", "--logdir=other"], installed, tmp_path)
    assert (tmp_path / "other/STATUS").read_text() == "done at step 20\n"


@pytest.fixture
def beside(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a directory with a user's experiment, his test of it, and files of his own."""
    main = "\nif __name__ == '__main__':\n    print(mine().cls)\n"
    for name, code in {
        "mine.py": MINE + main,
        "test_mine.py": TEST_OF_MINE,
        **request.param,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    return tmp_path


def recorded_run(environment: dict[str, str], cwd: pathlib.Path) -> None:
    """Writes the configuration of a run, as training does, without training."""
    code = (
        "import lingo; from lingo.config import serial; p = lingo.get('lm.source.tiny');"
        "open('run/config.json', 'w').write(serial.dump(p, serial.Origin(), ''))"
    )
    (cwd / "run").mkdir()
    python(["-c", code], environment, cwd)


BESIDE = [
    {"tasks/own.py": "x = 1", "tasks/lm/model.py": "raise RuntimeError", "params/lm.py": "1 / 0"},
    {"tasks/lm/__init__.py": "raise RuntimeError", "params/lm/source.py": "1 / 0"},
]


@pytest.mark.parametrize("beside", BESIDE, ids=["modules", "packages"], indirect=True)
def test_tasks_and_params_are_importable_beside_files_of_the_user(installed, beside):
    assert python(["mine.py"], installed, beside) == "<class 'lingo.contract.Experiment'>\n"
    assert "1 passed" in python(["-m", "pytest", "-q", "test_mine.py"], installed, beside)
    recorded_run(installed, beside)
    for arguments in (["--run=run"], ["--exp=mine.py:mine"], ["--exp=lm.source.tiny"]):
        assert "LanguageModeling" in lingo(["show", *arguments], installed, beside)


def test_the_installed_lingo_uses_its_own_files_inside_a_checkout(installed, tmp_path):
    target = pathlib.Path(installed["PYTHONPATH"].split(os.pathsep)[0])
    for folder in ("lingo", "tasks", "params"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
        for file in (tmp_path / folder).rglob("*.py"):
            file.write_text(f"{file.read_text()}\nraise RuntimeError")
    command = [str(target / "bin" / "lingo"), "show", "--exp=lm.source.tiny"]
    assert "LanguageModeling" in python(command, installed, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "where.py").write_text(WHERE)
    assert python(["mine/where.py"], installed, tmp_path).split() == [
        str(target / "lingo/_experiments/params/lm/source.py"),
        str(target / "lingo/_experiments/tasks/lm/task.py"),
    ]
