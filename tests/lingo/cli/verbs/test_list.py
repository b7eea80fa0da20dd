"""Listing experiments."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable

LOCAL = '@experiment\ndef {name}(width: int = 3):\n    """{doc}"""\n'


def place(folder: pathlib.Path, name: str, doc: str = "Local.") -> pathlib.Path:
    (folder / "params").mkdir(exist_ok=True)
    file = folder / "params" / "own.py"
    file.write_text(LOCAL.format(name=name, doc=doc))
    return file


def test_every_experiment_has_a_line_with_its_description(lingo: Callable) -> None:
    done = lingo("list")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert any(line.startswith("  lm.gpipe.transformer_l ") for line in lines)
    (narrow,) = [line for line in lines if line.startswith("  toys.narrow")]
    assert narrow.split(maxsplit=1) == ["toys.narrow", "Two layers of width 3."]
    assert lines[lines.index(narrow) - 2] == "toys:"
    first, second = lingo("list", "toys").out.splitlines()
    assert first.index("Four layers") == second.index("Two layers")
    assert second.startswith("toys.narrow(num_layers: int = 2)  ")


def test_what_trains_here_comes_first_the_fastest_first(
    lingo: Callable, tmp_path: pathlib.Path
) -> None:
    file = place(tmp_path, "slow", doc="Slow.")
    code = file.read_text().replace("@experiment", "@experiment(minutes=30)")
    file.write_text(code + code.replace("=30", "=7").replace("slow", "fast"))
    lines = lingo("list").out.splitlines()
    assert lines[0] == "These train on a laptop; minutes as measured on a busy machine:"
    small = [line.split() for line in lines[1 : lines.index("")]]
    shown = [words[:2] for words in small if words[0].isdigit() and "." in words[1]]
    assert [minutes for minutes, _ in shown] == sorted((m for m, _ in shown), key=int)
    assert {"own.slow": "30", "own.fast": "7"}.items() <= {name: m for m, name in shown}.items()
    assert "own.slow" not in "\n".join(lines[lines.index("") :])


def test_the_names_alone_are_lines_for_programs(lingo: Callable) -> None:
    assert lingo("list", "toys", "--names").out.splitlines() == ["toys.deep", "toys.narrow"]


def test_lines_have_at_most_100_columns(lingo: Callable, tmp_path: pathlib.Path) -> None:
    file = place(tmp_path, "mine", doc="Of many words, " * 20)
    file.write_text(file.read_text().replace("int = 3", f"str = {'x' * 200!r}"))
    lines = lingo("list").out.splitlines()
    assert max(map(len, lines)) <= 100
    words = " ".join(lingo("list", "own.mine").out.split())
    assert words.endswith(" ".join(["Of many words,"] * 20))


def test_neither_fiddle_nor_rich_is_imported(toys: pathlib.Path) -> None:
    code = (
        "import sys; from lingo.cli.main import main; main(['list']);"
        " sys.exit(bool({'fiddle', 'rich', 'numpy', 'tensorflow'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_word_selects_by_name_and_description(lingo: Callable) -> None:
    assert [line.split("(")[0] for line in lingo("list", "FOUR").out.splitlines()] == ["toys.deep"]
    assert len(lingo("list", "toys").out.splitlines()) == 2


def test_a_word_that_selects_nothing_is_a_mistake(lingo: Callable) -> None:
    done = lingo("list", "toys.nrrow")
    assert (done.code, done.out) == (2, "")
    assert "Did you mean 'toys.narrow'?" in done.err


def test_a_directory_given_by_flag_is_listed(lingo, toys, monkeypatch):
    monkeypatch.delenv("LINGO_PARAMS")
    assert "toys." not in lingo("list").out
    assert "toys.deep " in lingo("list", f"--params_dir={toys}").out


def test_what_cannot_be_read_is_reported_and_all_else_listed(lingo, tmp_path):
    code = "from x import experiment\n\n@experiment\ndef bad(:\n"
    place(tmp_path, "mine").with_name("broken.py").write_text(code)
    done = lingo("list")
    assert (done.code, "own.mine" in done.out) == (0, True)
    assert "broken.py:4" in done.err
    assert len(done.err.splitlines()) == 1


def test_what_a_terminal_would_obey_is_escaped(lingo: Callable, tmp_path: pathlib.Path) -> None:
    place(tmp_path, "mine", doc="A \x1b[31mred one.")
    assert "A \\x1b[31mred one." in lingo("list").out
