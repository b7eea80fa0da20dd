"""The cluster file: every key, and every mistake in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingo.config.options import declarations
from lingo.config.params import ParamError
from lingo.launch.cluster_file import ClusterFile, read
from tools.source_tree import ROOT


def test_an_empty_file_is_one_worker_without_limits(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    cluster = read(str(tmp_path / "c.toml"))
    assert (cluster.num_workers, cluster.seconds, cluster.environment) == (1, None, {})


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("00:10:00", 600), ("24:00:00", 86_400), ("2-01:00:05", 2 * 86_400 + 3605)],
)
def test_a_time_is_days_hours_minutes_seconds(tmp_path: Path, time: str, seconds: int) -> None:
    (tmp_path / "c.toml").write_text(f'time = "{time}"\nnodes = 2\nworkers_per_node = 3')
    cluster = read(str(tmp_path / "c.toml"))
    assert (cluster.seconds, cluster.num_workers) == (seconds, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("noeds = 2", "there is no key 'noeds'. Did you mean 'nodes'?\nKeys: nodes, workers_"),
        ("nodes = 0", "nodes is 0, not a number from 1 to 8192"),
        ("nodes = '2'", "nodes is '2', not a number from 1 to 8192"),
        ("nodes = true", "nodes is True, not a number"),
        ("device = 'npu'", "device is 'npu', not one of gpu, tpu"),
        ("account = ''", "account is '', not a line of text"),
        ('account = "a\\nb"', "account is 'a\\nb', not a line of text"),
        ("environment = 'A=1'", "environment is 'A=1', not a table: [environment]"),
        ("environment.'A B' = '1'", "environment.A B is not a variable"),
        ("environment.A = [1]", "environment.A is not a variable with a text or a number"),
        ("slurm.'a b' = '1'", "slurm.a b is not a long option of sbatch"),
        ("time = '10m'", "time is '10m', not [DAYS-]HOURS:MINUTES:SECONDS"),
        ("time = '00:05:00'", "time is 300 s, but must be longer than save_seconds, 300"),
        ("devices = 8\nworkers_per_node = 2", "a worker uses all devices of its node"),
        ("shared = 'runs'", "shared is 'runs', not an absolute path"),
        ("nodes = ", "c.toml is not TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ParamError) as error:
        read(str(tmp_path / "c.toml"))
    assert said in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"c.toml cannot be read: No such file"):
        read(str(tmp_path / "c.toml"))


def test_a_page_has_every_key() -> None:
    page = (ROOT / "docs/slurm.md").read_text()
    keys = [declared.field for declared in declarations(ClusterFile)]
    assert [key for key in keys if f"| `{key}` |" not in page and f"`[{key}]`" not in page] == []
