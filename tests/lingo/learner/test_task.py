"""What a task shows besides metrics is checked, and each mistake is one sentence."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.task import Task, check_coefficients, check_summaries
from lingo.metrics import Image, Table, weighted_mean
from tasks.image.task import ImageClassification


class Plain(Task):
    """A task that shows nothing of its own."""


def test_a_confusion_is_shown_by_default_and_no_examples_are():
    task = Plain.params().build()
    assert task.metric_summaries("mine", {"confusion": np.eye(2)}).keys() == {"mine/confusion"}
    assert task.metric_summaries("loss", {"sum": 1.0, "weight": 1.0}) == {}
    assert task.summaries({}, {}) == {}
    assert task.loss_metrics() == {}


@pytest.mark.parametrize(
    ("summaries", "message"),
    [
        (None, r"test_task.py:\d+: Task.summaries returned None: it returns {name: summary}"),
        ({1: 0.5}, "the name of a summary is a str, not 1"),
        ({"": 0.5}, "the name of a summary is a str, not ''"),
        ({"a": "text"}, "returned a summary 'a' that cannot be shown: it is a str. A summary is"),
        ({"a": Image(np.zeros(3))}, r"cannot be shown: the pixels of an Image have shape \[3\]"),
        ({"loss": 0.5}, "'loss' is the name of a metric: rename the summary"),
    ],
)
def test_summaries_of_another_form_are_refused(summaries, message):
    message = message.replace("test_task.py", "task.py")
    with pytest.raises(ParamError, match=message):
        check_summaries(Plain.params().build().summaries, summaries, metrics=["loss"])


def test_numbers_and_media_are_taken():
    good = {"a": 1, "b": np.float32(0.5), "c": Table({"x": [1]})}
    check_summaries(Plain.params().build().summaries, good, metrics=["loss"])


class OwnImages(ImageClassification):
    """The loss of its class, by other means: it has no auxiliary term."""

    def setup(self):
        pass

    def loss(self, batch):
        raise NotImplementedError


def test_a_class_of_the_users_may_inherit_coefficients_of_terms_that_it_lacks():
    task = OwnImages.params(num_classes=2, image_shape=(1, 1, 1), model=Plain.params()).build()
    assert "mine" not in task.coefficients()
    check_coefficients(task, {"mine"})


class Squares(Task):
    """The mean square of x, and a metric of its own."""

    def loss(self, batch):
        return {"square": tf.reduce_sum(batch["x"] ** 2)}

    def metrics(self, batch):
        return {"size": weighted_mean(tf.abs(batch["x"]), batch["weights"])}


class Named(Squares):
    """Names its term among the metrics."""

    def metrics(self, batch):
        return {"square": weighted_mean(batch["x"] ** 2, batch["weights"])}


class Aliased(Squares):
    """Says which metric is the term."""

    def loss_metrics(self):
        return {"square": "size"}


@pytest.mark.parametrize(
    ("cls", "names"),
    [(Squares, ["size", "loss/square"]), (Named, ["square"]), (Aliased, ["size"])],
)
def test_evaluations_have_the_loss_terms_that_own_metrics_leave_out(cls, names):
    batch = {"x": tf.constant([1.0, -3.0]), "weights": tf.ones([2])}
    states = cls.params().build().evaluation_metrics(batch)
    assert list(states) == names
    if "loss/square" in states:
        assert states["loss/square"] == {"sum": 10.0, "weight": 2.0}
