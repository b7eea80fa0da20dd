"""Schedules: published values, Keras' values, the same numbers on the host and in the program."""

import math

import keras
import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.optim.compound_schedule import (
    Cooldown,
    EpochWarmup,
    InEpochs,
    ProductSchedule,
    SequentialSchedule,
    SwitchedWarmup,
    Warmup,
    WarmupStableDecay,
)
from lingo.optim.run_length import KnownLength
from lingo.optim.schedule import (
    ConstantRate,
    Cosine,
    Cyclic,
    Exponential,
    InverseSqrt,
    LinearRate,
    Piecewise,
    Polynomial,
    Schedule,
    Transformer,
)

SCHEDULES = [
    ConstantRate.params(value=0.5),
    LinearRate.params(num_steps=7, start=0.25, end=2.0),
    Polynomial.params(num_steps=7, power=0.5, start=0.25, end=2.0),
    Cosine.params(num_steps=10, end=0.1),
    Exponential.params(num_steps=3, decay_rate=0.5),
    Exponential.params(num_steps=3, decay_rate=0.5, staircase=True),
    InverseSqrt.params(hold_steps=4),
    Transformer.params(model_dim=512, warmup_steps=8),
    Piecewise.params(boundaries=[3, 5], values=[1.0, 0.5, 0.25]),
    Piecewise.params(boundaries=[], values=[0.5]),
    Cyclic.params(half_cycle_steps=3, low=0.2),
    EpochWarmup.params(epochs=2.5, examples_per_epoch=10, batch_size=7, then=InverseSqrt),
    SwitchedWarmup.params(num_steps=6, start_step=-2, then=LinearRate.params(num_steps=9)),
    Cyclic.params(half_cycle_steps=3, mode="triangular2"),
    Cyclic.params(half_cycle_steps=3, mode="exp_range", gamma=0.9),
    Warmup.params(num_steps=4, then=Cosine.params(num_steps=10, end=0.1)),
    Warmup.params(num_steps=0, then=LinearRate.params(num_steps=3)),
    Warmup.params(num_steps=4, start=0.1, curve="exponential"),
    SequentialSchedule.params(parts=[(LinearRate, 3), (ConstantRate, 4), (Cosine, 5)]),
    ProductSchedule.params(
        schedules=[Warmup.params(num_steps=4), InverseSqrt.params(hold_steps=4)]
    ),
    Cooldown.params(num_steps=5, end_step=12),
    WarmupStableDecay.params(warmup_steps=3, stable_steps=4, decay_steps=5),
    WarmupStableDecay.params(warmup_steps=0, stable_steps=0, decay_steps=5, decay=Cosine),
]
IN_A_RUN = [InEpochs.params(schedule=Warmup.params(num_steps=1, then=Cosine))]
over_schedules = pytest.mark.parametrize("params", SCHEDULES, ids=lambda p: p.cls.__name__)


NUM_PERIODS = 400
PERIODS = (1, 3, 7, 10, 97, 365, 1009)
ENGINES = {
    "host": lambda schedule, steps: schedule(steps),
    "eager": lambda schedule, steps: schedule(tf.constant(steps)).numpy(),
    "graph": lambda schedule, steps: tf.function(schedule.__call__)(tf.constant(steps)).numpy(),
    "xla": lambda s, steps: tf.function(s.__call__, jit_compile=True)(tf.constant(steps)).numpy(),
}
over_engines = pytest.mark.parametrize("compute", ENGINES.values(), ids=list(ENGINES))
over_periods = pytest.mark.parametrize("period", PERIODS)


def around(period):
    """Returns the steps at and next to every boundary of many periods, int32."""
    boundaries = period * np.arange(1, NUM_PERIODS + 1)
    return np.unique([boundaries - 1, boundaries, boundaries + 1]).astype(np.int32)


@over_engines
@over_periods
def test_a_staircase_drops_at_every_boundary(compute, period):
    params = Exponential.params(num_steps=period, decay_rate=0.999, staircase=True)
    steps = around(period)
    expected = 0.999 ** (steps // period)
    np.testing.assert_allclose(compute(params.build(), steps), expected, rtol=1e-5)


@over_engines
@over_periods
def test_cycles_begin_at_every_boundary(compute, period):
    steps = around(2 * period)
    cycle, place = np.divmod(steps, 2 * period)
    height = 1.0 - np.abs(place / period - 1.0)
    for mode, peak in (("triangular", 1.0), ("triangular2", 0.5 ** cycle.astype(np.float64))):
        params = Cyclic.params(half_cycle_steps=period, mode=mode)
        found = compute(params.build(), steps)
        np.testing.assert_allclose(found, 0.1 + 0.9 * height * peak, rtol=1e-5, atol=1e-6)


@over_engines
@over_periods
def test_pieces_begin_after_every_boundary(compute, period):
    boundaries = [int(b) for b in period * np.arange(1, 41)]
    values = [1.0 / (i + 1) for i in range(41)]
    steps = around(period)
    expected = np.array(values)[np.searchsorted(boundaries, steps, side="left")]
    params = Piecewise.params(boundaries=boundaries, values=values)
    np.testing.assert_allclose(compute(params.build(), steps), expected, rtol=1e-6)


@over_engines
@over_periods
def test_parts_in_sequence_begin_at_their_first_steps(compute, period):
    parts = [(ConstantRate.params(value=1.0 + i), period) for i in range(40)]
    steps = around(period)
    expected = 1.0 + np.minimum(steps // period, 39)
    params = SequentialSchedule.params(parts=parts)
    np.testing.assert_allclose(compute(params.build(), steps), expected, rtol=1e-6)


@over_engines
def test_an_exponential_rise_grows_by_one_factor_each_step(compute):
    params = Warmup.params(num_steps=200, start=0.01, curve="exponential")
    steps = np.array([0, 1, 100, 200, 300])
    np.testing.assert_allclose(
        compute(params.build(), steps), [0.01, 0.01 ** (199 / 200), 0.1, 1.0, 1.0], rtol=1e-5
    )


def test_an_exponential_rise_does_not_begin_at_zero():
    with pytest.raises(ParamError, match="start=0: an exponential rise begins above 0"):
        Warmup.params(num_steps=5, curve="exponential").build()


@over_engines
@over_periods
def test_a_rise_ends_and_a_fall_ends_at_their_last_steps(compute, period):
    steps = around(period)
    for params, expected in (
        (Warmup.params(num_steps=period), np.minimum(steps / period, 1.0)),
        (LinearRate.params(num_steps=7 * period), np.maximum(1.0 - steps / (7 * period), 0.0)),
        (
            WarmupStableDecay.params(
                warmup_steps=period, stable_steps=period, decay_steps=2 * period
            ),
            np.interp(steps / period, [0, 1, 2, 4], [0, 1, 1, 0]),
        ),
    ):
        np.testing.assert_allclose(compute(params.build(), steps), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("left_out", "given"),
    [
        (Cosine.params(), Cosine.params(num_steps=20)),
        (LinearRate.params(), LinearRate.params(num_steps=20)),
        (Polynomial.params(), Polynomial.params(num_steps=20)),
        (Cooldown.params(num_steps=5), Cooldown.params(num_steps=5, end_step=20)),
        (
            WarmupStableDecay.params(warmup_steps=3, decay_steps=5),
            WarmupStableDecay.params(warmup_steps=3, stable_steps=12, decay_steps=5),
        ),
        (
            Warmup.params(num_steps=4, then=Cosine),
            Warmup.params(num_steps=4, then=Cosine.params(num_steps=16)),
        ),
        (
            EpochWarmup.params(epochs=2.5, examples_per_epoch=10, batch_size=7, then=Cosine),
            EpochWarmup.params(
                epochs=2.5,
                examples_per_epoch=10,
                batch_size=7,
                then=Cosine.params(num_steps=17),
            ),
        ),
        (
            SwitchedWarmup.params(num_steps=4, then=LinearRate),
            SwitchedWarmup.params(num_steps=4, then=LinearRate.params(num_steps=20)),
        ),
        (
            ProductSchedule.params(schedules=[InverseSqrt, Cooldown.params(num_steps=5)]),
            ProductSchedule.params(
                schedules=[InverseSqrt, Cooldown.params(num_steps=5, end_step=20)]
            ),
        ),
    ],
    ids=lambda params: params.cls.__name__,
)
def test_steps_that_are_left_out_end_with_the_run(left_out, given):
    schedule, steps = left_out.build(), np.arange(25)
    assert schedule.ends_with_run()
    schedule.end_with(KnownLength(20))
    np.testing.assert_array_equal(schedule(steps), given.build()(steps))
    assert not given.build().ends_with_run()


def test_parts_in_sequence_have_their_own_steps():
    schedule = SequentialSchedule.params(parts=[(LinearRate, 3), (Cosine, 5)]).build()
    assert not schedule.ends_with_run()


@over_engines
def test_a_schedule_in_epochs_is_the_same_schedule_with_other_steps(compute):
    epochs = InEpochs.params(
        schedule=SequentialSchedule.params(
            parts=[
                (Exponential.params(decay_rate=0.5, staircase=True, num_steps=1), 2),
                (Polynomial, 3),
            ]
        )
    ).build()
    epochs.end_with(KnownLength(steps=50, steps_per_epoch=10))
    steps = SequentialSchedule.params(
        parts=[
            (Exponential.params(decay_rate=0.5, staircase=True, num_steps=10), 20),
            (Polynomial, 30),
        ]
    ).build()
    np.testing.assert_allclose(
        compute(epochs, np.arange(60)), steps(np.arange(60)), rtol=1e-5, atol=1e-6
    )


def test_a_schedule_in_epochs_ends_with_the_run_between_two_epochs():
    schedule = InEpochs.params(schedule=Warmup.params(num_steps=1, then=LinearRate)).build()
    assert schedule.counts_epochs()
    assert schedule.ends_with_run()
    with pytest.raises(ParamError, match="there is no run whose epochs could be counted"):
        schedule(3)
    schedule.end_with(KnownLength(steps=25, steps_per_epoch=10))
    np.testing.assert_allclose(schedule(np.array([5, 10, 15, 20, 25])), [0.5, 1, 2 / 3, 1 / 3, 0])


@pytest.mark.parametrize("steps", [4, 12, 14])
def test_a_schedule_in_epochs_ends_with_a_run_whose_rest_is_no_whole_epoch(steps):
    schedule = InEpochs.params(schedule=LinearRate).build()
    schedule.end_with(KnownLength(steps=steps, steps_per_epoch=10))
    assert schedule(np.array([0, steps / 2, steps])).tolist() == pytest.approx(
        [1, 0.5, 0], abs=1e-6
    )
    schedule = InEpochs.params(schedule=Warmup.params(num_steps=1, then=LinearRate)).build()
    schedule.end_with(KnownLength(steps=10 + steps, steps_per_epoch=10))
    half = 10 + steps / 2
    assert schedule(np.array([10, half, 10 + steps])).tolist() == pytest.approx(
        [1, 0.5, 0], abs=1e-6
    )


def test_without_a_run_the_steps_are_wanted():
    with pytest.raises(ParamError, match="Cosine: num_steps is left out, and there is no run"):
        Cosine.params().build()(3)


def test_an_experiment_tells_its_schedules_how_long_it_is():
    cfg = lingo.get("tiny", "optimizer.schedule=Cooldown(num_steps=200)", "max_steps=800")
    rates = cfg.build().optimizer.rates(np.array([600, 700, 800]))["learning_rate"]
    np.testing.assert_allclose(rates, [0.002, 0.001, 0.0], atol=1e-9)


def classes(cls=Schedule):
    return {cls}.union(*(classes(sub) for sub in cls.__subclasses__()))


def test_every_schedule_class_has_a_case():
    found = {c for c in classes() if c.__module__.startswith("lingo.optim.")}
    assert found - {Schedule} == {params.cls for params in SCHEDULES + IN_A_RUN}


def test_the_transformer_schedule_has_the_published_values():
    schedule = Transformer.params(model_dim=512, warmup_steps=4000).build()
    values = [schedule(step) for step in (0, 100, 4000, 10000)]
    np.testing.assert_allclose(
        values, [1.74693e-07, 1.7644e-05, 6.98684e-04, 4.4192e-04], rtol=1e-5
    )


def test_the_transformer_schedule_of_mlperf_counts_from_zero():
    """lr d^-0.5 min(1, t / w) / sqrt(max(t, w)), t from 0, as in the reference of MLPerf."""
    schedule = Transformer.params(model_dim=1024, warmup_steps=831, first_step=0).build()
    steps = np.array([0, 1, 400, 831, 5000])
    expected = 1024**-0.5 * np.minimum(1, steps / 831) / np.sqrt(np.maximum(steps, 831))
    np.testing.assert_allclose(schedule(steps), expected, rtol=1e-6)
    np.testing.assert_allclose(schedule(tf.constant(steps)), expected, rtol=1e-6)


def test_large_batches_of_mlperf_warm_up_by_epochs():
    """MLPerf training 0.6, ResNet-50 with LARS: 32,768 images a step, 31.2, 25 epochs."""
    rate, train_steps, warmup_steps = 31.2, 2983, 977
    fall = Polynomial.params(num_steps=train_steps - warmup_steps + 1, end=1e-4 / rate)
    schedule = EpochWarmup.params(
        epochs=25.0, examples_per_epoch=1_281_167, batch_size=32_768, then=fall
    ).build()
    found = rate * schedule(np.array([100, 977, 1500, 2983])).astype(np.float64)
    np.testing.assert_allclose(found, [3.19197, 31.185545, 17.058027, 1.077457e-4], rtol=1e-5)


def test_bert_of_mlperf_jumps_at_the_end_of_its_warm_up():
    """Google's entry of round 0.7: (t + 76) / 287 while that is below 1, then 1 - t / 560."""
    fall = LinearRate.params(num_steps=560)
    schedule = SwitchedWarmup.params(num_steps=287, start_step=-76, then=fall).build()
    found = 0.00288293 * schedule(np.array([0, 100, 210, 211, 400])).astype(np.float64)
    expected = [7.634240e-4, 1.767929e-3, 2.872885e-3, 1.796683e-3, 8.236943e-4]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["triangular", "triangular2", "exp_range"])
def test_cycles_are_those_of_the_paper(mode):
    low, high, size, gamma = 0.001, 0.006, 5, 0.97
    schedule = Cyclic.params(
        half_cycle_steps=size, low=low / high, mode=mode, gamma=gamma if mode == "exp_range" else 1
    ).build()
    for step in range(40):
        cycle = math.floor(1 + step / (2 * size))
        height = max(0.0, 1 - abs(step / size - 2 * cycle + 1))
        shrunk = {"triangular": 1.0, "triangular2": 2.0 ** (1 - cycle), "exp_range": gamma**step}
        expected = low + (high - low) * height * shrunk[mode]
        assert high * schedule(step) == pytest.approx(expected, rel=1e-5)


KERAS = keras.optimizers.schedules


@pytest.mark.parametrize(
    ("params", "oracle"),
    [
        (
            Polynomial.params(num_steps=9, power=0.7, end=0.1),
            KERAS.PolynomialDecay(1.0, 9, 0.1, power=0.7),
        ),
        (LinearRate.params(num_steps=9, end=0.1), KERAS.PolynomialDecay(1.0, 9, 0.1)),
        (Cosine.params(num_steps=9, end=0.1), KERAS.CosineDecay(1.0, 9, alpha=0.1)),
        (
            Warmup.params(num_steps=5, start=0.25, then=Cosine.params(num_steps=9, end=0.1)),
            KERAS.CosineDecay(0.25, 9, alpha=0.1, warmup_target=1.0, warmup_steps=5),
        ),
        (Exponential.params(num_steps=4, decay_rate=0.9), KERAS.ExponentialDecay(1.0, 4, 0.9)),
        (
            Exponential.params(num_steps=2.3, decay_rate=0.9, staircase=True),
            KERAS.ExponentialDecay(1.0, 2.3, 0.9, staircase=True),
        ),
        (
            Exponential.params(num_steps=4, decay_rate=0.9, staircase=True),
            KERAS.ExponentialDecay(1.0, 4, 0.9, staircase=True),
        ),
        (
            Piecewise.params(boundaries=[3, 9], values=[1.0, 0.5, 0.1]),
            KERAS.PiecewiseConstantDecay([3, 9], [1.0, 0.5, 0.1]),
        ),
        (
            SequentialSchedule.params(parts=[(Cosine, 5)] * 4),
            KERAS.CosineDecayRestarts(1.0, 5, t_mul=1.0),
        ),
    ],
    ids=lambda value: value.cls.__name__ if hasattr(value, "cls") else type(value).__name__,
)
def test_equals_keras_over_20_steps(params, oracle):
    schedule, expected = params.build(), [float(oracle(step)) for step in range(20)]
    np.testing.assert_allclose(schedule(np.arange(20)), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose([schedule(t) for t in range(20)], expected, rtol=1e-6, atol=1e-6)


@over_schedules
def test_host_eager_and_graph_agree(params):
    schedule = params.build()
    steps = np.arange(20)
    host = schedule(steps)
    assert host.dtype == np.float32
    np.testing.assert_allclose(schedule(tf.constant(steps)), host, rtol=1e-6, atol=1e-7)
    graph = tf.function(lambda step: schedule(step), autograph=False)
    assert graph(tf.constant(3)).dtype == tf.float32
    np.testing.assert_allclose(
        [graph(tf.constant(t)) for t in (0, 3, 19)], host[[0, 3, 19]], rtol=1e-6
    )


# ---- made of other schedules


def test_each_part_begins_at_its_own_step_0_and_the_last_goes_on():
    fall = LinearRate.params(num_steps=2, start=4.0, end=2.0)
    schedule = SequentialSchedule.params(
        parts=[(fall, 3), (ConstantRate.params(value=8.0), 1), (fall, 1)]
    )
    assert schedule.build()(np.arange(8)).tolist() == [4.0, 3.0, 2.0, 8.0, 4.0, 3.0, 2.0, 2.0]


def test_a_part_lasts_as_long_as_it_takes_unless_it_says_otherwise():
    schedule = SequentialSchedule.params(
        parts=[(LinearRate.params(start=0.0, end=1.0), 2), (LinearRate.params(num_steps=4), 2)]
    ).build()
    assert schedule(np.arange(6)).tolist() == [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]


def test_parts_are_set_from_the_command_line():
    schedule = (
        "optimizer.schedule=SequentialSchedule(parts=[[LinearRate(start=0,end=1),10],[Cosine,90]])"
    )
    params = lingo.get("lm.source.tiny", schedule, "optimizer.schedule.parts[0][1]=20")
    built = params.optimizer.schedule.build()
    expected = [0.0, 0.5, 1.0, 0.5, 0.0]
    np.testing.assert_allclose(built(np.array([0, 10, 20, 65, 110])), expected, atol=1e-6)


# ---- what is refused


@pytest.mark.parametrize(
    ("params", "wrong"),
    [
        (ConstantRate.params(), {"value": -1.0}),
        (Cosine.params(num_steps=1), {"num_steps": 0, "end": -0.1}),
        (LinearRate.params(num_steps=1), {"num_steps": -1, "start": -1.0, "end": -1.0}),
        (Polynomial.params(num_steps=1), {"num_steps": 0, "power": 0.0, "end": -1.0}),
        (Exponential.params(num_steps=1, decay_rate=0.5), {"num_steps": 0, "decay_rate": 0.0}),
        (InverseSqrt.params(), {"hold_steps": 0}),
        (Transformer.params(model_dim=8), {"warmup_steps": 0, "model_dim": 0}),
        (Piecewise.params(boundaries=[1], values=[1.0, 0.5]), {"values": [1.0, -1.0]}),
        (Piecewise.params(boundaries=[1], values=[1.0, 0.5]), {"boundaries": [-1]}),
        (Cyclic.params(half_cycle_steps=1), {"half_cycle_steps": 0, "low": -1.0}),
        (
            EpochWarmup.params(epochs=1.0, examples_per_epoch=1, batch_size=1),
            {"epochs": 0.0, "examples_per_epoch": 0, "batch_size": -1},
        ),
        (Warmup.params(num_steps=1), {"num_steps": -1, "start": -1.0}),
        (SwitchedWarmup.params(num_steps=1), {"num_steps": 0}),
        (
            WarmupStableDecay.params(warmup_steps=0, stable_steps=0, decay_steps=1),
            {"warmup_steps": -1, "stable_steps": -1, "decay_steps": 0},
        ),
    ],
    ids=lambda value: getattr(getattr(value, "cls", None), "__name__", ""),
)
def test_numbers_out_of_range_are_refused(params, wrong):
    for field, value in wrong.items():
        with pytest.raises(ParamError, match=f"{field}=.* is (negative|not positive)"):
            params.copy().set(**{field: value}).build()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (ConstantRate.params(value=1e39), r"value=1e\+39 is not finite in float32"),
        (Piecewise.params(boundaries=[1], values=[1.0, 1e39]), "values=.* is not finite"),
        (Piecewise.params(boundaries=[2], values=[1.0]), "1 values for 1 boundaries"),
        (Piecewise.params(boundaries=[2, 2], values=[1.0] * 3), r"\[2, 2\] do not rise"),
        (Cyclic.params(half_cycle_steps=1, gamma=0.9), "gamma=0.9 needs mode='exp_range'"),
        (Cyclic.params(half_cycle_steps=1, mode="exp_range", gamma=2.0), "gamma=2.0 is above 1"),
        (SwitchedWarmup.params(num_steps=4, start_step=-4), "start_step=-4 is not between"),
        (SwitchedWarmup.params(num_steps=4, start_step=1), "start_step=1 is not between"),
        (SequentialSchedule.params(parts=[]), "parts is empty"),
        (SequentialSchedule.params(parts=[(Cosine, 3), (Cosine, 0)]), r"parts\[1\] lasts 0 steps"),
        (
            SequentialSchedule.params(parts=[(Transformer, 3)]),
            r"parts\[0\]\[0\]: Transformer needs model_dim",
        ),
        (ProductSchedule.params(schedules=[]), "schedules is empty"),
    ],
)
def test_values_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ParamError, match=message):
        params.build()
