"""The start of a run: what is shown while it is compiled."""

import time

import lingo
from lingo.runtimes.local import LocalProgram
from lingo.trainer import progress


def test_long_compilation_is_shown_before_the_first_step(small, directory, monkeypatch, capsys):
    compile_step = LocalProgram.compile

    def compile_slowly(self, *args, **options):
        time.sleep(0.2)
        return compile_step(self, *args, **options)

    monkeypatch.setattr(LocalProgram, "compile", compile_slowly)
    monkeypatch.setattr(progress, "_WORK_SECONDS", 0.01)
    lingo.train(small(max_steps=1), directory)
    lines = capsys.readouterr().out.splitlines()
    shown = [i for i, line in enumerate(lines) if line.startswith("compiling a step: ")]
    (first,) = (i for i, line in enumerate(lines) if line.startswith("step 1/1"))
    assert len(shown) >= 2, lines  # while it lasts, and at its end
    assert lines[shown[-1]].startswith("compiling a step: done in ")
    assert shown[-1] < first
