"""A day on accelerators: its lines, its report, what broke, and that its items can be built."""

import json
from pathlib import Path

import pytest

import lingo
from tools.day import __main__ as program
from tools.day.day import read_lines, run_day
from tools.day.items import GPU, ITEMS, TPU, Item, Same
from tools.source_tree import ROOT

BROKEN = Item("broken", "does it stop?", (("-c", "raise ValueError('it broke')"),))
ROWS = "import json, pathlib; [(p := pathlib.Path('{dir}', n)).mkdir() or " + (
    "(p / 'metrics.jsonl').write_text(json.dumps({'step': 1, 'loss/total': x}) + '\\n') and "
    "(p / 'environment.json').write_text('{}') for n, x in (('a', 1.0), ('b', 1.1))]"
)


def day(items: list[Item], out: Path, minutes: float = 30.0) -> bool:
    return run_day("gpu", items, out, minutes=minutes, has_virtual_devices=True)


def test_a_broken_item_leaves_its_error_and_the_next_one_runs_once(tmp_path):
    count = "import pathlib; open(pathlib.Path('{dir}').parent / 'count', 'a').write('x')"
    items = [BROKEN, Item("next", "does it run?", (("-c", count + "; print('it ran')"),))]
    assert day(items, tmp_path)
    with (tmp_path / "lines.jsonl").open("a") as file:
        file.write('{"item": "cut sh')
    assert day(items, tmp_path)
    assert (tmp_path / "runs" / "count").read_text() == "x"
    lines = read_lines(tmp_path / "lines.jsonl")
    found = {name: (line["state"], line["answer"]) for name, line in lines.items()}
    assert found == {"broken": ("broken", "ValueError: it broke"), "next": ("done", "it ran")}
    report = (tmp_path / "report.md").read_text()
    assert "| broken | does it stop? | ValueError: it broke |" in report
    assert "Not run" not in report


def test_an_item_that_does_not_fit_is_listed_as_not_run(tmp_path):
    assert not day([BROKEN], tmp_path, minutes=1.0)
    assert "Not run:\n\n- broken: does it stop?" in (tmp_path / "report.md").read_text()


def test_an_item_ends_at_its_limit(tmp_path):
    endless = Item("endless", "does it end?", (("-c", "while True: pass"),), minutes=0.02)
    assert day([endless], tmp_path)
    answer = read_lines(tmp_path / "lines.jsonl")["endless"]["answer"]
    assert answer.startswith("not done within its limit")


@pytest.mark.parametrize(("tolerance", "state"), [(0.05, "broken"), (0.2, "done")])
def test_losses_are_compared_with_a_tolerance(tmp_path, tolerance, state):
    item = Item("same", "are they?", (("-c", ROWS),), same=Same("a", "b", tolerance))
    assert day([item], tmp_path)
    line = read_lines(tmp_path / "lines.jsonl")["same"]
    assert line["state"] == state
    assert line["answer"] == f"losses differ by up to 0.091, wanted {tolerance:g}"


@pytest.mark.parametrize("kind", ITEMS)
def test_every_item_has_a_name_and_experiments_that_build(kind):
    assert len({item.name for item in ITEMS[kind]}) == len(ITEMS[kind])
    for command in {c for item in ITEMS[kind] for c in item.commands if "train" in c}:
        filled = [one.replace("{cores}", "4") for one in command]
        settings = [x.removeprefix("--set=") for x in filled if x.startswith("--set=")]
        for name in [x.removeprefix("--exp=") for x in filled if x.startswith("--exp=")]:
            lingo.get(name, *settings).build()


def test_the_page_names_what_is_unknown_on_a_tpu():
    page = (ROOT / "docs" / "devices.md").read_text()
    assert page.endswith("".join(f"- {item.name}: {item.question}\n" for item in TPU))


def test_the_small_day_of_gpus_answers_all_its_items(tmp_path):
    assert program.main(["gpu", "--small", f"--out={tmp_path}"]) == 0
    lines = read_lines(tmp_path / "lines.jsonl")
    assert list(lines) == [item.name for item in GPU if item.in_small]
    assert {line["state"] for line in lines.values()} == {"done"}, json.dumps(lines, indent=1)
    assert lines["replicas"]["runs"]["run"]["unit"] == "tokens"
    assert "tokens/s" in (tmp_path / "report.md").read_text()


def test_the_small_day_of_tpus_has_its_reference_and_no_tpu(tmp_path):
    assert program.main(["tpu", "--small", f"--out={tmp_path}"]) == 0
    lines = read_lines(tmp_path / "lines.jsonl")
    assert list(lines) == ["connect", "processor", "mesh"]
    assert lines["processor"]["state"] == "done"
    for name in ("connect", "mesh"):
        assert lines[name]["state"] == "broken"
        assert "no TPU of this machine answers" in lines[name]["answer"]
    assert "processor" in lines["mesh"]["runs"]
