"""The Python interface: what `import lingo` gives."""

from __future__ import annotations

import builtins
import inspect
import os
import pathlib
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata

import pytest

import lingo
from lingo import contract
from lingo.cli import options
from lingo.cli.command import help_text
from lingo.cli.main import main
from lingo.cli.verbs import sweep as sweep_verb
from lingo.config import experiment_index, registry, serial
from lingo.config.options import declarations
from lingo.config.params import ParamError
from lingo.config.roots import roots
from lingo.decode.chat import ChatOptions
from lingo.decode.settings import DecodeOptions
from lingo.export.portable import ExportOptions
from lingo.study.run import SweepOutcome
from lingo.trainer.evaluation.predict import PredictOptions
from lingo.trainer.trained import Trained

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
from lingo import Experiment, experiment, train
from lingo.data import TextInput
from lingo.layers import Layer, Stack
from lingo.optim import Sgd
from tasks.lm.task import LanguageModeling

class Own(Layer):
    dim: int

    def __call__(self, x, **inputs):
        return x

@experiment
def own():
    task = LanguageModeling.params()
    task.model.set(dim=8, stack=Stack.params(layer=Own))
    data = TextInput.params(batch_size=2, length=8)
    return Experiment.params(
        task=task, train_input=data, optimizer=Sgd.params(learning_rate=0.1), max_steps=2
    )

if __name__ == "__main__":
    train(own(), "run")
"""


def test_values_that_a_new_class_does_not_take_are_told():
    message = (
        r"FeedForward=Linear.*: dropped: task.model.stack.layer.ffn.hidden_dim = 344: Linear has"
    )
    with pytest.warns(UserWarning, match=message):
        lingo.get("lm.source.tiny", "FeedForward=Linear(output_dim=128)")


def test_an_experiment_is_got_by_name_with_overrides() -> None:
    params = lingo.get("lm.source.tiny", "max_steps=3", "exp.num_layers=1")
    assert params.max_steps == 3
    assert params.task.model.stack.num_layers == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lingo.get(None), r"lingo\.get takes a name and texts.*None \(NoneType\)"),
        (lambda: lingo.get("tiny", {"max_steps": 3}), r"'max_steps=100', got \{.*\(dict\)"),
        (lambda: lingo.load(None), r"lingo\.load takes the directory of a run, got None"),
        (lambda: lingo.train("tiny", "x"), r"get\('tiny'\) returns them, got 'tiny' \(str\)"),
        (
            lambda: lingo.train(lingo.get("tiny").task, "x"),
            r"Experiment.* the Params of a LanguageModeling",
        ),
        (lambda: lingo.train(lingo.get("tiny"), None), r"takes a directory, got None"),
        (lambda: lingo.train(lingo.get("tiny"), "hdfs://b/run"), r"'hdfs://b/run' is an address"),
        (lambda: lingo.show("tiny"), r"lingo\.show takes Params, .*got 'tiny' \(str\)"),
        (lambda: lingo.diff(lingo.get("tiny"), "small"), r"lingo\.diff takes Params.*'small'"),
        (lambda: lingo.why("tiny", "seed"), r"lingo\.why takes Params"),
        (lambda: lingo.list(3), r"lingo\.list takes a word, got 3 \(int\)"),
    ],
)
def test_arguments_of_another_kind_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        call()


def test_a_run_of_no_experiment_cannot_be_loaded(tmp_path: pathlib.Path) -> None:
    params = lingo.get("lm.source.tiny").optimizer
    (tmp_path / "config.json").write_text(serial.dump(params, serial.Origin(), ""))
    with pytest.raises(ParamError, match="holds the Params of a AdamW, not of an Experiment"):
        lingo.load(tmp_path)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lingo.nothing  # noqa: B018


def test_importing_imports_nothing_else() -> None:
    code = (
        "import sys, lingo\n"
        "assert not {'fiddle', 'numpy', 'tensorflow', 'absl'} & set(sys.modules)\n"
        "assert callable(lingo.train)\n"
        "import lingo.contract\n"
        "assert callable(lingo.train) and 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_dir_and_help_show_every_public_name() -> None:
    assert set(lingo.__all__) <= set(dir(lingo))
    page = pydoc.plain(pydoc.render_doc(lingo))
    functions = [name for name in lingo.__all__ if callable(getattr(lingo, name))]
    assert len(functions) == 12
    assert [name for name in functions if f"{name}(" not in page] == []


SHARED = [
    (lingo.train, "train", options.TrainOptions),
    (lingo.load, "decode", options.LoadOptions),
    (lingo.check, "check", options.CheckOptions),
    (lingo.sweep, "sweep", options.SweepOptions),
    (Trained.generate, "decode", DecodeOptions),
    (Trained.chat, "chat", ChatOptions),
    (Trained.export, "export", ExportOptions),
    (Trained.predict, "predict", PredictOptions),
]


def arguments_of_page(function: Callable) -> dict[str, str]:
    """Returns the sentence of each argument under `Args:` of a function's page of help."""
    page = inspect.cleandoc(pydoc.plain(pydoc.render_doc(function)))
    section = page.partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


@pytest.mark.parametrize(
    ("function", "verb", "cls"), SHARED, ids=lambda v: getattr(v, "__name__", v)
)
def test_help_in_python_and_on_the_command_line_say_the_same(function, verb, cls) -> None:
    module = import_module(f"lingo.cli.verbs.{verb}")
    lines = help_text(verb, module).partition("\nflags:\n")[2].splitlines()
    flags = {line.split()[0][2:].partition("=")[0]: line.split(maxsplit=1)[1] for line in lines}
    page, parameters = arguments_of_page(function), inspect.signature(function).parameters
    named = {n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    shared = {one.field: one.flag for one in declarations(cls)}
    others = {"names": "exp"} if function is lingo.check else {}
    assert shared == {name: name for name in named & flags.keys()} | others
    for name, flag in shared.items():
        default = parameters[name].default
        suffix = {"()": " (repeatable)", "None": "", "False": " (default: off)"}
        said = suffix.get(str(default), f" (default: {default})")
        assert flags[flag] == page[name] + said
        (hint,) = (c.__annotations__[name] for c in cls.__mro__ if name in vars(c))
        assert parameters[name].annotation == hint


def test_a_call_that_is_not_possible_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'audits'"):
        lingo.train(lingo.get("tiny"), "run", audits=True)
    with pytest.raises(
        TypeError, match=r"load\(\) missing 1 required positional argument: 'run_dir'"
    ):
        lingo.load()


def test_a_hint_names_the_argument_and_not_the_flag(tmp_path: pathlib.Path) -> None:
    (file := tmp_path / "hinted.py").write_text(SCRIPT)
    config = serial.dump(registry.get(f"{file}:own").params, serial.Origin(), "")
    (tmp_path / "config.json").write_text(config)
    message = re.escape(f"To run it: trust=['{file}']")
    with pytest.raises(ParamError, match=f"{message}$"):
        lingo.load(tmp_path)


def test_experiments_are_declared_with_two_names_of_lingo() -> None:
    assert lingo.Experiment is contract.Experiment
    assert lingo.experiment is registry.experiment


def test_a_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lingo.__version__ == metadata.version("lingo-tf")

    def raise_not_found(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", raise_not_found)
    assert lingo.__version__ == "0+unknown"


def test_experiments_are_listed_by_a_word() -> None:
    (entry,) = lingo.list("lm.source.tiny_moe")
    assert (entry.name, entry.function) == ("lm.source.tiny_moe", "tiny_moe")
    assert len(lingo.list()) > len(lingo.list("source")) > 1
    with pytest.raises(ParamError, match=r"'lm\.source\.tny'.*Did you mean"):
        lingo.list("lm.source.tny")


def test_a_file_of_experiments_that_cannot_be_read_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("@experiment\ndef bad(:\n")
    monkeypatch.setenv(roots.VARIABLE, str(tmp_path))
    with pytest.warns(UserWarning, match=r"broken\.py:2"):
        assert lingo.list("lm.source")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> builtins.list[str]:
    capsys.readouterr()
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_show_diff_and_why_are_what_the_verbs_print(capsys: pytest.CaptureFixture[str]) -> None:
    tiny, small = "--exp=lm.source.tiny", "--exp=lm.source.small"
    before, after = lingo.get("lm.source.tiny"), lingo.get("lm.source.small")
    assert lingo.show(before).splitlines() == printed(capsys, "show", tiny)
    assert list(map(str, lingo.diff(before, after))) == printed(capsys, "diff", tiny, small)
    path = "FeedForward.hidden_dim"
    chains = "\n".join(map(str, lingo.why(after, path)))
    assert chains.splitlines() == printed(capsys, "why", path, small)


def test_check_builds_every_experiment_with_the_same_overrides(monkeypatch):
    names = ("image.amoebanet.digits", "lm.source.tiny")
    entries = {name: experiment_index.index().entries[name] for name in names}
    index = experiment_index.ExperimentIndex(entries, [])
    monkeypatch.setattr(experiment_index, "index", lambda roots=None: index)
    digits, tiny = lingo.check("Stack=Repeat")
    assert (digits.name, tiny.name) == names
    assert (digits.error, [*digits.mismatches]) == (None, ["Stack=Repeat"])
    assert (tiny.error, tiny.matches["Stack=Repeat"].num_matches) == (None, 1)
    assert (digits.num_weights, tiny.num_weights) == (376_682, 824_832)
    digits, tiny = lingo.check("Stack.num_layers=0")
    assert digits.error is None
    assert isinstance(tiny.error, ParamError)
    assert str(tiny).startswith("FAILED  task.model.stack: num_layers=0")
    with pytest.raises(ParamError, match="--set=Stck=Repeat matches in no experiment"):
        lingo.check("Stck=Repeat")


def test_a_sweep_asks_for_what_the_verb_does(tmp_path, monkeypatch):
    requests = []

    def run_sweep(request, **kwargs) -> SweepOutcome:
        requests.append((request, kwargs["num_workers"]))
        return SweepOutcome([], None)

    monkeypatch.setattr(sweep_verb, "run_sweep", run_sweep)
    lingo.sweep("lm.source.tiny", tmp_path / "s", "seed=0,1", overrides=["max_steps=2"], workers=2)
    ((request, num_workers),) = requests
    assert request.train_arguments == ("--exp=lm.source.tiny", "--set=max_steps=2")
    assert [*map(str, request.axes)] == ["seed=0,1"]
    assert (request.logdir, request.method, num_workers) == (tmp_path / "s", "grid", 2)


def test_a_mistake_in_a_sweep_creates_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ParamError, match="num_trials"):
        lingo.sweep("lm.source.tiny", tmp_path / "s", "seed=0,1", search="random")
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_of_a_params_folder_may_extend_that_of_lingo(tmp_path: pathlib.Path) -> None:
    (tmp_path / "extended.py").write_text(
        "import lingo\nfrom lingo import Experiment, experiment\n\n"
        'class Extended(Experiment):\n    note: str = ""  # what it is about\n\n'
        '@experiment\ndef extended():\n    cfg = lingo.get("lm.source.tiny")\n'
        "    names = ('task', 'train_input', 'optimizer')\n"
        "    return Extended.params(**{name: getattr(cfg, name) for name in names})\n"
    )
    places = roots.find([tmp_path])
    params = registry.get("extended", (), places).params
    saved = serial.dump(params, serial.Origin(), "", places)
    del sys.modules["params.extended"]
    assert serial.load(saved, (), places).params.cls.__qualname__ == "Extended"


def test_training_in_python_prints_nothing_of_tensorflow(tmp_path: pathlib.Path) -> None:
    (tmp_path / "own.py").write_text(f"import tensorflow\n{SCRIPT}")
    code = f"""
import sys; sys.path.append({str(ROOT)!r})
import lingo
outcome = lingo.train(lingo.get("own.py:own"), "run")
model = lingo.load("run", trust=["own.py"])
model.loss(model.experiment.train_input.batch(0))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    starts = [line.split()[0] for line in lines if "indexing" not in line]  # if it takes long
    assert starts == ["experiment:", "data:", "devices:", "tensorboard", *["step"] * 3, "done"]


def test_a_file_that_is_run_trains_its_own_experiment(tmp_path: pathlib.Path) -> None:
    """Its classes belong to `__main__` there, and to the file everywhere else."""
    (tmp_path / "own.py").write_text(SCRIPT)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths}
    train = ["-m", "lingo.cli.main", "train", "--exp=own.py:own", "--logdir=run"]
    for command in (["own.py"], [*train, "--set=max_steps=3"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        if command == ["own.py"]:
            with pytest.raises(ParamError, match="outside the trusted places"):
                lingo.load(tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "done at step 3\n"
    assert (tmp_path / "run/source/own.py").read_text() == SCRIPT
    layer = lingo.load(tmp_path / "run").experiment.task.model
    assert type(layer.stack.layers[0]).__name__ == "Own"
