"""Promise 10: a mistake on a command line is named with exit code 2, and nothing is created."""

import os
import time

import pytest

from lingo.cli.main import main

TINY = "--exp=lm.source.tiny"
RUN = ["train", TINY, "--logdir=run"]
LONG = "x" * 100_000

TABLE = [
    # a value that is no value of its field
    ([*RUN, "--set=optimizer.learning_rate=nan"], "A number must be finite"),
    ([*RUN, "--set=optimizer.learning_rate=1e39"], "not finite in float32"),
    ([*RUN, f"--set=optimizer.learning_rate={'1' * 100_000}x"], "takes float"),
    ([*RUN, "--set=optimizer.learning_rate=-1"], "is negative"),
    ([*RUN, "--set=max_steps=1e3"], "Write 1000"),
    ([*RUN, "--set=max_steps=\uff13"], "takes int"),
    ([*RUN, "--set=max_steps=0"], "max_steps=0 is not positive"),
    ([*RUN, "--set=max_steps=99999999999"], "max_steps=99999999999 is more than 2147483647"),
    ([*RUN, "--set=Stack.num_layers=1000000000"], "more than 50,000 parts"),
    ([*RUN, "--set=train_input.batch_size=1000000000000"], "of memory: set a smaller batch_size"),
    # a size that does not fit
    ([*RUN, "--set=FeedForward.dim=64"], "dim=64, but TransformerLayer, which builds it, has"),
    ([*RUN, "--set=task.model.vocab_size=100"], "has vocab_size=259: leave it out"),
    ([*RUN, "--set=Attention.mask=Bidirectional"], "shows later positions"),
    ([*RUN, "--set=FeedForward=MoE(expert=_, num_experts=2, router=ExpertChoiceRouter)"], "later"),
    # an override that is none
    ([*RUN, "--set=max_steps"], "sets nothing"),
    ([*RUN, "--set="], "--set has no value"),
    ([*RUN, "--set"], "Missing value"),
    ([*RUN, f"--set={LONG}=3"], "has no field"),
    ([*RUN, "--set=" + "Stack=Remat(layer=" * 70 + "_" + ")" * 70], "more than 64 deep"),
    ([*RUN, "--set=\uff4dax_steps=3"], "is not a path"),
    ([*RUN, "--set=Stack=os:system"], "no class 'system' to configure"),
    # a directory that could be none
    (["train", TINY, f"--logdir={'x' * 300}"], "a name in it at most 255"),
    (["train", TINY, "--logdir=\udcff"], "it is not UTF-8"),
    # a flag that is none, or no value of it
    ([*RUN, f"--{LONG}"], "there is no flag"),
    ([*RUN, "--logdri=run"], "Did you mean --logdir?"),
    ([*RUN, "\N{EM DASH}set=max_steps=3"], "Did you mean --set=max_steps=3?"),
    ([*RUN, "max_steps=3"], "Did you mean --set=max_steps=3?"),
    ([*RUN, "--devices=two"], "--devices=two"),
    ([*RUN, "--devices=0"], "range [1, 4096]"),
    ([*RUN, "--dry_run=perhaps"], "write true or false"),
    ([*RUN, "--profile_steps=5"], "write FROM:TO"),
    ([*RUN, "--hang_timeout=-1"], "--hang_timeout=-1"),
    ([*RUN, "--logdir=run"], "already defined"),
    ([*RUN, "--undefok=zzz", "--zzz"], "would hide a mistake"),
    (["decode", "--run=run", "--prompt=x", "--temperature=nan"], "A number must be finite"),
    # an experiment that is none
    (["train", f"--exp={LONG}", "--logdir=run"], "There is no experiment"),
    (["train", "--exp=tiny\x1b[31m", "--logdir=run"], r"'tiny\x1b[31m' is not an experiment"),
    (["train", "--exp=tiny(model_dim=1,model_dim=2)", "--logdir=run"], "'model_dim' twice"),
    # a verb that is none
    ([LONG], "there is no verb"),
    (["\0"], r"there is no verb '\x00'"),
]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """Works in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"), TABLE, ids=[ascii(" ".join(a))[:60] for a, _ in TABLE]
)
def test_a_mistake_is_named_at_once_and_creates_nothing(arguments, said, empty, capsys):
    start = time.process_time()
    assert main(arguments) == 2
    assert time.process_time() - start < 15, "seconds of one processor"
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert 1 <= len(err.splitlines()) <= 3
    assert max(map(len, err.splitlines())) < 1100
    assert err.replace("\n", "").isprintable()
    assert os.listdir(empty) == []


FLAG_FILES = {
    "missing": (None, "cannot be read: No such file"),
    "cut short": (b"--exp=lm.source.tiny\n--logdir=run\n--set=max_st", "sets nothing"),
    "random bytes": (bytes(range(128, 256)), "is not text"),
    "zeroes": (bytes(4096), "is not text"),
    "one that leads to itself": (b"--flagfile=flags.txt\n", "includes itself"),
    "words": (b"--exp=lm.source.tiny\nlogdir=run\n", ":2: 'logdir=run' is not a flag"),
    "a flag twice": (b"--exp=lm.source.tiny\n--exp=lm.source.tiny\n", "already defined"),
    "a shell's escapes": (b"--logdir=run --exp=a\\\n", "no experiment given"),
}


@pytest.mark.parametrize("name", FLAG_FILES)
def test_a_damaged_flag_file_is_refused(name, empty, capsys):
    content, said = FLAG_FILES[name]
    if content is not None:
        (empty / "flags.txt").write_bytes(content)
    before = os.listdir(empty)
    assert main(["train", "--flagfile=flags.txt"]) == 2
    assert said in capsys.readouterr().err
    assert os.listdir(empty) == before


def files_in(folder):
    """Returns what is in a folder, but what Python keeps of modules that it has imported."""
    return sorted(file for file in folder.iterdir() if file.name != "__pycache__")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set=optimizer.learning_rate=nan"], "A number must be finite"),
        (["--set=optimzier.learning_rate=1"], "Did you mean 'optimizer'?"),
        (["--max_steps=3"], "there is no flag --max_steps"),
    ],
)
def test_the_program_ends_with_the_code(runs, arguments, said):
    before = files_in(runs.folder)
    done = runs.train("run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert files_in(runs.folder) == before
