"""On the command line, the address of a run stands for its local copy, which is brought down."""

import pytest

from lingo.cli import buckets
from lingo.cli.main import main
from lingo.storage.bucket import cache, copy, mirror
from tests.stand_ins.buckets import memory_bucket


@pytest.fixture(autouse=True)
def copies(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def address(tmp_path):
    """A run in a bucket: no weights, but files of checkpoints."""
    for path in ("config.json", "STATUS", *(f"checkpoints/step_{n:08d}/data" for n in (2, 4))):
        (tmp_path / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / path).write_text("{}" if path == "config.json" else "")
    address = f"memory://{memory_bucket()}/runs/tiny"
    copy.send(tmp_path / "run", address)
    return address


def test_only_flags_and_words_of_runs_are_replaced(copies):
    local = str(copies / "s3/b/run")
    assert buckets.local("eval", "run", "s3://b/run") == local
    assert buckets.local("diff", "run", ["s3://b/run", "runs/a"]) == [local, "runs/a"]
    assert buckets.local("runs", "directory", "s3://b/run") == local
    assert buckets.local("export", "output", "s3://b/run") == "s3://b/run"
    assert buckets.local("describe", "directory", "s3://b/run") == "s3://b/run"


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("show --run={}", []),
        ("eval --run={}", [4]),
        ("eval --run={} --step=2", [2, 4]),
        ("checkpoint list --run={}", [2, 4]),
    ],
)
def test_a_verb_brings_down_the_checkpoints_that_it_reads(address, command, steps, capsys):
    main([word.format(address) for word in command.split()])  # fails, as it is no real run
    names = mirror.table.local_checkpoints(cache.local_copy(address))
    assert names == [f"step_{step:08d}" for step in steps]


def test_runs_below_an_address_are_listed(address, capsys):
    assert main(["runs", address.rpartition("/")[0]]) == 0
    assert "tiny" in capsys.readouterr().out


def test_an_address_without_a_run_is_no_run(capsys):
    assert main(["show", f"--run=memory://{memory_bucket()}/run"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
