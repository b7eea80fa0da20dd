"""Claims about finding and calling experiments."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lingo.config import docs, experiment_index, registry
from lingo.config.params import ParamError
from lingo.config.roots import roots
from lingo.config.roots.roots import Roots

HEADER = """
from __future__ import annotations
from typing import Literal
from lingo.config import registry
from lingo.config.params import Configurable
from lingo.config.registry import experiment

class Net(Configurable, interface=True):
    dim: int = 3  # width

class Wide(Net):
    factor: float = 2.0  # how wide

class Run(Configurable):
    net: Net = Net  # what
    steps: int = 10  # how long
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes an experiment file; modules stay imported, so each test has names of its own."""

    def write(name: str, body: str, header: str = HEADER) -> Path:
        file = tmp_path / "experiments" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(header + textwrap.dedent(body))
        return file

    return write


@pytest.fixture
def places(tmp_path: Path) -> Roots:
    """The directory that `write` writes to, and nothing else."""
    directory = tmp_path / "experiments"
    directory.mkdir(exist_ok=True)
    found = roots.find([directory])
    return found._replace(packages=found.packages | {"params": (directory,)}, local=None)


ONE = '''
@experiment
def small(dim: int = 4, kind: Literal["a", "b"] = "a", *, net: Net | None = None):
    """A small one.

    With details.
    """
    return Run.params(net=net or Net.params(dim=dim))

@registry.experiment
def other(): ...

def helper(): ...
'''


def test_the_index_reads_without_importing(write: Any, places: Roots) -> None:
    write("lm/unread", ONE + "\nraise RuntimeError\n")
    write("lm/broken", "def (")
    write("plain", "x = 1", header="")
    found = experiment_index.index(places)
    assert list(found.entries) == ["lm.unread.other", "lm.unread.small"]
    entry = found.entries["lm.unread.small"]
    signature = "(dim: int = 4, kind: Literal['a', 'b'] = 'a', net: Net | None = None)"
    assert entry.signature == signature
    assert (entry.summary, entry.function) == ("A small one.", "small")
    assert entry.file.read_text().splitlines()[entry.line - 1].startswith("def small")
    assert len(found.unreadable) == 1
    assert "broken.py:17" in found.unreadable[0]


def test_any_unique_ending_names_an_experiment(write: Any, places: Roots) -> None:
    write("lm/ending_a", ONE)
    write("mt/ending_b", ONE.replace("other", "third"))
    assert registry.get("lm.ending_a.small", (), places).params.net.dim == 4
    assert registry.get("ending_a.small", (), places).origin.name == "lm.ending_a.small"
    assert experiment_index.index(places).find("third").name == "mt.ending_b.third"
    message = r"'small' is the end of 2 names: lm.ending_a.small, mt.ending_b.small"
    with pytest.raises(ParamError, match=message):
        registry.get("small", (), places)


def test_only_the_file_asked_for_is_imported(write: Any, places: Roots) -> None:
    write("asked", ONE)
    write("not_asked", ONE.replace("small", "tiny") + "\nraise RuntimeError\n")
    registry.get("asked.small", (), places)
    assert "params.asked" in sys.modules
    assert "params.not_asked" not in sys.modules


def test_arguments_come_from_the_form_and_from_overrides(write: Any, places: Roots) -> None:
    write("arguments", ONE)
    chosen = registry.get(
        "small(dim=5, kind=b)", ["exp.dim=6", "steps=1_1", "Net=Wide(factor=.5)"], places
    )
    assert (chosen.params.net.dim, chosen.params.steps, chosen.params.net.factor) == (6, 11, 0.5)
    assert chosen.origin.arguments == {"dim": 6, "kind": "b"}
    assert chosen.origin.overrides == ("exp.dim=6", "steps=1_1", "Net=Wide(factor=.5)")
    assert [a.text for a in chosen.override_results] == ["steps=1_1", "Net=Wide(factor=.5)"]


def test_an_argument_may_be_a_class_and_stays_as_it_was_given(write: Any, places: Roots) -> None:
    write("classes_as_arguments", ONE)
    chosen = registry.get("small", ["exp.net=Wide(factor=3)", "Wide.factor=4"], places)
    assert (chosen.params.net.factor, chosen.origin.arguments["net"].factor) == (4.0, 3.0)


def test_a_file_can_be_named(write: Any, places: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("../elsewhere/by_name", ONE)
    chosen = registry.get(f"{file}:small(dim=7)", (), places)
    origin = chosen.origin
    assert (chosen.params.net.dim, origin.name, origin.file) == (7, "", str(file.resolve()))
    monkeypatch.chdir(file.parent)
    assert registry.get("by_name.py:small", ["Net=Wide"], places).params.net.cls.__name__ == "Wide"


def test_a_named_file_may_import_its_neighbours_and_shadow_nothing(write, places):
    write("../near/near_classes", "class Near(Net): ...")
    file = write(
        "../near/json",
        "from near_classes import Near\n@experiment\ndef near(): return Near.params()",
        HEADER,
    )
    chosen = registry.get(f"{file}:near", (), places)
    assert chosen.params.cls is sys.modules["near_classes"].Near
    assert hasattr(sys.modules["json"], "loads")


def test_two_experiments_of_one_name_are_refused_with_both_places(write, tmp_path):
    write("twin", ONE)
    other = tmp_path / "more"
    other.mkdir()
    (other / "twin.py").write_text(HEADER + ONE)
    message = r"twin.small is defined twice: .*experiments/twin.py:\d+ and .*more/twin.py:\d+"
    with pytest.raises(ParamError, match=message):
        experiment_index.index(roots.find([tmp_path / "experiments", other]))


def test_the_working_directory_and_the_variable_add_directories(write, tmp_path, monkeypatch):
    write("from_variable", ONE)
    write("../params/from_here", ONE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(roots.VARIABLE, os.pathsep.join([str(tmp_path / "experiments"), ""]))
    names = experiment_index.index().entries
    assert {"from_variable.small", "from_here.small"} <= names.keys()
    chosen = registry.get("from_here.small", ["Net=Wide"])
    assert chosen.params.net.cls.__name__ == "Wide"


MISTAKES = [
    ("faults.smal", (), r"no experiment .* Did you mean 'faults.small'.* `lingo list` shows all"),
    ("a b", (), "'a b' is not an experiment: write name"),
    ("small(dim=3", (), "is not an experiment"),
    ("small(3)", (), "takes field=value, got '3'"),
    ("small(dmi=3)", (), "argument 'dmi'. Did you mean 'dim'.* Its arguments: dim, kind, net"),
    ("small(dim=x)", (), "faults.small: dim takes int, got 'x'"),
    ("small", ("exp.dim",), "'exp.dim' sets nothing: write exp.argument=value"),
    ("small", ("exp.net=Wde",), "There is no class 'Wde' to configure. Did you mean 'Wide'"),
    ("small", ("stpes=3",), "no field 'stpes'. Did you mean 'steps'"),
    ("needs", (), r"faults.needs needs size: write faults.needs\(size=...\)"),
    ("fails", (), r"faults.py:\d+: ZeroDivisionError: division by zero"),
    ("misspells", (), r"faults.py:\d+: Run has no field 'stpes'. Did you mean 'steps'"),
    ("calls_wrongly", (), r"faults.py:\d+: TypeError: .*unexpected keyword argument 'dmi'"),
    ("returns_nothing", (), r"py:\d+: returns_nothing returned None; an experiment returns Params"),
    ("faults_import.x", (), r"faults_import.py:17: ModuleNotFoundError: No module named 'nowhere'"),
    ("faults_syntax.x", (), r"no experiment.*Not readable: .*faults_syntax.py:17 is not Python"),
    ("recurses", (), r"faults.py:\d+: RecursionError: maximum recursion depth"),
    ("raises_what_is_no_exception", (), r"faults.py:\d+: BaseException: odd"),
    ("raises_what_has_no_text", (), r"faults.py:\d+: .*Mute: <exception str\(\) failed>"),
    ("faults_exit.x", (), r"faults_exit.py:17: SystemExit$"),
    ("faults.py:small", (), "There is no file faults.py"),
    (f"{'x' * 300}.py:f", (), "There is no file x"),
    ("{file}", (), r"has no experiment ''. Write .*faults.py:small or"),
    ("{file}:smal", (), "has no experiment 'smal'. Did you mean 'small'"),
]

FAULTS = """
@experiment
def needs(size): ...
@experiment
def fails(): return 1 / 0
@experiment
def misspells(): return Run.params(stpes=3)
@experiment
def calls_wrongly(): return small(dmi=3)
@experiment
def returns_nothing(): ...
@experiment
def recurses(): return recurses()
@experiment
def raises_what_is_no_exception(): raise BaseException("odd")
class Mute(Exception):
    def __str__(self): raise ValueError
@experiment
def raises_what_has_no_text(): raise Mute
"""


@pytest.mark.parametrize(
    ("form", "overrides", "message"), MISTAKES, ids=[f"{f} {' '.join(o)}" for f, o, _ in MISTAKES]
)
def test_a_mistake_is_one_clear_error(write, places, form, overrides, message, monkeypatch):
    file = write("faults", ONE + FAULTS)
    write("faults_import", "import nowhere\n@experiment\ndef x(): ...")
    write("faults_syntax", "def ( experiment")
    write("faults_exit", "raise SystemExit\n@experiment\ndef x(): ...")
    monkeypatch.delitem(sys.modules, "params.faults", raising=False)
    monkeypatch.setattr(sys.modules.get("params", sys), "__path__", [], raising=False)
    with pytest.raises(ParamError, match=message) as caught:
        registry.get(form.format(file=file), overrides, places)
    assert len(str(caught.value).splitlines()) == 1


def test_two_threads_get_experiments_at_once(write, places, capsys):
    """`ast` of Python 3.11 fails if two threads parse; a redirected stdout stays redirected."""
    body = ONE.replace("    return", '    print("x")\n    return')
    files = [write(f"threads_{i}", body) for i in range(6)]
    wanted = [f"threads_{i % 3}.small" if i % 2 else f"{files[i % 6]}:small" for i in range(24)]
    start = threading.Barrier(len(wanted))

    def get(form: str) -> int:
        start.wait()
        chosen = registry.get(form, ["Net=Wide", "net.dim=7"], places)
        return docs.describe(chosen.params.net.cls) and chosen.params.net.dim

    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        assert set(pool.map(get, wanted)) == {7}
    print("here")
    assert capsys.readouterr().out == "here\n"


def test_a_pipe_among_the_files_is_not_waited_for(write: Any, places: Roots) -> None:
    file = write("beside_a_pipe", ONE)
    os.mkfifo(file.with_name("pipe.py"))
    (unreadable,) = experiment_index.index(places).unreadable
    assert "pipe.py cannot be read: it is a named pipe, not a file" in unreadable


def test_a_file_nested_too_deep_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("@experiment\ndef f(): return " + "-" * 100_000 + "1")
    with pytest.raises(ParamError, match="is not Python: it is nested too deep"):
        registry.get(f"{tmp_path / 'deep.py'}:f")


def test_two_experiments_of_one_name_in_a_file_are_refused(write: Any, places: Roots) -> None:
    file = write("twins", ONE + ONE.replace("other", "third"))
    assert "small is defined twice" in experiment_index.index(places).unreadable[0]
    with pytest.raises(ParamError, match=r"small is defined twice: .*twins.py:\d+ and .*py:\d+"):
        registry.get(f"{file}:small", (), places)


def test_an_argument_set_like_a_field_is_told_apart(write: Any, places: Roots) -> None:
    write("told", ONE)
    with pytest.raises(ParamError, match=r"dim is an argument of small: write exp\.dim=3"):
        registry.get("told.small", ["dim=3"], places)


def test_what_an_experiment_prints_is_no_result(write, places, capsys):
    write("talks", ONE.replace("    return", '    print("hello")\n    return') + "\nprint('hi')\n")
    registry.get("talks.small", (), places)
    assert capsys.readouterr() == ("", "hi\nhello\n")


def test_a_file_of_experiments_is_parsed_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    text = "from lingo.config.registry import experiment\n\n@experiment\ndef {}():\n    pass\n"
    places = roots.find([tmp_path])
    parsed: list[Path] = []
    parse = roots.parse_source
    monkeypatch.setattr(roots, "parse_source", lambda *a: parsed.append(a[1]) or parse(*a))
    for name, num_parsed in (("first", 1), ("first", 1), ("second", 2)):
        file.write_text(text.format(name))
        assert f"mine.{name}" in experiment_index.index(places).entries
        assert parsed.count(file) == num_parsed
