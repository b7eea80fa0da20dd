"""The report of a pipeline: against counts by hand, and against the weight table."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.inspection import weight_table
from lingo.inspection.pipeline import PipelineReport, find_pipelines
from lingo.layers.linear import Linear
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.stack import Chain
from lingo.learner.task import Task
from lingo.mesh.pipeline import fill_drain
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local

B, T, D, F = 8, 16, 8, 12  # rows, positions, width, hidden width
SMALL = [
    f"train_input.batch_size={B}",
    f"train_input.length={T}",
    f"exp.model_dim={D}",
    "exp.num_layers=8",
    f"FeedForward.hidden_dim={F}",
    "eval_inputs={}",
]
THREE = "runtime=Replicated(devices=['CPU:0','CPU:1','CPU:2'])"
STAGES_ON_MESH = "runtime=Mesh(stage=2,data=4)"
# forward operations of a layer for a row: projections, logits and sums, three products of the FFN
OF_A_LAYER = 2 * T * (4 * D * D + 3 * D * F) + 2 * 2 * T * T * D
WEIGHTS = 4 * (4 * D * D + 3 * D * F + 2 * D)  # bytes of a layer, two norms included


class Map(Linear):
    """A linear map that stands in a chain."""

    def output_shape(self, shape: Any) -> Any:
        return [*shape[:-1], self.p.output_dim]


class Counted(Task):
    """A chain that is given vectors."""

    chain: Chain  # what is computed

    def setup(self) -> None:
        self.chain = self.p.chain.build()

    def batch_flops(self, specs: Any) -> int:
        return self.chain.flops([specs["rows"][0][0], self.chain.layers[0].p.dim])


def reports(*overrides: str, exp: str = "lm.source.tiny") -> list[PipelineReport]:
    return find_pipelines(lingo.get(exp, *(SMALL if "tiny" in exp else []), *overrides).build())


def one(fields: str, *overrides: str) -> PipelineReport:
    (report,) = reports(f"Stack=Pipeline({fields})", *overrides)
    return report


def chain(
    widths: Sequence[int] = (2, 3, 5, 7), num_micro_batches: int = 2, **values: Any
) -> PipelineReport:
    """Reports on maps between some widths in two stages, of 8 rows."""
    layers = [Map.params(dim=a, output_dim=b) for a, b in itertools.pairwise(widths)]
    params = PipelinedChain.params(layers=layers, num_stages=2, num_micro_batches=num_micro_batches)
    experiment = Experiment.params(
        task=Counted.params(chain=params),
        train_input=Input.params(batch_size=B),
        optimizer=Sgd.params(learning_rate=0.5),
        runtime=Local.params(**values),
    ).build()
    (report,) = find_pipelines(experiment)
    return report


def test_a_stage_has_the_operations_of_its_layers_for_a_micro_batch():
    report = one("num_stages=4, num_micro_batches=2")
    assert tuple(report.shape) == (4, T, D)
    layers = [stage.layers for stage in report.stages]
    assert layers == [(range(2 * i, 2 * i + 2),) for i in range(4)]
    assert [stage.flops for stage in report.stages] == [4 * 2 * OF_A_LAYER] * 4
    assert report.balance == 1.0


def test_micro_batches_have_together_what_the_pipeline_has_of_a_step():
    report = one("num_stages=4, num_micro_batches=2")
    whole = lingo.get("lm.source.tiny", *SMALL).build()
    head = 2 * B * T * D * whole.task.p.vocab_size
    assert 2 * sum(stage.flops for stage in report.stages) + head == whole.step_flops() / 3
    assert report.share == pytest.approx(1 - head / (whole.step_flops() / 3))


@pytest.mark.parametrize("fields", ["num_stages=4", "num_stages=3"])
@pytest.mark.parametrize("repeats", ["", ", circular_repeats=2"])
def test_a_stage_weighs_what_the_weight_table_says_of_its_layers(fields, repeats):
    overrides = [*SMALL, f"Stack=Pipeline({fields}, num_micro_batches=8{repeats})"]
    experiment = lingo.get("lm.source.tiny", *overrides).build()
    (report,) = find_pipelines(experiment)
    stages = report.stages
    table = weight_table.rows(experiment.task)
    for stage in stages:
        names = [f"model/stack/layers/{i}/" for part in stage.layers for i in part]
        mine = [row for row in table if row.path.startswith(tuple(names))]
        assert stage.weight_bytes == 4 * weight_table.total_parameters(mine)
        assert stage.weight_bytes == len(names) * WEIGHTS
    stack = [row for row in table if row.path.startswith("model/stack/")]
    assert sum(s.weight_bytes for s in stages) == 4 * weight_table.total_parameters(stack)
    assert sorted(i for s in stages for part in s.layers for i in part) == list(range(8))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_what_is_passed_on_has_the_type_of_the_computation(dtype, size):
    report = one("num_stages=4, num_micro_batches=2", f"task.dtype={dtype}")
    assert {(s.input_bytes, s.output_bytes) for s in report.stages} == {(4 * T * D * size,) * 2}


@pytest.mark.parametrize(
    ("num_stages", "num_layers", "sizes", "balance"),
    [(3, 8, [3, 3, 2], 9 / 8), (4, 2, [1, 1, 0, 0], 2.0)],
)
def test_layers_that_do_not_fill_the_last_stages_leave_them_less(
    num_stages, num_layers, sizes, balance
):
    report = one(f"num_stages={num_stages}, num_micro_batches=2", f"exp.num_layers={num_layers}")
    assert [len(stage.layers[0]) for stage in report.stages] == sizes
    assert [stage.weight_bytes for stage in report.stages] == [WEIGHTS * size for size in sizes]
    assert report.balance == pytest.approx(balance)


def test_unlike_layers_pass_on_what_they_compute():
    report = chain()
    assert [stage.layers for stage in report.stages] == [(range(2),), (range(2, 3),)]
    assert [stage.flops for stage in report.stages] == [2 * 4 * (6 + 15), 2 * 4 * 35]
    assert [stage.weight_bytes for stage in report.stages] == [4 * (6 + 15), 4 * 35]
    assert [(s.input_bytes, s.output_bytes) for s in report.stages] == [(32, 80), (80, 112)]
    assert report.share == 1.0
    assert report.balance == pytest.approx(35 / 28)


def test_the_clock_is_that_of_gpipe():
    schedule = one("num_stages=4, num_micro_batches=8").schedule
    assert (schedule.name, schedule.makespan) == ("fill_drain", 11 * 3)
    assert schedule.bubble_fraction == pytest.approx(3 / 11)
    assert schedule.live_activations() == (8, 8, 8, 8)


def test_layers_that_repeat_have_the_circular_clock():
    report = one("num_stages=4, num_micro_batches=8, circular_repeats=2")
    assert report.stages[1].layers == (range(1, 2), range(5, 6))
    assert report.schedule.bubble_fraction == pytest.approx(3 / 19)
    assert report.num_inputs_kept == 19


@pytest.mark.parametrize(
    ("remat", "mesh", "units"),
    [("False", "Local", 2), ("True", "Local", 3), ("False", "Mesh", 3), ("True", "Mesh", 4)],
)
def test_computing_forward_again_takes_a_unit_each_time(remat, mesh, units):
    report = one(f"num_stages=2, num_micro_batches=2, remat={remat}", f"runtime={mesh}")
    assert report.schedule.makespan == 3 * (1 + units)
    assert report.recomputes is (remat == "True")


def test_other_schedules_are_for_as_many_stages_and_micro_batches():
    one_by_one, circular = one("num_stages=4, num_micro_batches=8").alternatives
    assert one_by_one.schedule.name == "one_forward_one_backward"
    assert one_by_one.schedule.bubble_fraction == pytest.approx(3 / 11)
    assert one_by_one.schedule.live_activations() == (4, 3, 2, 1)
    assert (circular.needs, circular.schedule.num_repeats) == ("circular_repeats=2", 2)
    assert circular.schedule.bubble_fraction == pytest.approx(3 / 19)


@pytest.mark.parametrize(
    "fields",
    [
        "num_stages=8, num_micro_batches=8",  # one layer for each stage
        "num_stages=4, num_micro_batches=2",  # fewer micro-batches than stages
        "num_stages=4, num_micro_batches=4, circular_repeats=2",
    ],
)
def test_repeats_are_an_alternative_where_there_can_be_more(fields):
    assert [other.schedule.name for other in one(fields).alternatives] == [
        "one_forward_one_backward"
    ]


@pytest.mark.parametrize(
    ("runtime", "where", "devices"),
    [
        ("Local", "one device computes all stages side by side, idle ones in vain", [()] * 4),
        ("Mesh(data=2)", "each of 2 devices (data=2) computes all stages side by side", [()] * 4),
        (
            "Mesh(stage=2,data=2,model=2)",
            "each of 8 devices (stage=2, data=2, model=2) has only the weights",
            [(0, 1, 2, 3)] * 2 + [(4, 5, 6, 7)] * 2,
        ),
        (
            "Mesh(data=2,model=2,weight_rules={'stage': ['model'], 'mlp': [], 'heads': []})",
            "each of 4 devices",
            [(0, 2)] * 2 + [(1, 3)] * 2,
        ),
        ("Replicated(devices=['CPU:0','CPU:1'])", "each of 2 replicas computes all", [()] * 4),
    ],
)
def test_a_report_says_which_devices_have_a_stage(runtime, where, devices):
    report = one("num_stages=4, num_micro_batches=2", f"runtime={runtime}")
    assert report.location.text.startswith(where)
    assert [stage.devices for stage in report.stages] == devices


def test_stages_that_do_not_divide_over_the_mesh_are_refused():
    with pytest.raises(ParamError, match=r"num_stages=3 is not a multiple of the 2 parts"):
        one("num_stages=3, num_micro_batches=2", "runtime=Mesh(stage=2)")


@pytest.mark.parametrize(
    ("num", "overrides", "size"),
    [
        (2, ["accumulation_steps=2"], 2),
        (3, [THREE], 1),  # of 8 rows three replicas have 3 each
        (2, [THREE], 2),  # 4
        (3, [THREE, "accumulation_steps=2"], 1),  # 6
        (3, [STAGES_ON_MESH, "train_input.batch_size=9"], 4),  # of 12 rows
        (3, [STAGES_ON_MESH, "train_input.batch_size=6"], 2),
    ],
)
def test_a_micro_batch_is_a_part_of_what_fills_up_a_batch(num, overrides, size):
    report = one(f"num_stages=4, num_micro_batches={num}", *overrides)
    assert tuple(report.shape) == (size, T, D)


def test_replicas_that_nobody_counts_are_shown_as_one():
    report = one("num_stages=4, num_micro_batches=3", "runtime=Replicated")
    assert report.location.text.startswith("each replica computes all stages")
    assert report.location.text.endswith("shown as if one replica had the whole batch")
    assert tuple(report.shape) == (3, T, D)


def test_replicas_are_counted_where_their_devices_are_there():
    overrides = (*SMALL, "Stack=Pipeline(num_stages=4, num_micro_batches=2)", "runtime=Replicated")
    experiment = lingo.get("lm.source.tiny", *overrides).build()
    (report,) = find_pipelines(experiment, started=True)  # the processor of this test
    assert report.location.text.startswith("one device computes all stages")
    assert not report.location.text.endswith("had the whole batch")


def test_a_group_that_is_no_part_of_a_filled_up_micro_batch_is_refused():
    experts = f"FeedForward=MoE(expert=_, num_experts=2, group_size={2 * T})"
    with pytest.raises(ParamError, match="whole groups of 2 neighbouring rows"):
        one("num_stages=4, num_micro_batches=3", "runtime=Replicated", experts)


def test_unlike_layers_on_one_device_are_never_idle():
    report = chain()
    assert (
        report.location.text
        == "one device computes its stages one after the other, none of them idle"
    )
    assert (report.num_inputs_kept, report.recomputes) == (2, True)
    assert report.schedule.makespan == 3 * (1 + 3)


def test_unlike_layers_take_turns_on_the_devices_of_stages():
    report = chain(stage_devices=2)
    assert report.location.text.startswith("each of 2 devices has its stages and their weights")
    assert [stage.devices for stage in report.stages] == [(0,), (1,)]


def test_encoder_and_decoder_are_a_pipeline_each():
    fields = "Stack=Pipeline(num_stages=2, num_micro_batches=4)"
    found = reports(fields, exp="seq2seq.source.signatures")
    assert [report.path for report in found] == ["model/encoder", "model/decoder"]
    assert sum(report.share for report in found) < 1


def test_an_experiment_without_a_pipeline_has_no_report():
    assert reports() == []


def test_a_wrapped_pipeline_is_found_once():
    fields = "num_stages=2, num_micro_batches=2"
    (report,) = reports(f"Stack=Pipeline({fields})", "Pipeline=Remat(layer=_)")
    assert report.path == "model/stack"


# ---- the bubble, against sums by hand


def test_equal_stages_have_the_bubble_of_the_schedule_to_the_last_bit():
    for fields in ("num_stages=4, num_micro_batches=8", "num_stages=2, num_micro_batches=2"):
        report = one(fields)
        assert report.bubble_fraction == report.schedule.bubble_fraction
    report = chain([3, 3, 3, 3, 3], 4)
    assert report.schedule == fill_drain(2, 4, backward=3)
    assert report.bubble_fraction == report.schedule.bubble_fraction


@pytest.mark.parametrize("remat", ["False", "True"])
def test_what_fills_up_a_stage_counts_as_idle(remat):
    """6 layers in 4 stages: each takes 2 in each of 8 + 3 steps, of which 6 * 8 count."""
    report = one(f"num_stages=4, num_micro_batches=8, remat={remat}", "exp.num_layers=6")
    assert report.schedule.bubble_fraction == pytest.approx(3 / 11)
    assert round(report.bubble_fraction, 3) == 0.455
    assert report.bubble_fraction == pytest.approx(1 - 6 * 8 / (4 * 2 * 11))


def test_what_fills_up_a_repeat_counts_as_idle():
    """5 layers in 2 repeats of 2 stages, 2 layers each: 2 * 8 + 1 steps."""
    report = one("num_stages=2, num_micro_batches=8, circular_repeats=2", "exp.num_layers=5")
    assert report.bubble_fraction == pytest.approx(1 - 5 * 8 / (2 * 2 * 17))


def test_unlike_stages_wait_for_the_one_that_takes_longest():
    """Stages of a and b: all forward in (M - 1) max + a + b, and so backward, times 3."""
    report = chain(num_micro_batches=4)
    a, b = 6 + 15, 35
    assert report.stage_layers == [[range(2), range(2, 3)]]
    expected = 1 - 4 * (a + b) / (2 * (3 * b + a + b))
    assert report.bubble_fraction == pytest.approx(expected)


def test_layers_that_multiply_nothing_are_equal(monkeypatch):
    report = chain(num_micro_batches=4)
    monkeypatch.setattr(Map, "flops", lambda self, shape: 0)
    assert report.bubble_fraction == report.schedule.bubble_fraction
