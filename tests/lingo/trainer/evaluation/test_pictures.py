"""Pictures of predictions: one for each example of an input, without padding, in a new folder."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image as Picture

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.array_input import ArrayInput
from lingo.layers.linear import Linear
from lingo.learner.task import Task
from lingo.metrics.media import Image
from lingo.optim.sgd import Sgd
from lingo.trainer.evaluation.pictures import write_pictures

SIZE = 5  # examples, in batches of 2


def arrays():
    return {"x": np.arange(SIZE * 2, dtype="f").reshape(SIZE, 2)}


class Show(Task):
    """Shows an image whose level is the example's first number, and its prediction as another."""

    linear: Linear = Linear.params(dim=2, output_dim=1)
    names: tuple[str, ...] = ("one",)

    def setup(self):
        self.linear = self.p.linear.build()

    def summaries(self, batch, predictions):
        levels = batch["x"][0, 0], predictions["guess"][0]
        pairs = zip(self.p.names, levels, strict=False)
        return {name: Image(np.full([64, 64, 3], level, np.uint8)) for name, level in pairs}


def build(names=("one",)):
    data = ArrayInput.params(function=arrays, batch_size=2, shuffle=False)
    return Experiment.params(
        task=Show.params(names=names),
        train_input=data,
        eval_inputs={"all": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
    ).build()


def write(folder, experiment):
    data = experiment.eval_inputs["all"]
    with write_pictures(folder, experiment, data) as add:
        for start in range(0, SIZE, 2):
            ids = np.arange(start, min(start + 2, SIZE))
            add({"example_id": ids, "guess": 100 + ids})
            assert not folder.exists()


def level(path):
    values = np.unique(np.asarray(Picture.open(path)))
    assert len(values) == 1
    return int(values[0])


def test_each_example_has_a_picture_of_its_own_with_its_prediction(tmp_path):
    write(tmp_path / "one", build())
    names = [f"{i:06}.png" for i in range(SIZE)]
    assert sorted(os.listdir(tmp_path / "one")) == names
    assert [level(tmp_path / "one" / name) for name in names] == [0, 2, 4, 6, 8]
    write(tmp_path / "two", build(("a/b", "c")))
    assert len(os.listdir(tmp_path / "two")) == 2 * SIZE
    assert level(tmp_path / "two/000003-a-b.png") == 6
    assert level(tmp_path / "two/000003-c.png") == 103


def test_a_task_without_pictures_is_an_error_that_leaves_nothing(tmp_path):
    with pytest.raises(ParamError, match=r"Show shows no images of examples \(Task\.summaries\)"):
        write(tmp_path / "pictures", build(()))
    assert os.listdir(tmp_path) == []
