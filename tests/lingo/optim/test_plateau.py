"""When a plateau lowers the learning rate, against Keras's callback."""

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath
from lingo.optim.plateau import Plateau


def products_of_keras(scores, goal, **options):
    """Yields the learning rate, at first 1, after each evaluation by `ReduceLROnPlateau`."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    callback = keras.callbacks.ReduceLROnPlateau("loss", mode=goal, **options)
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, score in enumerate(scores):
        callback.on_epoch_end(epoch, {"loss": score})
        yield float(np.asarray(model.optimizer.learning_rate))


@pytest.mark.parametrize("goal", ["min", "max"])
@pytest.mark.parametrize(
    "options",
    [
        {"factor": 0.5, "patience": 1},
        {"factor": 0.5, "patience": 3, "cooldown": 1},
        {"factor": 0.1, "patience": 2, "cooldown": 4, "min_delta": 0.2},
        {"factor": 0.5, "patience": 1, "min_lr": 0.1},
    ],
    ids=str,
)
def test_the_factor_is_that_of_keras_after_every_evaluation(goal, options):
    scores = list(np.random.default_rng(0).normal(size=60).cumsum() / 4)
    own = {name.replace("min_lr", "min_factor"): value for name, value in options.items()}
    plateau = Plateau.params(**own).build()
    ours = [plateau.product(scores[: n + 1], goal) for n in range(60)]
    np.testing.assert_allclose(ours, list(products_of_keras(scores, goal, **options)), rtol=1e-6)
    assert min(ours) < 0.2
    falls = [plateau.falls(scores[: n + 1], goal) for n in range(60)]
    assert falls == [after < before for before, after in zip([1.0, *ours], ours, strict=False)]


def test_a_value_that_is_not_finite_is_no_improvement():
    plateau = Plateau.params(patience=2).build()
    assert plateau.product([None, None], "max") == 0.1
    assert plateau.product([None, 5.0, None], "max") == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"factor": 1.0}, {"factor": 0.0}, {"patience": 0}, {"cooldown": -1}, {"min_delta": -1.0}],
    ids=str,
)
def test_constants_out_of_range_are_refused(wrong):
    with pytest.raises(ParamError, match=next(iter(wrong))):
        Plateau.params(**wrong).build()


def test_one_group_has_no_plateau_of_its_own():
    groups = {".*": Adam.params(plateau=Plateau.params())}
    with pytest.raises(ParamError, match=r"plateau is for all weights: set it on ByPath"):
        ByPath.params(learning_rate=0.1, groups=groups).build()
