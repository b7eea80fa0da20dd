"""Predicting clicks: the loss and metrics against NumPy and scikit-learn, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.layers import context
from lingo.learner.state import initial_state
from lingo.optim import Adam, Sgd
from lingo.trainer.evaluation.evaluate import evaluate
from tasks.click.click_input import ClickInput
from tasks.click.model import Dlrm, Mlp
from tasks.click.task import ClickPrediction

SIZES = (6, 5, 4)
MODEL = Dlrm.params(bottom=Mlp.params(output_dims=(16, 8)), top=Mlp.params(output_dims=(16, 1)))


def task(**fields: Any) -> ClickPrediction:
    known = {"model": MODEL, "num_numbers": 2, "vocab_sizes": SIZES}
    return ClickPrediction.params(**known | fields).build()


def batch(size: int = 50) -> dict[str, np.ndarray]:
    data = ClickInput.params(vocab_sizes=SIZES, num_numbers=2, batch_size=size).build().batch(0)
    return data | {"weights": np.where(np.arange(size) % 5, 1.0, 0.0).astype("f")}


def apply(one: ClickPrediction, draw: Any, method: str, arrays: dict[str, np.ndarray]) -> Any:
    tensors = {name: tf.constant(array) for name, array in arrays.items()}
    return context.apply(one, draw(one), tensors, method=method)[0]


@pytest.mark.parametrize("num_eval_examples", [0, 50])
def test_loss_and_metrics_are_those_of_scikit_learn(num_eval_examples, draw):
    one, arrays = task(num_eval_examples=num_eval_examples), batch()
    logits = apply(one, draw, "predict", arrays)["logits"].numpy().astype("d")
    kept = arrays["weights"] > 0
    labels, chances = arrays["labels"][kept], 1 / (1 + np.exp(-logits[kept]))
    expected = {
        "loss": sklearn.log_loss(labels, chances),
        "click_rate": labels.mean(),
        "predicted_rate": chances.mean(),
        "auc": sklearn.roc_auc_score(labels, chances),
        "planted_auc": sklearn.roc_auc_score(labels, arrays["planted_logits"][kept]),
    }
    states = apply(one, draw, "metrics", arrays)
    read = [one.read_metric(n, {k: v.numpy() for k, v in s.items()}) for n, s in states.items()]
    found = one.results({name: value for values in read for name, value in values.items()})
    for name in ("auc", "planted_auc"):
        error = 0.0 if num_eval_examples else found.pop(f"{name}_error")
        assert abs(found[name] - expected[name]) <= error + 1e-12
        found[name] = expected[name]
    assert found == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}
    loss = apply(one, draw, "loss", arrays)["cross_entropy"]
    assert float(loss) == pytest.approx(expected["loss"] * kept.sum(), rel=1e-5)


def test_a_batch_without_planted_logits_has_no_area_of_them(draw):
    arrays = batch()
    del arrays["planted_logits"]
    assert "planted" not in apply(task(), draw, "metrics", arrays)


def test_a_small_model_comes_close_to_the_planted_one():
    data = ClickInput.params(vocab_sizes=(3,), num_numbers=2, batch_size=512)
    experiment = Experiment.params(
        task=ClickPrediction.params(model=MODEL, num_eval_examples=2000),
        train_input=data,
        eval_inputs={"heldout": data.copy().set(split="heldout", num_clicks=2000, repeat=False)},
        optimizer=Adam.params(learning_rate=0.02),
    ).build()
    program = experiment.runtime.start(experiment.learner, initial_state(experiment.learner))
    batches = [experiment.train_input.batch(step) for step in range(150)]
    program.train({name: np.stack([b[name] for b in batches]) for name in batches[0]})
    results = evaluate(experiment.task, program, experiment.eval_inputs["heldout"])
    assert results["planted_auc"] > 0.7
    assert results["auc"] > results["planted_auc"] - 0.01


@pytest.mark.parametrize("fields", [{"vocab_sizes": (6, 5)}, {"num_numbers": 3}])
def test_an_input_of_other_features_is_refused(fields):
    offers = {"num_numbers": 2, "vocab_sizes": SIZES}
    with pytest.raises(ParamError, match=r"task\.\w+=.*, but the input has"):
        task().check_input(offers | fields)


@pytest.mark.parametrize(("name", "width"), [("numbers", 3), ("categories", 2)])
def test_a_batch_of_other_widths_is_refused(name, width, draw):
    arrays = batch()
    arrays[name] = np.zeros([50, width], arrays[name].dtype)
    with pytest.raises(ParamError, match=f"a batch has {name} of shape"):
        apply(task(), draw, "loss", arrays)


def test_an_evaluation_without_a_slot_for_each_example_is_refused():
    data = ClickInput.params(vocab_sizes=SIZES, num_numbers=2, num_clicks=8, batch_size=4)
    cfg = Experiment.params(
        task=ClickPrediction.params(model=MODEL, num_eval_examples=7),
        train_input=data,
        eval_inputs={"heldout": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=0.1),
    )
    with pytest.raises(ParamError, match="num_eval_examples=7, but an evaluation has 8"):
        cfg.build()
