"""Showing pipelines: how layers are split, without TensorFlow, and what it says without one."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

PIPELINE = "--set=Stack=Pipeline(num_stages=4, num_micro_batches=4)"
TINY = ["--exp=lm.source.tiny", PIPELINE]


def test_stages_and_their_clock_are_shown(lingo: Callable) -> None:
    done = lingo("show", *TINY, "--pipeline")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    title = "model/stack: fill_drain, 4 stages, 4 micro-batches of [1, 256, 128]"
    assert lines[:2] == [title, "one device computes all stages side by side, idle ones in vain"]
    assert [line.split()[:2] for line in lines[4:8]] == [[str(i), str(i)] for i in range(4)]
    assert "makespan 21, bubble fraction 0.4286, idle 36 of 84" in lines
    other = "instead one_forward_one_backward: bubble fraction 0.4286, live 4 3 2 1; needs a "
    assert lines[-2].startswith(other)


def test_the_page_about_pipelines_has_the_report_as_it_is(lingo: Callable) -> None:
    page = pathlib.Path(__file__).parents[4] / "docs/pipelines.md"
    assert f"```text\n{lingo('show', *TINY, '--pipeline').out}```\n" in page.read_text()


def test_a_chain_of_unlike_layers_is_offered_stages_of_its_own(lingo: Callable) -> None:
    chain = ["--exp=image.amoebanet.digits", "--pipeline"]
    refused = lingo("show", *chain)
    assert refused.code == 2
    offered = refused.err.split("'")[1]
    assert offered == "Chain=PipelinedChain(num_stages=4, num_micro_batches=8)"
    assert lingo("show", *chain, f"--set={offered}").code == 0


def test_json_has_an_object_for_each_pipeline(lingo: Callable) -> None:
    mesh = "--set=runtime=Mesh(stage=4,data=2)"
    shown = json.loads(lingo("show", *TINY, mesh, "--pipeline", "--format=json").out)
    (one,) = shown["pipelines"]
    assert one["path"] == "model/stack"
    assert one["shape"] == [1, 256, 128]
    assert [stage["devices"] for stage in one["stages"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert one["schedule"]["bubble_fraction"] == 3 / 7
    assert "simulation" not in one


def test_a_simulation_is_in_the_same_table_and_says_so(lingo: Callable) -> None:
    small = ["--exp=lm.source.tiny(model_dim=8)", PIPELINE, "--set=train_input.length=8"]
    done = lingo("show", *small, "--pipeline=simulation")
    assert (done.code, done.err) == (0, "measuring layers of model/stack\n")
    report = lingo("show", *small, "--pipeline").out
    table, shown = (text.splitlines()[3:8] for text in (report, done.out))
    for line, longer in zip(table, shown, strict=True):
        assert longer.startswith(line)
    assert shown[0].split()[-3:] == ["forward", "backward", "busy"]
    assert "\n\nSIMULATION of a step on 4 devices" in done.out
    shown = json.loads(lingo("show", *small, "--pipeline=simulation", "--format=json").out)
    assert shown["pipelines"][0]["simulation"]["is_simulation"] is True


def test_without_a_pipeline_it_says_how_to_get_one(lingo: Callable) -> None:
    done = lingo("show", "--exp=lm.source.tiny", "--pipeline")
    assert done.code == 2
    assert done.err == (
        "lingo show: the experiment has no pipeline. A flag makes one of its layers:"
        f" --set='{PIPELINE.removeprefix('--set=')}'\n"
    )
    assert lingo("show", *TINY, "--pipeline").code == 0  # and it does


def test_a_batch_of_unequal_micro_batches_is_refused(lingo: Callable) -> None:
    unequal = "--set=Stack=Pipeline(num_stages=4, num_micro_batches=3)"
    done = lingo("show", "--exp=lm.source.tiny", unequal, "--pipeline")
    assert done.code == 2
    assert "4 rows cannot be cut into num_micro_batches=3 equal parts" in done.err


def test_with_devices_it_is_what_a_replica_has() -> None:
    """In a process of its own: devices are chosen once."""
    command = ["show", *TINY, "--set=runtime=Replicated", "--pipeline", "--devices=2"]
    rows = "--set=train_input.batch_size=10"  # five each, filled up to eight
    done = subprocess.run(
        [sys.executable, "-m", "lingo.cli.main", *command, rows], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    title, where = done.stdout.splitlines()[:2]
    assert title.endswith("4 micro-batches of [2, 256, 128]")
    assert where.startswith("each of 2 replicas computes all stages side by side")
