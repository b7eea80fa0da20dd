"""Checking experiments."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

TOYS = ["--exp=toys.narrow", "--exp=toys.deep"]


def test_every_experiment_is_built_and_counted(lingo: Callable) -> None:
    done = lingo("check")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert any(line.split() == ["toys.deep", "36", "parameters"] for line in lines)
    assert any(line.startswith("lm.source.tiny") for line in lines)
    assert lines[-1] == f"{len(lines) - 1} checked, 0 failed"


def test_matches_are_counted_and_a_class_may_be_missing(lingo: Callable) -> None:
    done = lingo("check", "--set=ToyLayer.rate=1", "--set=Stack=Repeat")
    assert done.code == 0
    toy = next(line for line in done.out.splitlines() if line.startswith("toys.deep"))
    assert "ToyLayer.rate=1: 1" in toy
    assert "Stack=Repeat: 1" in toy
    tiny = next(line for line in done.out.splitlines() if line.startswith("lm.source.tiny"))
    assert "ToyLayer.rate=1: not applicable" in tiny


def test_products_that_are_quantized_are_counted(lingo: Callable) -> None:
    flag = "--set=TransformerLayer=Quantized(layer=_)"
    done = lingo("check", "--exp=lm.source.tiny", "--exp=toys.deep", flag)
    assert done.code == 0
    tiny, toy, _ = done.out.splitlines()
    assert tiny.endswith("  36 of 37 products quantized, not 1 of TiedHead")
    assert toy.endswith("not applicable")


def test_a_sparse_model_that_an_override_shrinks_is_a_warning(lingo: Callable) -> None:
    flag = "FeedForward=MoE(expert=_, num_experts={})"
    same = lingo("check", "--exp=lm.source.tiny_moe", "--set=" + flag.format(8))
    fewer = lingo("check", "--exp=lm.source.tiny_moe", "--set=" + flag.format(2))
    assert (same.code, fewer.code) == (0, 0)
    line, size = fewer.out.splitlines()[0], same.out.split()[1]
    assert f"parameters, fewer than the {size} without these flags" in line
    assert "num_experts = 8: this MoE was there before, it has 2 now" in line
    assert "WARNING" in line
    assert "WARNING" not in same.out


def test_a_pattern_that_matches_nowhere_is_a_mistake(lingo: Callable) -> None:
    done = lingo("check", *TOYS, "--set=ToyLayr.rate=1")
    assert done.code == 2
    assert "matches in no experiment" in done.err
    assert "'ToyLayer'" in done.err
    assert len(done.err.splitlines()) == 1


def test_one_failure_does_not_hide_the_others(lingo: Callable, tmp_path: pathlib.Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "bad.py").write_text(
        "from lingo.config.registry import experiment\nfrom params.toys import narrow\n\n"
        "@experiment\ndef bad():\n    return narrow().set(max_steps=-1)\n"
    )
    done = lingo("check", "--exp=bad", *TOYS)
    assert done.code == 2
    lines = done.out.splitlines()
    assert lines[0].startswith("bad          FAILED  ")
    assert lines[1].startswith("toys.narrow  18 parameters")
    assert lines[-1] == "3 checked, 1 failed"
    assert done.err.startswith("lingo check: 1 of 3 experiments failed; bad: ")


ODD = """
from lingo import experiment
from params.toys import ToyTask, narrow

class OddTask(ToyTask):
    def loss(self, batch):
        return {}["nowhere"]

@experiment
def odd():
    cfg = narrow()
    return cfg.set(task=OddTask.params(stack=cfg.task.stack))
"""


def test_a_failure_that_is_no_mistake_in_parameters_has_its_line(lingo: Callable) -> None:
    (file := pathlib.Path("odd.py").absolute()).write_text(ODD)
    done = lingo("check", "--exp=odd.py:odd", "--trace")
    assert done.code == 1
    assert f"FAILED  {file}:7: KeyError: 'nowhere'" in done.out
    assert f"1 of 1 experiments failed; odd.py:odd: {file}:7: KeyError" in done.err


def test_tracing_passes_for_a_model_that_computes(lingo: Callable) -> None:
    done = lingo("check", "--exp=lm.source.tiny", "--set=exp.num_layers=1", "--trace")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("1 checked, 0 failed\n")


OWN = pathlib.Path(__file__).parents[2] / "inspection/conformance/own_mistakes.py"


def test_each_claim_of_the_contract_is_a_line_and_a_broken_one_fails(lingo: Callable) -> None:
    done = lingo("check", "--contract", f"--exp={OWN}:hidden")
    assert done.code == 1
    lines = done.out.splitlines()
    assert "pass         train_input (Numbers): names, shapes and dtypes are as in specs" in lines
    assert any(line.startswith("FAILED       layers/0 (HiddenVariable): ") for line in lines)
    assert any(f" {OWN}:" in line for line in lines)
    assert lines[-1] == "1 checked, 1 failed"
    assert "claims failed; task (Fit): no variable" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_contract_is_checked_of_experiments_that_are_named(lingo: Callable) -> None:
    done = lingo("check", "--contract")
    assert done.code == 2
    assert "name it, as in --exp=mine.py:mine" in done.err
