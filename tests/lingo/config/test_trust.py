"""Claims about the classes that a configuration file may name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lingo.config import registry, serial, text
from lingo.config.node.tree import same
from lingo.config.params import ParamError
from lingo.config.roots import roots
from lingo.config.roots.roots import Roots
from lingo.config.serial import Origin
from lingo.config.trust import Finder


def write_experiment(directory: Path, name: str) -> Path:
    """Writes an experiment of two classes of its own; the name of the file must be its own, too."""
    file = directory / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "from __future__ import annotations\n"
        "from lingo.config.params import Configurable\n"
        "from lingo.config.registry import experiment\n"
        "class Leaf(Configurable, interface=True):\n    size: int = 1  # of it\n"
        "class Tree(Configurable):\n    leaf: Leaf = Leaf  # on it\n"
        "class Plain(object):\n    pass\n"
        "@experiment\n"
        "def oak(size: int = 2):\n    return Tree.params(leaf=Leaf.params(size=size))\n"
    )
    return file


def save(form: str, places: Roots | None = None) -> str:
    chosen = registry.get(form, (), places)
    return serial.dump(chosen.params, chosen.origin, "", places)


def test_classes_of_lingo_and_of_trusted_directories_need_no_trust(tmp_path: Path) -> None:
    write_experiment(tmp_path, "serial_trusted")
    places = roots.find([tmp_path])
    written = save("serial_trusted.oak(size=7)", places)
    assert json.loads(written)["params"]["leaf"]["@"] == "params.serial_trusted:Leaf"
    assert serial.load(written, roots=places).params.leaf.size == 7
    with pytest.raises(ParamError, match=r"in no trusted place.*--params_dir"):
        serial.load(written)


def test_an_own_file_needs_trust_and_a_change_is_noticed(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "serial_own")
    written = save(f"{file}:oak")
    with pytest.raises(ParamError, match=f"To run it: --trust={file}"):
        serial.load(written)
    assert serial.load(written, trust=[file]).changed_files == ()
    file.write_text(file.read_text() + "# changed\n")
    assert serial.load(written, trust=[file]).changed_files == (str(file),)
    file.unlink()
    with pytest.raises(ParamError, match="cannot be read: No such file"):
        serial.load(written, trust=[file])


def test_an_own_file_is_reloaded_by_another_process(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "serial_other")
    chosen = registry.get(f"{file}:oak")
    lines = text.resolve(chosen.params)
    config = tmp_path / "config.json"
    config.write_text(serial.dump(chosen.params, chosen.origin, text.digest(lines)))
    code = (
        "import sys; from lingo.config import text; from lingo.config import serial\n"
        "saved = serial.read(sys.argv[1], trust=[sys.argv[2]])\n"
        "print(text.render(text.resolve(saved.params)), end='')\n"
        "assert text.digest(text.resolve(saved.params)) == saved.digest"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, config, file], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (text.render(lines), "")


SAVE = """
import lingo
from pathlib import Path
from lingo.config import serial
from {module} import Tree
Path("config.json").write_text(serial.dump(Tree.params(), serial.Origin(), ""))
"""
LOAD = """
import sys
from lingo.config.roots import roots
from lingo.config import serial
print(type(serial.read(sys.argv[1], trust=[sys.argv[2]]).params.build()).__name__)
"""


@pytest.mark.parametrize("name", ["serial_package/layers/tree.py", "params/tree.py"])
@pytest.mark.parametrize("here", [True, False])
def test_a_file_of_a_package_is_reloaded_with_what_it_imports(name, here, tmp_path):
    """By a process that starts in the directory of the package, or in another one."""
    project, other = tmp_path / "project", tmp_path / "other"
    other.mkdir()
    file = write_experiment(project / Path(name).parent, "tree")
    module = name.removesuffix(".py").replace("/", ".")
    (file.parent / "size.py").write_text("SIZE = 3\n")
    helper = module.rpartition(".")[0]
    file.write_text(f"{file.read_text()}from {helper}.size import SIZE\n")
    subprocess.run([sys.executable, "-c", SAVE.format(module=module)], cwd=project, check=True)
    config = project / "config.json"
    assert json.loads(config.read_text())["files"]["tree.py"]["module"] == module
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, config, file],
        cwd=project if here else other,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("Tree\n", "")


def test_the_working_directory_is_not_trusted(tmp_path, monkeypatch):
    file = write_experiment(tmp_path / "params", "serial_local")
    monkeypatch.chdir(tmp_path)
    written = save("serial_local.oak")
    with pytest.raises(ParamError, match=f"--trust={file}"):
        serial.load(written)
    hostile = written.replace("serial_local.py:", "params.serial_local:")
    with pytest.raises(ParamError, match="in no trusted place"):
        serial.load(hostile)


def test_a_class_that_could_not_be_found_again_is_refused(toys: Any) -> None:
    class Inner(toys.Layer):
        pass

    for cls in (Inner, type("Inner", (toys.Layer,), {"__module__": "nowhere"})):
        with pytest.raises(ParamError, match="Inner cannot be saved: define the class at the top"):
            serial.dump(cls.params(), Origin(), "")


def test_an_own_file_that_moved_is_found_by_its_name(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "serial_moved")
    written = save(f"{file}:oak")
    (tmp_path / "elsewhere").mkdir()
    moved = file.rename(tmp_path / "elsewhere" / file.name)
    with pytest.raises(ParamError, match=f"--trust={file} It is no longer there: name"):
        serial.load(written)
    again = serial.load(written, trust=[moved])
    assert (again.params.leaf.size, again.changed_files) == (2, ())


@pytest.mark.parametrize(
    ("name", "cls"), [("a:b", "Tree"), ("l" + "o" * 200 + "ng", "Tree"), ("accent", "Chêne")]
)
def test_a_name_that_could_not_be_read_is_not_written(name: str, cls: str, tmp_path: Path) -> None:
    file = write_experiment(tmp_path, name)
    file.write_text(file.read_text().replace("Tree", cls))
    with pytest.raises(ParamError, match="cannot be saved: give the class and its file shorter"):
        save(f"{file}:oak")


def test_a_file_with_a_quote_in_its_name_is_written(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, 'a"b')
    written = save(f"{file}:oak")
    assert same(serial.load(written, trust=[file]).params, registry.get(f"{file}:oak").params)


def test_a_class_of_an_experiment_file_without_fields_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "serial_job.py").write_text(
        "import threading\n"
        "class Job(threading.Thread):\n    pass\n"
        "class Ring(Round):\n    pass\n"
        "class Round(Ring):\n    pass\n"
        "raise SystemExit\n"
    )
    finder = Finder({}, (), roots.find([tmp_path]))
    for name in ("Job", "Ring"):
        with pytest.raises(ParamError, match=f"has no class or function {name} to configure"):
            finder.find([f"params.serial_job:{name}"])


def test_a_class_that_was_renamed_is_looked_for_in_the_run_s_copies(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "serial_renamed")
    (tmp_path / "run").mkdir()
    config = tmp_path / "run/config.json"
    config.write_text(save(f"{file}:oak"))
    file.write_text(file.read_text().replace("Leaf", "Blade"))
    with pytest.raises(ParamError) as caught:
        serial.read(config, trust=[file])
    assert str(caught.value) == f"{config}: {file} has no class or function Leaf to configure"
    (tmp_path / "run/source").mkdir()
    kept = rf"\. {tmp_path}/run/source has the files as they were"
    with pytest.raises(ParamError, match=f"Leaf to configure{kept}"):
        serial.read(config, trust=[file])
    file.unlink()
    with pytest.raises(ParamError, match=f"It is no longer there: .*{kept}"):
        serial.read(config)
