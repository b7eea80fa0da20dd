"""A small experiment that real processes train, and what is read from their directories."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_sound
from lingo.checkpoints.errors import DamagedCheckpoint
from tests.fork_server import OWN_PROCESS, Fork, must_import, serving

TIMEOUT = 300.0  # seconds; a fault that is not answered fails, it does not hang

EXPERIMENT = '''
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from lingo.data.document_input import TextInput
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.optim.adam import AdamW
from lingo.optim.compound_schedule import Warmup
from lingo.optim.schedule import Cosine
from lingo.contract import Checkpointing, Evaluation, Experiment, Summary
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


@experiment
def small():
    """Five texts, eight columns, one layer, dropout: two epochs are seven steps."""
    layer = TransformerLayer.params(dropout_rate=0.2, attention=Attention.params(num_heads=2))
    model = LanguageModel.params(dim=8, stack=Stack.params(layer=layer, num_layers=1))
    data = TextInput.params(batch_size=4, length=16, source=TextFiles.params(pattern="{data}"))
    return Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=data,
        eval_inputs={"same": data.copy().set(repeat=False)},
        optimizer=AdamW.params(
            learning_rate=0.01,
            schedule=Warmup.params(num_steps=2, then=Cosine.params(num_steps=20)),
        ),
        max_steps=12,
        checkpoint=Checkpointing.params(every_steps=3, keep=10),
        summary=Summary.params(every_steps=1, histograms=False),
        evaluate=Evaluation.params(every_steps=6),
    )
'''


def pytest_collection_modifyitems(config, items):
    """Tries a test of real processes a second time, and says so, where pytest-rerunfailures is."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.path.is_relative_to(pathlib.Path(__file__).parent):
                item.add_marker(pytest.mark.flaky(reruns=1))


class Runs:
    """A folder with texts, an experiment on them, and runs of it."""

    def __init__(self, folder, address):
        self.folder = folder
        self.address = address  # of a server of forks
        texts = folder / "texts"
        texts.mkdir()
        draw = np.random.RandomState(0)
        for i in range(5):
            (texts / f"{i}.txt").write_bytes(bytes(draw.randint(97, 100, 40 + 7 * i).tolist()))
        (folder / "small.py").write_text(EXPERIMENT.replace("{data}", f"{texts}/*.txt"))
        self.experiment = f"{folder}/small.py:small"

    def start(self, *arguments, inject="", prefix=(), own_imports=False, **environment):
        """Starts `lingo` in the folder, run by a command such as strace, with LINGO_INJECT.

        The process is a fork of one that has imported TensorFlow unless it has `own_imports`, a
        prefix, or starts others itself.
        """
        left_out = ("LINGO_", "PYTHONDONTWRITEBYTECODE")  # else each process compiles all of lingo
        known = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache"), "LINGO_INJECT": inject}
        variables = known | cache | environment
        if not (own_imports or prefix or arguments[0] in OWN_PROCESS or must_import(variables)):
            return Fork(self.address, ("lingo", *arguments), str(self.folder), variables)
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "lingo.cli.main", *arguments],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_default_signals,
        )

    def lingo(self, *arguments, **options):
        """Runs `lingo` to its end; `options` as `start` takes them."""
        return self.finish(self.start(*arguments, **options))

    def train(self, name, *flags, **options):
        """Trains the experiment in a directory of the folder."""
        return self.lingo(*self.training(name, *flags), **options)

    def training(self, name, *flags):
        """Returns the arguments that train the experiment in a directory of the folder."""
        return ("train", f"--exp={self.experiment}", f"--logdir={self.folder / name}", *flags)

    def reach(self, name, step, process):
        """Waits until the process that trains a run has reported a step."""
        file = self.folder / name / "metrics.jsonl"
        until(lambda: file.exists() and f'"step": {step},' in file.read_text(), process)

    def reach_save(self, name, step, process):
        """Waits until the process that trains a run has committed a checkpoint, and said so."""
        until(lambda: self.has_status(name, f"running at step {step}"), process)

    def has_status(self, name, text):
        """Returns whether a run's STATUS says something."""
        return (self.folder / name / "STATUS").exists() and self.status(name) == text

    def reach_sleep(self, process):
        """Waits until the main thread of a process sleeps, as LINGO_INJECT makes it.

        Libraries sleep too while they start, for much less than a second.
        """
        place = pathlib.Path(f"/proc/{process.pid}/wchan")
        since = time.monotonic()

        def sleeps():
            nonlocal since
            if "nanosleep" not in (place.read_text() if place.exists() else ""):
                since = time.monotonic()
            return time.monotonic() - since > 0.5

        until(sleeps, process)

    def reach_entry(self, folder, process):
        """Waits until a process has made something in an empty folder."""
        until(lambda: any(folder.iterdir()), process)

    def finish(self, process):
        """Waits for the end of a process, and kills it if it hangs."""
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"still there after {TIMEOUT} seconds: {process.args}\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def checkpoints(self, name):
        """Returns the steps of a run's committed checkpoints."""
        return store.steps(self.folder / name / "checkpoints")

    def is_sound(self, name, step):
        """Returns whether every byte of a checkpoint is what was written."""
        try:
            open_sound(store.step_path(self.folder / name / "checkpoints", step))
        except DamagedCheckpoint:
            return False
        return True

    def digests(self, name):
        """Returns the digest of every tensor in a run's latest checkpoint."""
        found = store.latest(self.folder / name / "checkpoints")
        assert found is not None, f"{name} has no checkpoint"
        return dict(found.digests())

    def losses(self, name):
        """Returns the loss of every reported step of a run."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        rows = map(json.loads, lines)
        return {row["step"]: row["loss/total"] for row in rows if "loss/total" in row}

    def assert_same(self, reference, *, losses=True):
        """Checks that `run` has ended as `whole`, which was not disturbed, and left nothing."""
        assert self.digests("run") == reference.digests("whole")
        assert not losses or self.losses("run") == reference.losses("whole")
        assert self.leftovers("run") == []

    def assert_resumes(self, reference, *flags, losses=True):
        """Trains `run` to its end, and checks that it is the same as `whole`."""
        done = self.train("run", *flags)
        assert done.returncode == 0, done.stderr
        self.assert_same(reference, losses=losses)
        return done

    def last_step(self, name):
        """Returns the last step that a run has saved, from which it would go on; 0 if none."""
        return max(self.checkpoints(name), default=0)

    def status(self, name):
        """Returns what STATUS says."""
        return (self.folder / name / "STATUS").read_text().strip()

    def leftovers(self, name):
        """Returns the names of temporary files and directories anywhere in a run."""
        found = (self.folder / name).rglob("*")
        return sorted(p.name for p in found if p.name.startswith((".tmp-", ".trash-")))


class Mounts:
    """File systems that a test mounts, and that are gone after it."""

    def __init__(self):
        self._places = []

    def tmpfs(self, place, options):
        """Mounts an empty file system in memory, with options such as size=20m."""
        place.mkdir(exist_ok=True)
        self._mount(place, "-t", "tmpfs", "-o", options, "tmpfs")

    def read_only(self, place):
        """Makes a directory, or a file, read-only for whoever opens something in it from now on."""
        self._mount(place, "--bind", str(place))
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)

    def change(self, place, options):
        """Changes the options of what is mounted at a place."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)

    def unmount(self, place):
        """Ends what was mounted last at a place."""
        self._places.remove(place)
        subprocess.run(["umount", "--lazy", str(place)], check=True)

    def close(self):
        """Ends what is left."""
        for place in reversed(self._places.copy()):
            self.unmount(place)

    def _mount(self, place, *arguments):
        subprocess.run(["mount", *arguments, str(place)], check=True, capture_output=True)
        self._places.append(place)


def _default_signals():
    """Heeds what whoever runs the tests ignores, as `nohup` and `&` do."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def until(condition, process):
    """Waits for something that a process brings about, and fails if it ends without it."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        if process.poll() is not None and not condition():
            pytest.fail(f"ended with {process.returncode}: {process.communicate()}")
        assert time.monotonic() < end, f"nothing after {TIMEOUT} seconds: {process.args}"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def address():
    """Where forks of a process are to be had that has imported TensorFlow."""
    with serving(os.environ) as address:
        yield address


@pytest.fixture
def runs(tmp_path, address):
    """A folder with an experiment and no run."""
    return Runs(tmp_path, address)


@pytest.fixture(scope="session")
def reference(tmp_path_factory, address):
    """The same, with an uninterrupted run `whole`; tests only read it."""
    found = Runs(tmp_path_factory.mktemp("reference"), address)
    done = found.train("whole", "--audit")
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture
def mounts(tmp_path):
    """Mounts file systems; the test is skipped where that is not allowed."""
    found = Mounts()
    try:
        found.tmpfs(tmp_path / "probe", "size=1m")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root and mount: {error}")
    with contextlib.closing(found):
        yield found


@pytest.fixture
def again(runs, reference):
    """Trains the reference's experiment, with more flags, in a copy `run` of its directory."""
    shutil.copytree(reference.folder / "whole", runs.folder / "run")
    runs.experiment = reference.experiment
    return lambda *flags: runs.train("run", *flags)
