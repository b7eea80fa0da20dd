"""The report of a pipeline for people, and as JSON."""

import json

import pytest

from lingo.inspection.pipeline import Alternative, Report, Stage
from lingo.inspection.pipeline_table import as_json, compact, text
from lingo.inspection.stage_times import Seconds, Simulation
from lingo.mesh.pipeline.schedule import circular, fill_drain, one_forward_one_backward

REPORT = Report(
    path="model/stack",
    shape=(1, 16, 8),
    share=0.75,
    where="each of 4 devices (stage=2, data=2) has the weights of its stages",
    recomputes=False,
    num_inputs_kept=3,
    stages=(
        Stage((range(2),), 3000, 2048, 512, 512, 2, (0, 1)),
        Stage((range(2, 3),), 1000, 1024, 512, 512, 2, (2, 3)),
    ),
    schedule=fill_drain(2, 2),
    bubble_fraction=0.4,
    alternatives=(
        Alternative(one_forward_one_backward(2, 2), "a program of its own for each stage"),
    ),
)
GOLDEN = """\
model/stack: fill_drain, 2 stages, 2 micro-batches of [1, 16, 8]
each of 4 devices (stage=2, data=2) has the weights of its stages

stage  layers  devices  FLOPs  share  weights  passes on  live  boundary activations
0      0-1     0-1       3000  75.0%    2 KiB      512 B     2                 1 KiB
1      2       2-3       1000  25.0%    1 KiB      512 B     2                 1 KiB
total                    4000           3 KiB                                  2 KiB

the largest stage is 1.5 times the mean; 75.0% of the FLOPs of a forward pass are in the pipeline
a stage keeps boundary activations, the inputs of `live` micro-batches (and of 1 idle iterations of
the loop), until they go backward; what its layers compute from them is kept as long, and not
counted

stage 0  0 1 . . . 1<<<0<<<
stage 1  . 0 1 1<<<0<<<. .
0 forward, 0< backward of micro-batch 0, . idle; 2 characters are 1 unit of time
makespan 9, bubble fraction 0.3333, idle 6 of 18
bubble fraction if stages were equal, as the clock has them: 0.3333; by their FLOPs: 0.4000
instead one_forward_one_backward: bubble fraction 0.3333 if stages were equal, live 2 1; needs a
program of its own for each stage
"""
SIMULATION = Simulation(
    seconds=[[Seconds(1.0, 2.0), Seconds(0.5, 1.0)]],
    sequential_seconds=9.0,
    times=[],
    schedule=fill_drain(2, 2).with_durations([[1.0, 0.5]], [[2.0, 1.0]]),
)


def test_a_report_for_people():
    assert text(REPORT) == GOLDEN


def test_a_simulation_adds_columns_and_what_it_leaves_out():
    lines = text(REPORT, SIMULATION).splitlines()
    assert [line.split()[-6:] for line in lines[4:6]] == [
        ["1000", "ms", "2000", "ms", "6000", "ms"],
        ["500", "ms", "1000", "ms", "3000", "ms"],
    ]
    assert lines[3].endswith("boundary activations  forward  backward     busy")
    assert lines[-4].startswith("SIMULATION of a step on 2 devices")
    assert "what stages on one machine take from each other" in " ".join(lines)
    assert lines[-1] == (
        "makespan 7500 ms, bubble fraction 0.4000; layers one after the other 9000 ms, 1.2 times as"
        " long"
    )


def test_measured_times_of_layers_become_a_setting():
    last = text(REPORT, SIMULATION._replace(times=[1.5, 3e-06])).splitlines()[-1]
    assert last == "stages of equal seconds: --set='PipelinedChain.times=[1.5, 3e-06]'"


def test_equal_stages_have_one_bubble():
    shown = text(REPORT._replace(bubble_fraction=REPORT.schedule.bubble_fraction))
    assert "by their FLOPs" not in shown
    assert "instead one_forward_one_backward: bubble fraction 0.3333, live 2 1; needs" in shown


def test_a_pipeline_on_one_device_says_nothing_of_devices_nor_of_shares_of_nothing():
    stages = tuple(stage._replace(devices=(), flops=0) for stage in REPORT.stages)
    report = text(REPORT._replace(stages=stages, where="one device", shape=((2, 4), (2, 3, 3))))
    assert "devices" not in report
    assert "the largest stage is 1 times the mean" in report
    assert "micro-batches of ([2, 4], [2, 3, 3])\n" in report


def test_what_is_computed_again_is_there_for_one_micro_batch_at_a_time():
    shown = " ".join(text(REPORT._replace(recomputes=True, num_inputs_kept=2)).split())
    assert "the inputs of `live` micro-batches, until they go backward; what its" in shown
    assert "from them is there for one micro-batch at a time, and not counted" in shown


def test_a_stage_of_several_repeats_has_several_runs_of_layers():
    stages = tuple(Stage((range(i, i + 1), range(i + 2, i + 4)), 1, 1, 1, 1, 4, ()) for i in (0, 4))
    report = REPORT._replace(stages=stages, schedule=circular(2, 2, 2))
    shown = text(report).splitlines()
    assert shown[0].endswith("2 micro-batches of [1, 16, 8], 2 repeats")
    assert [line.split("  ")[3] for line in shown if line.startswith(("0  ", "1  "))] == [
        "0, 2-3",
        "4, 6-7",
    ]


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], "-"), ([3], "3"), ([3, 4], "3-4"), ([0, 1, 2, 7, 9, 10], "0-2, 7, 9-10")],
)
def test_runs_of_numbers_are_shown_by_their_ends(numbers, shown):
    assert compact(numbers) == shown


def test_json_has_the_report_and_the_simulation():
    values = as_json(REPORT, SIMULATION)
    assert json.loads(json.dumps(values)) == values
    assert values["simulation"]["is_simulation"] is True
    assert values["simulation"]["busy_seconds"] == [6.0, 3.0]
    values = as_json(REPORT)
    assert json.loads(json.dumps(values)) == values
    assert values["stages"][1] == {
        "layers": [[2]],
        "flops": 1000,
        "weight_bytes": 1024,
        "input_bytes": 512,
        "output_bytes": 512,
        "live": 2,
        "devices": [2, 3],
    }
    schedule = {"num_stages": 2, "num_micro_batches": 2, "num_repeats": 1, "makespan": 9}
    schedule |= {"bubble_fraction": pytest.approx(1 / 3), "live_activations": [2, 2]}
    assert values["schedule"] == schedule | {"name": "fill_drain"}
    assert values["other_schedules"][0]["live_activations"] == [2, 1]
    assert values["bubble_fraction"] == 0.4
    assert (values["balance"], values["flops_share"], values["shape"]) == (1.5, 0.75, [1, 16, 8])
    assert "simulation" not in values
