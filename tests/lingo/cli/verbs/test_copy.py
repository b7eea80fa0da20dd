"""`lingo copy` copies a run to a bucket and back, and refuses what it would not do."""

import pytest

from lingo.cli.main import main
from lingo.storage.bucket import cache
from tests.stand_ins.buckets import memory_bucket


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for path in ("config.json", "STATUS", "checkpoints/step_00000002/data"):
        (tmp_path / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / path).write_text(path)
    return tmp_path


@pytest.fixture
def address():
    return f"memory://{memory_bucket()}/run"


def test_a_run_goes_there_and_back(folder, address, capsys):
    assert main(["copy", "--from=run", f"--to={address}"]) == 0
    assert main(["copy", f"--from={address}", "--to=back"]) == 0
    assert capsys.readouterr().out == f"copied to {address}\ncopied to back\n"
    names = ("config.json", "STATUS", "checkpoints/step_00000002/data")
    assert all((folder / "back" / name).read_text() == name for name in names)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--from=run", "no to given: lingo copy --from=RUN --to=PLACE"),
        ("--to=run", "no from given"),
        ("--from=run --to=other", "are both directories: cp -a copies them"),
        ("--from=memory://b/x --to=memory://b/y", "are both buckets"),
        ("--from=memory://b/absent --to=other", "memory://b/absent holds no run"),
        ("--from=elsewhere --to=memory://b/x", "elsewhere is not a run directory"),
        ("--from=run --to=hdfs://b/x", "'hdfs://b/x' is an address"),
    ],
)
def test_mistakes_are_named_and_make_nothing(folder, flags, said, capsys):
    before = sorted(path.name for path in folder.iterdir())
    assert main(["copy", *flags.split()]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before
