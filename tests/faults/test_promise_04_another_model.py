"""Promise 4: a checkpoint of another model is told apart by layer path; nothing is read from it."""


def test_another_width_is_no_damage_and_changes_nothing(runs, again):
    run = runs.folder / "run"
    checkpoints = {p: p.stat().st_mtime_ns for p in (run / "checkpoints").rglob("*")}
    rows = (run / "metrics.jsonl").read_bytes()
    refused = again("--set=task.model.dim=16", "--set=max_steps=14", "--allow_change")
    assert refused.returncode == 4
    lines = refused.stderr.splitlines()
    assert lines[0].endswith("step_00000012 is of another model:")
    assert "  shape model/embedding/table: checkpoint [259, 8], model [259, 16]" in lines
    assert "  shape model/stack/layers/0/ffn/w_in: checkpoint [8, 32], model [16, 64]" in lines
    assert len(lines) <= 22
    assert {p: p.stat().st_mtime_ns for p in (run / "checkpoints").rglob("*")} == checkpoints
    assert (run / "metrics.jsonl").read_bytes() == rows
    assert runs.status("run") == "done at step 12"


def test_who_only_reads_is_told_the_same(runs, reference):
    run = reference.folder / "whole"
    deeper = ("--set=Stack.num_layers=2", "--set=AdamW.ema_decay=0.9")
    refused = runs.lingo("eval", f"--run={run}", *deeper)
    assert refused.returncode == 4
    lines = refused.stderr.splitlines()
    assert any(line.startswith("  missing model/stack/layers/1 (") for line in lines), lines
    assert any(
        line.startswith("  missing slots/ema of model/embedding/table and") for line in lines
    )
