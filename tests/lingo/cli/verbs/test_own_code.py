"""Code of the user's own: kept with the run, compared when it resumes, trusted while it is same."""

from __future__ import annotations

import json
import pathlib
import shutil
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import lingo
from lingo.checkpoints import store
from lingo.cli.main import main
from lingo.trainer import changes, start
from lingo.trainer.changes import ChangedConfiguration
from lingo.trainer.directory.run_directory import RunDirectory

pytestmark = [
    pytest.mark.xdist_group("own_code"),  # one run for all
    pytest.mark.usefixtures("once_compiled"),
]
FILES = {
    "own_code_experiment.py": """
from lingo.config.registry import experiment
from lingo.data.record_source import InstalledSource
from lingo.data.document_input import TextInput
from lingo.layers.feed_forward import FeedForward
from own_code_layers.layer import OwnLayer
from params.lm.source import tiny


@experiment
def own():
    params = tiny(model_dim=8, num_layers=1).set(eval_inputs={}, max_steps=1)
    source = InstalledSource.params(package="absl")
    params.train_input = TextInput.params(source=source, batch_size=2, length=8)
    params.all(FeedForward).swap(OwnLayer)
    return params
""",
    "own_code_layers/layer.py": """
from lingo.layers.feed_forward import FeedForward
from own_code_layers.factor import FACTOR


class OwnLayer(FeedForward):
    def __call__(self, x, **inputs):
        return FACTOR * super().__call__(x, **inputs)
""",
    "own_code_layers/factor.py": "FACTOR = 2.0\n",
}


class Project(NamedTuple):
    """A folder with an experiment of several files, and a run of it."""

    folder: pathlib.Path
    run: pathlib.Path

    @property
    def training(self) -> list[str]:
        """The command that has trained the run."""
        exp = f"--exp={self.folder / 'own_code_experiment.py'}:own"
        return ["train", exp, f"--logdir={self.run}"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("runs") / "run")
    for name, content in FILES.items():
        (project.folder / name).parent.mkdir(exist_ok=True)
        (project.folder / name).write_text(content)
    assert main(project.training) == 0
    return project


@pytest.fixture
def project(trained, tmp_path, capsys):
    """The same files, as they were at first, and a copy of the run."""
    for name, content in FILES.items():
        (trained.folder / name).write_text(content)
    shutil.copytree(trained.run, tmp_path / "run")
    capsys.readouterr()
    return trained._replace(run=tmp_path / "run")


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns the content of each file, by its path in the folder, but for that of the lock."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_the_files_that_an_experiment_uses_are_kept(project):
    kept = {name: content.encode() for name, content in FILES.items()}
    assert files_of(project.run / "source") == kept
    recorded = json.loads((project.run / "environment.json").read_text())["source"]
    assert {name: file["path"] for name, file in recorded.items()} == {
        name: str(project.folder / name) for name in FILES
    }
    assert store.find(project.run / "checkpoints", 1, of=project.run).metadata["source"] == recorded


@pytest.mark.parametrize("name", FILES)
def test_other_code_is_refused_by_name_also_if_only_a_comment_differs(project, name, capsys):
    file = project.folder / name
    file.write_text(f"{FILES[name]}# a comment\n")
    before = files_of(project.run)
    for flags in (["--set=max_steps=2"], [], ["--dry_run"]):
        assert main([*project.training, *flags]) == 7
        error = capsys.readouterr().err
        assert f"was begun with other code: {file} (was: source/{name})\n" in error
        assert "--allow_change" in error
        assert len(error.splitlines()) == 2
    assert files_of(project.run) == before


def test_a_change_that_is_allowed_is_shown_and_the_old_file_is_kept(project, capsys):
    file = project.folder / "own_code_layers/factor.py"
    file.write_text("FACTOR = 3.0\n")
    command = [*project.training, "--set=max_steps=2"]
    assert main([*command, "--allow_change"]) == 0
    assert "changed: source/own_code_layers/factor.py: " in capsys.readouterr().out
    assert (project.run / "source/own_code_layers/factor.py").read_text() == "FACTOR = 3.0\n"
    assert (project.run / "source/own_code_layers/factor.1.py").read_text() == "FACTOR = 2.0\n"
    assert main(command) == 0, "the last checkpoint is of the code as it is now"
    file.write_text("FACTOR = 2.0\n")
    assert main(command) == 7


def test_a_project_that_was_moved_is_the_same_code(project):
    directory, found = RunDirectory(project.run), store.latest(project.run / "checkpoints")
    files = directory.read_source().items()
    moved = {name: file._replace(path=f"/elsewhere/{name}") for name, file in files}
    assert changes.check_source(directory, moved, found, allow_change=False) == []
    moved["own_code_experiment.py"] = moved["own_code_experiment.py"]._replace(sha256="other")
    with pytest.raises(ChangedConfiguration, match="code: /elsewhere/own_code_experiment"):
        changes.check_source(directory, moved, found, allow_change=False)


def test_show_says_which_code_it_was(project, capsys):
    shown = [f"--run={project.run}", f"--trust={project.folder / 'own_code_layers/layer.py'}"]
    (project.folder / "own_code_layers/factor.py").write_text("FACTOR = 3.0\n")
    (project.folder / "own_code_experiment.py").unlink()
    assert main(["show", *shown]) == 0
    out, err = capsys.readouterr()
    states = {line.split()[1]: line for line in out.splitlines() if line.startswith("# source/")}
    ends = ["is not there any more", "is the same", "has changed since"]
    for name, end in zip(FILES, ends, strict=True):
        assert states[f"source/{name}:"].endswith(f"{project.folder / name} {end}")
    assert f"note: {project.folder / 'own_code_layers/factor.py'} is not what it was when" in err


def test_a_run_is_loaded_without_trust_while_its_code_is_what_was_trained(project, capsys):
    run = f"--run={project.run}"
    assert main(["show", run]) == 2
    assert "outside the trusted places" in capsys.readouterr().err
    assert main(project.training) == 0
    assert main(["show", run]) == 0
    assert main(["train", run, "--set=max_steps=2"]) == 0
    assert lingo.load(project.run).step == 2
    layer, factor = (
        project.folder / "own_code_layers" / name for name in ("layer.py", "factor.py")
    )
    factor.write_text("FACTOR = 3.0\n")
    capsys.readouterr()
    assert main(["decode", run, "--prompt=x"]) == 2
    error = capsys.readouterr().err
    assert f"{layer}, which was trained, but has changed since then: {factor}. " in error
    assert f"--trust={layer}" in error
    with pytest.warns(UserWarning, match=f"{factor} is not what it was when {project.run} began"):
        lingo.load(project.run, trust=[str(layer)])


def test_a_home_that_cannot_be_written_is_a_note(project, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    assert main(project.training) == 0
    assert "note: --run will need --trust for" in capsys.readouterr().err


def test_a_link_does_not_lead_out_of_the_run(project, tmp_path, capsys):
    shutil.rmtree(project.run / "source")
    (tmp_path / "outside").mkdir()
    (project.run / "source").symlink_to(tmp_path / "outside")
    assert main([*project.training, "--set=max_steps=2"]) == 10
    assert "source: it is a link, and nothing is written through links" in capsys.readouterr().err
    assert [*(tmp_path / "outside").iterdir()] == []


def test_processes_with_other_code_are_refused() -> None:
    leaders = json.dumps({"code": {"mine.py": "1"}, "data": 0})
    second: Any = types.SimpleNamespace(
        index=1, is_leader=False, share=lambda name, value: leaders, any=bool
    )
    with pytest.raises(ChangedConfiguration, match="process 1 has another code than"):
        start._check_same(second, {"code": {"mine.py": "2"}, "data": 0})


LOCAL = """
import pathlib
pathlib.Path("ran").touch()
from lingo.layers.feed_forward import FeedForward
class LocalLayer(FeedForward):
    pass
"""


def test_a_file_of_the_working_directory_runs_only_if_it_was_trained(
    lingo: Callable, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params/local_layers.py").write_text(LOCAL)
    (tmp_path / "run").mkdir()
    config = lingo("show", "--exp=lm.source.tiny", "--format=json").out
    (tmp_path / "run/config.json").write_text(config)
    show = ["show", "--run=run", "--set=FeedForward=LocalLayer"]
    done = lingo(*show)
    assert done.code == 2
    assert f"LocalLayer is a class of {tmp_path}/params/local_layers.py, a file outside" in done.err
    assert not (tmp_path / "ran").exists()
    assert lingo("describe", "FeedForward").code == 0
    assert not (tmp_path / "ran").exists()
    assert lingo(*show, "--trust=params/local_layers.py").code == 0
    assert (tmp_path / "ran").exists()
