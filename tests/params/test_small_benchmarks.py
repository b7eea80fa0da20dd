"""Small forms of MLPerf's benchmarks train to their target, and the checker passes their logs."""

from __future__ import annotations

import pytest

import lingo
from lingo.trainer.mlperf.mllog import check_log, read_log
from lingo.trainer.mlperf.score import score_logs

pytest.importorskip("mlperf_logging", reason="needs pip install 'lingo-tf[mlperf]'")


@pytest.mark.parametrize(
    ("name", "ruleset"), [("mlperf.transformer.numbers", "0.7.0"), ("mlperf.bert.numbers", "1.0.0")]
)
def test_a_real_run_reaches_its_target_and_its_log_passes(name, ruleset, tmp_path) -> None:
    params = lingo.get(name)
    lingo.train(params, tmp_path / "run")
    path = tmp_path / "run" / "mllog.txt"
    assert check_log(path, ruleset) == []
    (run,) = score_logs({"run": read_log(path)}).runs
    assert run.has_converged
    percent = 100 if "bleu" in params.evaluate.metric else 1
    assert run.accuracy * percent >= params.evaluate.reach
