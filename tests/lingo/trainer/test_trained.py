"""A trained model is loaded from a checkpoint that is there and can be read."""

import pytest

from lingo.checkpoints import store
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.processes.processes import ALONE
from lingo.runtimes.local import Local
from lingo.trainer import trained
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

pytestmark = pytest.mark.usefixtures("once_compiled")


@pytest.fixture
def load(small, run, directory, monkeypatch):
    """Loads a model of checkpoints 2, 4 and 6; `before` is done with each before it is read."""
    run(small(), directory)
    restore_state = trained.restore_state

    def load(before, step=None):
        def restore(learner, found):
            before(found)
            return restore_state(learner, found)

        monkeypatch.setattr(trained, "restore_state", restore)
        return Trained(small(), RunDirectory(directory), step=step)

    return load


def test_if_the_training_deletes_the_checkpoint_the_next_is_loaded(load, directory):
    def delete(found):
        if found.step == 6:
            store.delete(found.path)

    model = load(delete)
    assert (model.step, model.checkpoint.later_errors) == (4, ())
    store.delete(model.checkpoint.path)
    assert model.loss(model.experiment.train_input.batch(0)) > 0  # its weights are in memory
    with pytest.raises(NoUsableCheckpoint, match=r"has no checkpoint of step 2; it has none\.$"):
        load(lambda found: store.delete(found.path), step=2)
    with pytest.raises(NoUsableCheckpoint, match="has no checkpoint yet"):
        load(lambda found: None)


def test_if_the_latest_turns_out_to_be_garbage_the_one_before_is_loaded(load):
    def destroy(found):
        if found.step == 6:
            (found.path / "tensors.index").write_bytes(b"garbage")

    model = load(destroy)
    assert model.step == 4
    assert [error.path.name for error in model.checkpoint.later_errors] == ["step_00000006"]
    with pytest.raises(DamagedCheckpoint, match="step_00000006 is damaged"):
        load(destroy, step=6)


def test_all_processes_choose_again_if_one_could_not_read(load, monkeypatch):
    class Together(type(ALONE)):
        """A process beside one that first finds its checkpoint deleted."""

        answers = [True, False]

        def any(self, flag):
            return flag or self.answers.pop(0)

    monkeypatch.setattr(Local, "join", lambda self: Together())
    seen = []
    assert load(lambda found: seen.append(found.step)).step == 6
    assert seen == [6, 6]
