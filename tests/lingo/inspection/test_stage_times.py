"""Simulated seconds of a pipeline: of layers whose times are known, and of real ones."""

import itertools
import shlex
from typing import Any

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection import pipeline_table, stage_times
from lingo.inspection.pipeline import PipelineReport, find_pipelines
from lingo.inspection.stage_times import Simulation

SMALL = ["exp.model_dim=8", "exp.num_layers=3", "train_input.length=8", "eval_inputs={}"]


def build(fields: str, *overrides: str) -> Experiment:
    overrides = (*SMALL, f"Stack=Pipeline({fields})", *overrides)
    return lingo.get("lm.source.tiny", *overrides).build()


def simulate(experiment: Experiment, index: int = 0) -> Simulation:
    return stage_times.simulate(find_pipelines(experiment)[index])


@pytest.fixture
def known(monkeypatch):
    """Gives every layer 1 second forward and 2 backward, and tells which were asked for."""
    asked: list[tuple[str, Any]] = []

    def measure(layer: Any, shape: Any, report: PipelineReport) -> tuple[float, float]:
        del report
        asked.append((layer.path, tuple(shape)))
        return 1.0, 2.0

    monkeypatch.setattr(stage_times, "_measure", measure)
    return asked


def test_alike_layers_are_measured_once(known):
    simulation = simulate(build("num_stages=3, num_micro_batches=2"))
    assert known == [("model/stack/layers/[0:3]", (2, 8, 8))]
    assert (simulation.forward, simulation.backward) == ([[1.0] * 3], [[2.0] * 3])
    assert simulation.schedule.makespan == (2 + 3 - 1) * 3.0
    assert simulation.schedule.bubble_fraction == pytest.approx(2 / 4)
    assert simulation.sequential_seconds == 3 * 2 * 3.0
    assert simulation.speedup == pytest.approx(18 / 12)
    assert simulation.times == []  # stages are equal: no setting cuts them by times


def test_what_fills_up_a_stage_takes_the_time_of_layers(known):
    simulation = simulate(build("num_stages=2, num_micro_batches=4"))
    assert (simulation.forward, simulation.backward) == ([[2.0] * 2], [[4.0] * 2])
    assert simulation.schedule.makespan == (4 + 2 - 1) * 6.0
    assert simulation.sequential_seconds == 3 * 4 * 3.0
    assert len(known) == 1


CHAIN = "Chain=PipelinedChain(num_stages=2, num_micro_batches=8)"


def test_the_seconds_of_unlike_layers_are_a_setting_that_cuts_stages_by_them(monkeypatch):
    """Of all layers but the first, which takes longest, a stage is made."""
    taken = itertools.chain([(123.456, 1000.0)], itertools.repeat((1e-6, 2e-6)))
    monkeypatch.setattr(stage_times, "_measure", lambda *of: next(taken))
    experiment = lingo.get("image.amoebanet.digits", CHAIN).build()
    simulation = simulate(experiment)
    last = pipeline_table.text(find_pipelines(experiment)[0], simulation).splitlines()[-1]
    assert last.startswith("stages of equal seconds: --set='PipelinedChain.times=[1123.0, 3e-06,")
    (setting,) = shlex.split(last.partition(": ")[2])
    again = lingo.get("image.amoebanet.digits", CHAIN, setting.removeprefix("--set=")).build()
    (report,) = find_pipelines(again)
    assert report.layer.p.times == simulation.times
    assert report.stage_layers[0][0] == range(1)


@pytest.fixture(autouse=True)
def _briefly(monkeypatch):
    monkeypatch.setattr(stage_times, "_MEASURED_SECONDS", 0.0)


@pytest.mark.parametrize("fields", ["", ", remat=True"])
def test_real_layers_take_time(fields):
    simulation = simulate(
        build(f"num_stages=3, num_micro_batches=2{fields}", "TransformerLayer.dropout_rate=0.1")
    )
    assert simulation.schedule.makespan > 0
    (forward,), (backward,) = simulation.forward, simulation.backward
    assert min(forward) > 0
    assert min(backward) >= 0
    if fields:  # forward again, and the gradient beside it
        assert all(gradient >= once for once, gradient in zip(forward, backward, strict=True))


@pytest.mark.parametrize("index", [0, 1])
def test_layers_with_a_memory_and_a_shared_table_can_be_measured(index):
    experiment = lingo.get(
        "seq2seq.source.signatures",
        "train_input.batch_size=2",
        "Attention.positions=RelativeBias(shared=True)",
        "Stack=Pipeline(num_stages=2, num_micro_batches=2)",
    ).build()
    assert simulate(experiment, index).schedule.makespan > 0


def test_experts_that_read_tokens_can_be_measured():
    experiment = build(
        "num_stages=3, num_micro_batches=2",
        "FeedForward=MoE(expert=_, num_experts=2, router=HashRouter)",
    )
    assert simulate(experiment).schedule.makespan > 0


def test_a_layer_without_room_is_refused(monkeypatch):
    monkeypatch.setattr(stage_times, "memory_bytes", lambda: 1000)
    with pytest.raises(ParamError, match="bytes of weights do not fit into memory"):
        simulate(build("num_stages=3, num_micro_batches=2"))
