"""The report of a pipeline for people, and as JSON."""

import json
from collections import Counter

import pytest

import lingo
from lingo.inspection.pipeline import Location, PipelineReport, find_pipelines
from lingo.inspection.pipeline_table import as_json, compact, text
from lingo.inspection.stage_times import Simulation
from lingo.layers.linear import Linear
from lingo.layers.stacks.pipelined_chain import PipelinedChain

GOLDEN = """\
model/stack: fill_drain, 2 stages, 2 micro-batches of [2, 16, 8]
each of 4 devices (stage=2, data=2) has only the weights of the stages that it computes

stage  layers  devices      FLOPs  share   weights  passes on  live  boundary activations
0      0-1     0-1      1.024e+05  66.7%  4.38 KiB      1 KiB     2                 2 KiB
1      2       2-3       5.12e+04  33.3%  2.19 KiB      1 KiB     2                 2 KiB
total                   1.536e+05         6.56 KiB                                  4 KiB

the largest stage is 1.333 times the mean; 53.7% of the FLOPs of a forward pass are in the pipeline
a stage keeps boundary activations, the inputs of `live` micro-batches (and of 1 idle iterations of
the loop), until they go backward; its layers' other activations are kept as long, and not counted

stage 0  0 1 . . . . 1<<<<<0<<<<<
stage 1  . 0 1 1<<<<<0<<<<<. . .
0 forward, 0< backward of micro-batch 0, . idle; 2 characters are 1 unit of time
makespan 12, bubble fraction 0.3333, idle 8 of 24
bubble fraction if stages were equal, as in the picture: 0.3333; by their FLOPs: 0.5000
instead one_forward_one_backward: bubble fraction 0.3333 if stages were equal, live 2 1; needs a
separate program for each stage, which lingo lacks
"""


def make_report(fields="num_stages=2, num_micro_batches=2"):
    sizes = ["exp.model_dim=8", "exp.num_layers=3", "FeedForward.hidden_dim=12"]
    sizes += ["train_input.batch_size=4", "train_input.length=16", "eval_inputs={}"]
    overrides = [f"Stack=Pipeline({fields})", "runtime=Mesh(stage=2,data=2)"]
    (report,) = find_pipelines(lingo.get("lm.source.tiny", *sizes, *overrides).build())
    return report


def make_simulation(report):
    """Returns a simulation of stages whose forward steps take 1 s and 0.5 s."""
    forward, backward = [[1.0, 0.5]], [[2.0, 1.0]]
    schedule = report.schedule.with_durations(forward, backward)
    return Simulation(forward, backward, sequential_seconds=9.0, times=[], schedule=schedule)


def test_a_report_for_people():
    assert text(make_report()) == GOLDEN


def test_a_simulation_adds_columns_and_what_it_leaves_out():
    report = make_report()
    lines = text(report, make_simulation(report)).splitlines()
    assert [line.split()[-6:] for line in lines[4:6]] == [
        ["1000", "ms", "2000", "ms", "6000", "ms"],
        ["500", "ms", "1000", "ms", "3000", "ms"],
    ]
    assert lines[3].endswith("boundary activations  forward  backward     busy")
    assert lines[-4].startswith("SIMULATION of a step on 2 devices")
    assert "the slowdown of stages that share a machine" in " ".join(lines)
    assert lines[-1] == (
        "makespan 7500 ms, bubble fraction 0.4000; layers one after the other 9000 ms, 1.2 times as"
        " long"
    )


class Join(Linear):
    """A layer of two tensors."""

    def output_shape(self, shape):
        return shape[0]

    def flops(self, shape):
        return 0


def test_stages_may_take_several_tensors_on_one_device():
    layers = [Join.params(dim=4, output_dim=4)]
    report = PipelineReport(
        layer=PipelinedChain.params(layers=layers, num_stages=1, num_micro_batches=2).build(),
        shape=((2, 4), (2, 3, 3)),
        share=1.0,
        is_compiled=False,
        weight_bytes=Counter(),
        location=Location("one device", [()]),
    )
    shown = text(report)
    assert "devices" not in shown
    assert "the largest stage is 1 times the mean" in shown
    assert "if stages were equal" not in shown
    assert "micro-batches of ([2, 4], [2, 3, 3])\n" in shown


def test_what_is_computed_again_is_there_for_one_micro_batch_at_a_time():
    shown = " ".join(text(make_report("num_stages=2, num_micro_batches=2, remat=True")).split())
    assert "other activations are kept for one micro-batch at a time, and not counted" in shown


def test_a_stage_of_several_repeats_has_several_runs_of_layers():
    report = make_report("num_stages=2, num_micro_batches=2, circular_repeats=2")
    shown = text(report).splitlines()
    assert shown[0].endswith("2 micro-batches of [2, 16, 8], 2 repeats")
    runs = [line.split("  ")[3] for line in shown if line.startswith(("0  ", "1  "))]
    assert runs == ["0, 2", "1, -"]


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], "-"), ([3], "3"), ([3, 4], "3-4"), ([0, 1, 2, 7, 9, 10], "0-2, 7, 9-10")],
)
def test_runs_of_numbers_are_shown_by_their_ends(numbers, shown):
    assert compact(numbers) == shown


def test_json_has_the_report_and_the_simulation():
    report = make_report()
    values = json.loads(json.dumps(as_json(report, make_simulation(report))))
    assert values["simulation"]["is_simulation"] is True
    assert values["simulation"]["busy_seconds"] == [6.0, 3.0]
    values = json.loads(json.dumps(as_json(report)))
    assert values["stages"][1] == {
        "layers": [[2]],
        "flops": 51200,
        "weight_bytes": 2240,
        "input_bytes": 1024,
        "output_bytes": 1024,
        "live": 2,
        "devices": [2, 3],
    }
    schedule = {"num_stages": 2, "num_micro_batches": 2, "num_repeats": 1, "makespan": 12}
    schedule |= {"bubble_fraction": pytest.approx(1 / 3), "live_activations": [2, 2]}
    assert values["schedule"] == schedule | {"name": "fill_drain"}
    assert values["other_schedules"][0]["live_activations"] == [2, 1]
    assert (values["bubble_fraction"], values["shape"]) == (0.5, [2, 16, 8])
    assert (values["balance"], values["flops_share"]) == (
        pytest.approx(4 / 3),
        pytest.approx(0.5367, abs=1e-4),
    )
    assert "simulation" not in values
