"""A dry run says what a run would be, and leaves nothing."""

import pytest

import lingo
from lingo.checkpoints.errors import CheckpointMismatch
from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.inspection.weight_table import rows, total_parameters
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import num_bytes
from lingo.optim.adam import AdamW
from lingo.runtimes.mesh.mesh import Mesh
from lingo.trainer.changes import ChangedConfiguration
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.dry_run import dry_run
from lingo.trainer.request import Request
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


@pytest.fixture
def params(tmp_path):
    (tmp_path / "a.txt").write_text("a few letters")
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1))
    model = LanguageModel.params(dim=4, stack=Stack.params(layer=layer))
    source = TextFiles.params(pattern=f"{tmp_path}/*.txt")
    data = TextInput.params(batch_size=2, length=4, source=source)
    return Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=data,
        eval_inputs={"same": data.copy()},
        optimizer=AdamW.params(learning_rate=0.1),
        max_steps=1,
    )


def facts(params, run=None, **options):
    lines = dry_run(Request(params, "{}", "", **options), run).splitlines()
    return dict((part.strip() for part in line.split("  ", 1)) for line in lines)


def test_it_says_what_a_run_would_take_and_leaves_nothing(params, tmp_path):
    before = sorted(tmp_path.iterdir())
    found = facts(params, RunDirectory(tmp_path / "run"))
    assert sorted(tmp_path.iterdir()) == before
    experiment = params.build()
    parameters = total_parameters(rows(experiment.task))
    assert found["parameters"] == f"{parameters:,}"
    assert found["weights"] == f"{4 * parameters / 1024:.3g} KiB in float32"
    assert found["slots"] == f"{8 * parameters / 1024:.3g} KiB in float32"
    assert found["FLOPs per step"].startswith(f"{3 * experiment.task.flops([2, 4]) / 1000:.1f} k,")
    assert "tokens int32[2, 4]" in found["train batch"]
    assert found["same batch"].endswith("; 2 batches")
    assert "'documents': 1" in found["same data"]
    assert found["start"] == "from step 0, to step 1"


def test_of_a_mesh_it_says_what_each_device_holds(params):
    weights = num_bytes(params.build().learner)["weights"]
    found = facts(params.set(runtime=Mesh.params(data=2, shard_update=True)))
    assert found["runtime"].startswith("on each of 2 devices (data=2): weights ")
    assert f"weights {weights / 1024:.3g} KiB, slots {weights / 1024:.3g} KiB" in found["runtime"]


def test_slots_and_moving_averages_count(params):
    weights = num_bytes(params.build().learner)["weights"]
    params.optimizer.ema_decay = 0.5
    assert num_bytes(params.build().learner) == {
        "weights": weights,
        "slots": 3 * weights,
        "statistics": 0,
    }


def test_it_says_where_a_run_would_go_on_and_refuses_what_training_would(params, tmp_path):
    run = RunDirectory(tmp_path / "run")
    lingo.train(params, run.path)
    more = params.copy().set(max_steps=3)
    found = facts(more, run)
    assert found["start"] == f"from {run.checkpoints}/step_00000001, to step 3"
    assert found["changed"] == "max_steps: 1 -> 3"
    with pytest.raises(ChangedConfiguration, match="seed: 0 -> 1"):
        facts(params.copy().set(seed=1), run)
    wider = params.copy()
    wider.task.model.dim = 8
    with pytest.raises(CheckpointMismatch):
        facts(wider, run, allow_change=True)
    assert not list(tmp_path.glob("run/config.*.txt"))


def test_layers_that_do_not_fit_together_are_found(params):
    params.task.model.positions = LearnedPositions.params(max_length=2)
    with pytest.raises(ValueError, match="4 positions, but max_length=2"):
        facts(params)
