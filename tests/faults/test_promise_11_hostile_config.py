"""Promise 11: a configuration file can import and run nothing, and costs little to refuse."""

import contextlib
import copy
import io
import json
import pathlib

import pytest

from lingo.cli.main import main

LIMITED = ("bash", "-c", 'ulimit -v 1000000 -t 20; exec "$@"', "limited")
"""Runs a command in less than a gigabyte and twenty seconds, or kills it.

On a slow processor the longest takes five. Without bounds, what the files ask for would take hours.
"""

EVIL = """
import pathlib
pathlib.Path("{folder}/evil_has_run").touch()
class Evil(dict): pass
def run(*args): pass
"""

NAMES = [
    "evil:Evil",
    "params.evil:Evil",
    "subprocess:getoutput",
    "lingo.config.params:Params.__init__",
    "lingo.study.trial:Trial",
]

VERBS = [
    ["why", "max_steps"],
    ["diff", "--exp=lm.source.tiny"],
    ["train", "--logdir=other"],
    ["eval"],
    ["decode", "--prompt=x"],
    ["predict", "--input=x", "--output=x.npz"],
    ["sweep", "--logdir=other", "--sweep=max_steps=1,2"],
]


@pytest.fixture
def attack(runs):
    """A folder full of traps, and a function that runs a verb on a run with a given config.json."""
    for place in ("", "params", "tasks", "on_the_path"):
        folder = runs.folder / place
        folder.mkdir(exist_ok=True)
        (folder / "evil.py").write_text(EVIL.format(folder=runs.folder))
    file = runs.folder / "run" / "config.json"
    file.parent.mkdir()

    def attack(content, *verb):
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        before = sorted(runs.folder.rglob("*"))
        path = f"{runs.folder / 'on_the_path'}:{pathlib.Path(__file__).parents[2]}"
        done = runs.lingo(*verb, "--run=run", prefix=LIMITED, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert len(done.stderr.splitlines()) <= 3, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.isprintable() or done.stderr.replace("\n", "").isprintable()
        assert sorted(runs.folder.rglob("*")) == before, "something ran, or was created"
        return done.stderr

    return attack


@pytest.fixture(scope="module")
def sound():
    """A configuration as lingo writes it."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["show", "--exp=lm.source.tiny", "--format=json"]) == 0
    return json.loads(out.getvalue())


def naming(sound, name):
    """Returns a configuration in which a layer is of some class."""
    config = copy.deepcopy(sound)
    config["params"]["task"]["model"]["stack"]["layer"] = {"@": name, "x": 1}
    config["files"] = {"evil.py": {"path": "/tmp/evil.py", "sha256": "", "module": "evil"}}
    return config


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_verb_imports_what_a_configuration_names(attack, sound, verb):
    said = attack(naming(sound, "evil:Evil"), *verb)
    assert "'evil:Evil' is in no trusted place" in said


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:40])
def test_only_configurable_classes_of_trusted_places_can_be_named(attack, sound, name):
    assert "run/config.json: " in attack(naming(sound, name), "show")


BOMBS = {
    "deep nesting": "[" * 100_000,
    "expansion": '{"format": 1, "params": ['
    + '{"@":"lingo.layers.stacks.stack:Stack"},' * 400_000
    + "1]}",
    "two hundred megabytes": " " * 200_000_000,
    "colours": '{"format": 1, "\\u001b[31m\\u0000": 1}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_size_and_depth_are_bounded(attack, name):
    attack(BOMBS[name], "show")


@pytest.mark.parametrize("kind", ["stacks.stack:Stack", "stacks.repeat:Repeat"])
def test_what_a_small_file_unfolds_to_is_bounded(attack, sound, kind):
    config = copy.deepcopy(sound)
    stack = config["params"]["task"]["model"]["stack"]
    stack |= {"@": f"lingo.layers.{kind}", "num_layers": 10**9}
    assert "more than" in attack(config, "show", "--weights")


@pytest.mark.parametrize("name", ["..", "../../etc", "x" * 300])
def test_names_cannot_leave_the_run_directory(attack, sound, name):
    config = copy.deepcopy(sound)
    (held, *_) = config["params"]["eval_inputs"].values()
    config["params"]["eval_inputs"] = {name: held}
    assert "becomes part of a path" in attack(config, "train")


def test_links_in_the_run_directory_lead_nothing_out_of_it(runs):
    for name in ("run", "outside"):
        (runs.folder / name).mkdir()
    precious = runs.folder / "outside/precious"
    precious.write_text('{"step": 7}\n')
    for name, target in {"metrics.jsonl": precious, "checkpoints": precious.parent}.items():
        (runs.folder / "run" / name).symlink_to(target)
        done = runs.train("run")
        assert done.returncode == 10
        assert f"cannot write {runs.folder}/run/{name}: it is a link" in done.stderr
        (runs.folder / "run" / name).unlink()
    assert [path.name for path in precious.parent.iterdir()] == ["precious"]
    assert precious.read_text() == '{"step": 7}\n'
