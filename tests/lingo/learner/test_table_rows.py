"""Sparse tables learn what whole tables learn, and a step touches only the rows of its batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import EmbeddingTables, Layer, Remat, Wrapper
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.learner.table_rows import RowGradients, sum_repeats
from lingo.learner.weight_noise import WeightNoise
from lingo.optim import Adagrad, Adam, ByPath, Frozen, Lamb, Momentum, RmsProp, Sgd
from lingo.optim.optimizer import Optimizer
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.replicated.simulated_torus import SimulatedTorus
from tasks.click.click_input import ClickInput
from tasks.click.model import Dlrm, Mlp
from tasks.click.task import ClickPrediction

SIZES, D, B, STEPS = (51, 3, 24, 30), 4, 16, 5
DATA = ClickInput.params(vocab_sizes=SIZES, num_numbers=3, batch_size=B).build()
TABLE = "model/tables/table_0"


def learner(optimizer: Params | None = None, *, wrap: Any = None, **tables: Any) -> Learner:
    held = EmbeddingTables.params(**tables)
    model = Dlrm.params(
        bottom=Mlp.params(output_dims=(8, D)),
        top=Mlp.params(output_dims=(8, 1)),
        tables=held if wrap is None else wrap.params(layer=held),
    )
    task = ClickPrediction.params(model=model, num_numbers=3, vocab_sizes=SIZES)
    rule = optimizer or Adagrad.params(learning_rate=0.1)
    return Learner(task.build(), rule.build(), specs=DATA.specs())


def train(
    one: Learner, runtime: Params | None = None, **changes: np.ndarray
) -> tuple[dict[str, Any], TrainState]:
    program = (runtime or Local.params()).build().start(one, initial_state(one))
    batches = [DATA.batch(step) for step in range(STEPS)]
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    return program.train(stacked | changes), program.state()


@pytest.mark.parametrize(
    ("optimizer", "tables"),
    [
        (Sgd.params(learning_rate=0.3), {}),
        (Adagrad.params(learning_rate=0.1, max_grad_norm=0.1), {"num_groups": 2}),
        (Adagrad.params(learning_rate=0.1, max_grad_value=0.01, max_weight_grad_norm=0.02), {}),
        (
            ByPath.params(
                learning_rate=0.1,
                groups={".*/table_.*": Adagrad, "(?!.*/table_).*": Adam.params(weight_decay=0.1)},
            ),
            {},
        ),
    ],
    ids=["sgd", "global norm, packed", "value and norm", "by path"],
)
def test_five_steps_are_those_of_dense_gradients(optimizer: Params, tables: Any):
    dense, expected = train(learner(optimizer, **tables))
    sparse, found = train(learner(optimizer, sparse_from=20, **tables))
    for tag in ("loss/total", "learner/grad_norm"):
        np.testing.assert_allclose(sparse["scalars"][tag], dense["scalars"][tag], 1e-6, 1e-7)
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)


def test_a_step_leaves_the_rows_that_it_did_not_look_up():
    one = learner(sparse_from=0)
    (_, after), before = train(one), initial_state(one)
    looked_up = np.zeros(SIZES[0], bool)
    for step in range(STEPS):
        looked_up[DATA.batch(step)["categories"][:, 0]] = True
    assert 0 < looked_up.sum() < SIZES[0]
    for old, new in (
        (before.weights[TABLE], after.weights[TABLE]),
        (before.slots[TABLE]["accumulator"], after.slots[TABLE]["accumulator"]),
    ):
        differs = (np.asarray(old) != np.asarray(new)).any(1)
        np.testing.assert_array_equal(differs, looked_up)


def test_a_step_that_is_not_finite_leaves_every_row():
    one, numbers = (
        learner(sparse_from=0),
        np.stack([DATA.batch(s)["numbers"] for s in range(STEPS)]),
    )
    numbers[1:] = np.nan
    report, state = train(one, numbers=numbers)
    assert (np.asarray(report["first_non_finite"]) >= 0).tolist() == [False] + [True] * 4
    first = {name: DATA.batch(0)[name][None] for name in DATA.batch(0)}
    program = Local.params().build().start(one, initial_state(one))
    program.train(first)
    np.testing.assert_array_equal(state.weights[TABLE], program.state().weights[TABLE])


def test_frozen_tables_stay():
    groups = {".*/table_.*": Frozen, "(?!.*/table_.*).*": Sgd}
    one = learner(ByPath.params(learning_rate=0.1, groups=groups), sparse_from=0)
    _, after = train(one)
    np.testing.assert_array_equal(
        after.weights[TABLE], np.asarray(initial_state(one).weights[TABLE])
    )


@pytest.mark.parametrize("ids", [[3, 1, 3, 0, 1, 3], [2, 2], [5]])
def test_gradients_of_the_same_row_are_added_up(ids: list[int]):
    values = np.random.default_rng(0).normal(size=[len(ids), D]).astype("f")
    rows, sums = sum_repeats(RowGradients(tf.constant(ids), tf.constant(values)))
    different = sorted(set(ids))
    expected = [values[np.array(ids) == i].sum(0) for i in different]
    np.testing.assert_allclose(sums[: len(different)], expected, rtol=1e-6)
    assert not sums[len(different) :].numpy().any()
    table = tf.zeros([6, D])
    written = rows.write(table, rows.read(table) - sums).numpy()
    np.testing.assert_allclose(written[different], -np.array(expected), rtol=1e-6)
    assert not np.delete(written, different, axis=0).any()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Momentum.params(learning_rate=0.1), "momentum=0.9 goes on moving rows"),
        (Adam.params(learning_rate=0.1), "Adam does not say skips_zeros"),
        (RmsProp.params(learning_rate=0.1), "RmsProp does not say skips_zeros"),
        (Lamb.params(learning_rate=0.1, weight_decay=0.0), "Lamb does not say skips_zeros"),
        (Sgd.params(learning_rate=0.1, weight_decay=0.1), "weight_decay=0.1 shrinks every row"),
        (Adagrad.params(learning_rate=0.1, ema_decay=0.9), "ema_decay and average_steps"),
        (
            ByPath.params(learning_rate=0.1, ema_decay=0.9, groups={".*": Sgd}),
            "ema_decay and average_steps",
        ),
        (ByPath.params(learning_rate=0.1, groups={".*": Adam}), "Adam does not say skips_zeros"),
    ],
)
def test_updates_of_every_row_are_refused(optimizer: Params, message: str):
    learner(optimizer).check()
    with pytest.raises(ParamError, match=f"table_0 is a sparse table.*{message}.*sparse_from"):
        learner(optimizer, sparse_from=10).check()


def test_noise_of_every_row_is_refused():
    one = learner(sparse_from=10)
    one._replace(
        weight_noise=WeightNoise.params(stddev=0.1, pattern="(?!.*/table_).*").build()
    ).check()
    with pytest.raises(ParamError, match=r"table_0 is a sparse table.*weight_noise\.pattern"):
        one._replace(weight_noise=WeightNoise.params(stddev=0.1).build()).check()


def test_subclasses_have_to_say_that_they_skip_zeros():
    class Own(Adagrad):
        pass

    rule: Optimizer = Own.params(learning_rate=0.1).build()
    one = learner(sparse_from=10)
    assert "Own does not say" in str(rule.dense_reason(one.weights()[TABLE]))


def test_accumulation_is_refused():
    with pytest.raises(ParamError, match="table_0 is a sparse table: accumulation_steps=2"):
        learner(sparse_from=10)._replace(accumulation_steps=2).check()


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (Replicated.params(shard_update=True, devices=["CPU:0"]), "shard_update=True updates"),
        (SimulatedTorus.params(shape=[2, 2]), "SimulatedTorus adds up whole gradients"),
    ],
)
def test_runtimes_that_split_or_add_up_whole_gradients_refuse(runtime: Params, message: str):
    runtime.build().check_learner(learner())
    with pytest.raises(ParamError, match=message):
        runtime.build().check_learner(learner(sparse_from=10))


def test_tables_in_a_layer_that_is_recomputed_are_refused():
    with pytest.raises(ParamError, match="table_0 is a sparse table, and is looked up inside"):
        train(learner(sparse_from=0, wrap=Remat))


class ReadsAll(Wrapper):
    """Tables that are also read whole."""

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        return self.layer(ids) + tf.reduce_mean(self.layer.table_0)


def test_tables_that_the_loss_also_reads_whole_are_refused():
    with pytest.raises(ParamError, match="table_0 is a sparse table, and the loss also reads all"):
        train(learner(sparse_from=0, wrap=ReadsAll))


class OneVector(Layer):
    def setup(self) -> None:
        self.w = self.weight("w", [3], axes=[None], sparse=True)


def test_only_tables_are_sparse():
    with pytest.raises(ParamError, match=r"sparse=True is for a table, \[V, D\], not for \(3,\)"):
        OneVector.params().build()
