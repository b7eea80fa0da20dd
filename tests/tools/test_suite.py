"""Claims about the tiers: the list of slow tests, parts, tests of changed files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.suite import runs, selection, slow_list
from tools.suite.__main__ import main
from tools.suite.slow_list import MAX_SECONDS, SLOW_SECONDS, Time, update

LONG, SHORT = SLOW_SECONDS + 0.1, SLOW_SECONDS - 0.1

# ---- the list ------------------------------------------------------------------------------------


def after(times: list[Time], listed: dict[str, float] | None = None) -> list[str]:
    listed = listed or {}
    return sorted(update(listed, times, {time.test for time in times} | {*listed}))


def test_what_takes_long_is_slow_and_the_quickest_of_a_file_stays_quick() -> None:
    times = [Time(LONG + i / 10, f"a.py::{i}") for i in range(3)]
    times += [Time(LONG, "b.py::long"), Time(SHORT, "b.py::short")]
    assert after(times) == ["a.py::1", "a.py::2", "b.py::long"]


def test_a_file_without_a_test_short_enough_is_slow_as_a_whole() -> None:
    times = [Time(MAX_SECONDS + 1 + i, f"a.py::{i}") for i in range(2)]
    assert after(times) == ["a.py::0", "a.py::1"]


def test_what_is_listed_stays_slow_though_another_made_what_it_needs() -> None:
    shared = [Time(60.0, "a.py::first"), Time(0.0, "a.py::second")]
    listed = {"a.py::first": 60.0, "a.py::second": 0.0}
    assert after(shared, listed) == ["a.py::first", "a.py::second"]
    assert after([*shared, Time(LONG, "a.py::own")], listed) == ["a.py::first", "a.py::second"]


def test_what_did_not_run_keeps_its_seconds_and_what_is_gone_leaves() -> None:
    listed = {"a.py::kept": 7.0, "a.py::gone": 8.0, "b.py::again": 9.0}
    found = update(listed, [Time(4.0, "b.py::again")], ["a.py::kept", "b.py::again"])
    assert found == {"a.py::kept": 7.0, "b.py::again": 4.0}


def test_the_list_comes_back_with_blanks_in_names(tmp_path: Path) -> None:
    tests = {"a.py::test[two words]": 1.5, "a.py::test[one]": 12.0}
    slow_list.write(tests, tmp_path / "slow.txt")
    assert slow_list.read(tmp_path / "slow.txt") == tests


# ---- parts ---------------------------------------------------------------------------------------


def test_every_file_of_tests_is_in_one_part() -> None:
    parts = [selection.part_targets(part) for part in range(selection.NUM_PARTS)]
    targets = [target for part in parts for target in part]
    assert len({*targets}) == len(targets)
    pages = {target for target in targets if "::" in target}
    assert {*targets} - pages | {selection.DOCUMENTS.partition("::")[0]} == {
        *selection.test_files()
    }
    promised = selection.promised_tests()
    listed = {test for test in slow_list.read() if test.startswith(selection.DOCUMENTS)}
    assert pages == {test for test in listed if not selection.is_promised(test, promised)}


def test_parts_take_about_as_long_as_each_other() -> None:
    seconds = {f"{i}.py": float(i % 7 + 1) for i in range(100)}
    parts = selection.divide(seconds, 8)
    assert [file for part in parts for file in part] == [*seconds]
    sums = [sum(seconds[file] for file in part) for part in parts]
    assert max(sums) - min(sums) <= 2 * max(seconds.values())


def test_the_number_of_a_part_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["part", str(selection.NUM_PARTS)]) == 2
    assert "python -m tools.suite part" in capsys.readouterr().err
    assert selection.current_part() in range(selection.NUM_PARTS)


@pytest.mark.parametrize(
    ("file", "group"),
    [
        ("tests/lingo/runtimes/mesh/test_plan.py", "plans"),
        ("tests/lingo/runtimes/mesh/test_mesh.py", "meshes"),
        ("tests/lingo/runtimes/test_same.py::test_losses[data8]", "runtimes"),
        ("tests/lingo/cli/verbs/test_export.py", "exports"),
        ("tests/faults/test_promise_13_serving.py", "attacks"),
        ("tests/lingo/cli/verbs/test_train.py", "rest"),
    ],
)
def test_a_file_is_in_the_group_that_names_it_most_closely(file: str, group: str) -> None:
    assert runs.group_of(file) == group


# ---- changes -------------------------------------------------------------------------------------


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Slow tests in place of those that tests/slow.txt has."""
    tests: dict[str, float] = {}
    monkeypatch.setattr(slow_list, "read", lambda: tests)
    return tests


def test_the_tests_of_a_changed_file_come_first_then_its_importers(slow) -> None:
    slow |= {
        "tests/lingo/optim/test_adam.py::of_the_folder": 1.0,
        "tests/lingo/learner/test_step.py::of_an_importer": 1.0,
        "tests/lingo/optim/test_schedule.py::its_own": 1.0,
        "tests/lingo/data/test_index.py::of_another": 1.0,
    }
    found = selection.changed_tests(["lingo/optim/schedule.py"])
    assert [*found.tests] == [
        "tests/lingo/optim/test_schedule.py",
        "tests/lingo/learner/test_step.py",
        "tests/lingo/optim/test_adam.py",
    ]
    assert {*found.tests.values()} == {"lingo/optim/schedule.py"}


def test_what_takes_too_long_is_named_and_left_out(slow) -> None:
    slow |= {
        "tests/lingo/optim/test_adam.py::a": selection.CHANGED_SECONDS,
        "tests/lingo/optim/test_sgd.py::b": 1.0,
    }
    found = selection.changed_tests(["lingo/optim/adam.py", "lingo/optim/sgd.py"])
    assert [*found.tests] == ["tests/lingo/optim/test_adam.py"]
    assert [*found.rest] == ["tests/lingo/optim/test_sgd.py"]


def test_a_changed_page_runs_its_own_commands(slow) -> None:
    page = f"{selection.DOCUMENTS}[docs/data.md]"
    slow |= {page: 5.0, f"{selection.DOCUMENTS}[docs/own_data.md]": 5.0}
    assert [*selection.changed_tests(["docs/data.md"]).tests] == [page]


def test_a_program_that_tests_start_runs_their_file(slow) -> None:
    slow |= {
        "tests/lingo/runtimes/test_same.py::a": 5.0,
        "tests/lingo/runtimes/test_local.py::b": 1,
    }
    found = selection.changed_tests(["tests/lingo/runtimes/everywhere.py"])
    assert [*found.tests] == ["tests/lingo/runtimes/test_same.py"]


def test_files_changed_since_the_last_landing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setattr(selection, "PART", tmp_path / ".ci" / "part")
    monkeypatch.setenv("HOME", str(tmp_path))

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(file: str, text: str) -> None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
        git("add", "-A")
        git("commit", "-m", file)

    git("init")
    for i, file in enumerate(("first", "second", "third")):
        commit(file, "x")
        commit(".ci/part", str(i))
    assert selection.changed_files() == [".ci/part", "third"]  # HEAD is the landing that is tested
    commit("fourth", "x")
    (tmp_path / "not_committed").write_text("x")
    assert selection.changed_files() == ["not_committed", "fourth"]
