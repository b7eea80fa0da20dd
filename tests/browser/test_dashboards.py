"""Each dashboard of TensorBoard that a run fills, in a browser; pictures are in `artifacts/`."""

import importlib.util
import re

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.serial import Origin
from lingo.contract import Evaluation, Experiment, Summary
from lingo.data import ArrayInput
from lingo.layers import Linear
from lingo.learner.task import Task
from lingo.metrics import Histogram, Image, Table, confusion, confusion_image, weighted_mean
from lingo.optim import Adam
from lingo.runtimes.local import Local
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.request import Request
from lingo.trainer.run import train

pytestmark = pytest.mark.xdist_group("tensorboard")

SIDE, KINDS = 12, ("circle", "square", "cross", "stripes")


def shapes(size=256, seed=0):
    """Returns noisy images of four shapes, and which one each shows."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    plain = [
        x**2 + y**2 < 20,
        np.maximum(abs(x), abs(y)) < 4.4,
        abs(x * y) < 4,
        y.astype(int) % 3 == 0,
    ]
    labels = draw.integers(0, len(KINDS), size)
    images = np.stack(plain)[labels] + draw.normal(0, 0.7, [size, SIDE, SIDE])
    return {"image": images.astype("f"), "label": labels}


class Shapes(Task):
    """Logistic regression, with everything that can be shown."""

    linear: Linear = Linear.params(dim=SIDE * SIDE, output_dim=len(KINDS), use_bias=True)

    def setup(self):
        self.linear = self.p.linear.build()

    def logits(self, batch):
        return self.linear(tf.reshape(batch["image"], [-1, SIDE * SIDE]))

    def losses(self, batch):
        logits = self.logits(batch)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)

    def loss(self, batch):
        return {"cross_entropy": tf.reduce_sum(batch["weights"] * self.losses(batch))}

    def metrics(self, batch):
        guess = tf.argmax(self.logits(batch), 1)
        return {
            "cross_entropy": weighted_mean(self.losses(batch), batch["weights"]),
            "shape": confusion(batch["label"], guess, batch["weights"], num_classes=len(KINDS)),
        }

    def predict(self, batch):
        probabilities = tf.nn.softmax(self.logits(batch))
        return {"guess": tf.argmax(probabilities, 1), "surety": tf.reduce_max(probabilities, 1)}

    def summaries(self, batch, predictions):
        names, guesses = (np.array(KINDS)[a] for a in (batch["label"], predictions["guess"]))
        columns = {"example": batch["example_id"], "label": names, "guess": guesses}
        return {
            "examples": Table(columns | {"surety": predictions["surety"]}),
            "images": Image(batch["image"][..., None] / 2),
            "surety": Histogram(predictions["surety"]),
        }

    def metric_summaries(self, name, state):
        if name == "shape":
            return {"shape/confusion": confusion_image(state["confusion"], class_names=KINDS)}
        return super().metric_summaries(name, state)


@pytest.fixture(scope="module")
def server(tmp_path_factory, tensorboard):
    """TensorBoard on a run of twenty steps, of which some are profiled, and on another one."""
    directory = tmp_path_factory.mktemp("dashboards")
    data = ArrayInput.params(function=shapes, batch_size=32)
    heldout = data.copy().set(arguments={"size": 200, "seed": 1}, repeat=False)
    for rate in (1e-3, 1e-2):
        params = Experiment.params(
            task=Shapes,
            train_input=data,
            eval_inputs={"heldout": heldout},
            optimizer=Adam.params(learning_rate=rate),
            max_steps=20,
            runtime=Local.params(xla=True),  # else the plugin sees no training, and no average
            summary=Summary.params(every_steps=1, num_examples=8),
            evaluate=Evaluation.params(every_steps=5),
        )
        origin = Origin("shapes", "shapes.py", "shapes", {}, (f"optimizer.learning_rate={rate}",))
        steps = range(10, 15) if rate == 1e-2 else range(0)
        request = Request(params, "{}", "", origin, profile_steps=steps)
        train(request, RunDirectory(directory / f"rate_{rate:g}"))
    with tensorboard(directory) as server:
        yield server


def test_training_and_evaluation_are_lines_of_one_chart(server, browser):
    for tag in ("loss/total", "loss/cross_entropy"):
        curves = browser.curves(server, tag)
        assert sorted(len(heights) for heights in curves) == [4, 4, 20, 20]
    browser.screenshot("dashboard_scalars")


def test_the_first_page_has_the_loss_of_training_and_evaluation_in_one_card(server, browser):
    browser.open(f"{server.url}?tagFilter=^loss%2Ftotal$#timeseries")
    rows = """
        const cards = all('scalar-card').map(card => card.innerText);
        const rows = cards.filter(text => text.includes('loss'));
        return rows.length && rows[0].includes('train') ? rows : null;
    """
    (card,) = browser.until(rows, "a card with rows of runs")
    assert "rate_0.01/train" in card
    assert "rate_0.01/eval_heldout" in card
    browser.screenshot("dashboard_time_series")


def test_the_confusion_and_images_of_examples_are_shown(server, browser):
    browser.open(f"{server.url}#images")
    sizes = """
        const images = all('tf-image-loader img, img').filter(i => i.naturalWidth > 100);
        return images.length >= 2 ? images.map(i => [i.naturalWidth, i.naturalHeight]) : null;
    """
    browser.until(sizes, "images")
    browser.screenshot("dashboard_images")


def test_the_table_of_examples_is_a_table(server, browser):
    browser.open(f"{server.url}#text&tagFilter=examples")
    cells = """
        const cells = all('td').map(cell => cell.innerText.trim()).filter(text => text);
        return cells.length >= 32 ? cells : null;
    """
    shown = browser.until(cells, "the cells of a table")
    assert set(shown) >= set(KINDS)
    browser.screenshot("dashboard_text")


@pytest.mark.parametrize("name", ["histograms", "distributions"])
def test_histograms_of_weights_and_of_the_task_are_drawn(server, browser, name):
    browser.open(f"{server.url}#{name}")
    drawn = """
        const areas = all('path').filter(path => (path.getAttribute('d') ?? '').length > 60);
        const wide = areas.filter(path => path.getBoundingClientRect().width > 100
            && path.checkVisibility({opacityProperty: true, visibilityProperty: true}));
        return all('*').some(e => e.innerText?.includes('eval/surety')) && wide.length >= 8;
    """
    browser.until(drawn, name)
    browser.screenshot(f"dashboard_{name}")


@pytest.mark.parametrize(("name", "mark"), [("graphs", "g.node"), ("hparams", "vaadin-grid")])
def test_a_dashboard_is_drawn(server, browser, name, mark):
    browser.open(f"{server.url}#{name}")
    browser.until(f"return all('{mark}').length", name)
    browser.screenshot(f"dashboard_{name}")


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard_plugin_profile") is None,
    reason="TensorBoard's profile plugin is not installed: pip install 'lingo-tf[profile]'",
)
def test_the_overview_of_a_profile_has_the_time_of_each_step(server, browser):
    browser.open(f"{server.url}#profile")
    overview = """
        const page = all('iframe').map(frame => frame.contentDocument?.body?.innerText ?? '');
        return page.find(text => text.match(/Step Time/i)) ?? null;
    """
    text = browser.until(overview, "the overview")
    browser.screenshot("dashboard_profile")
    assert "No step marker" not in text
    found = re.search(r"Average Step\s+Time.*?lower is better\.\s*([\d.]+) ms", text, re.DOTALL)
    assert found, text
    assert float(found[1]) > 0
