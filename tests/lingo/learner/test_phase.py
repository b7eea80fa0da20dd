"""Phases of a step equal a loop over optimizers written in NumPy, on every runtime."""

from typing import Any, ClassVar

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.dropout import Dropout
from lingo.layers.linear import Linear
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner import finite
from lingo.learner.loss_scale import SCALE
from lingo.learner.phase import Phase, count_path
from lingo.learner.state import Learner, TrainState, initial_state, load_arrays
from lingo.learner.step import train_step
from lingo.learner.task import Task
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.sgd import Sgd

B, D, K = 8, 3, 2
RATE, LARGE = 0.1, 0.3
TEACHER, STUDENT = Phase(weights=("teacher/.*",), loss="error"), Phase(("student/.*",), "distance")


class Pair(Task):
    """A teacher learns the targets, and a student learns what the teacher has just learned."""

    teacher: Linear = Linear.params(use_bias=False, dim=D, output_dim=K)
    student: Linear = Linear.params(use_bias=False, dim=D, output_dim=K)
    turns: ClassVar[dict[str, Phase]] = {"teacher": TEACHER, "student": STUDENT}

    def setup(self):
        self.teacher, self.student = self.p.teacher.build(), self.p.student.build()

    def phases(self):
        return self.turns

    def loss_denominators(self, batch):
        return {"examples": tf.reduce_sum(batch["weights"])}

    def error(self, batch):
        return {
            "error": self._sum(batch, tf.cast(self.teacher(batch["x"]), "float32") - batch["y"])
        }

    def distance(self, batch):
        difference = self.student(batch["x"]) - self.teacher(batch["x"])
        return {"distance": self._sum(batch, tf.cast(difference, "float32"))}

    def coefficients(self):
        return {"student/distance": 0.5}

    def _sum(self, batch, errors):
        return tf.reduce_sum(batch["weights"][:, None] * errors**2)


def pair(cls: type[Pair] = Pair, **turns: Phase) -> type[Pair]:
    """Returns a class like `cls` with other phases."""
    return type(cls.__name__, (cls,), {"turns": turns, "__module__": __name__})


def adam_and_sgd(**fields: Any) -> Any:
    groups = {"teacher/.*": Adam, "student/.*": Sgd.params(learning_rate=LARGE)}
    return ByPath.params(learning_rate=RATE, groups=groups, **fields)


def learner(task: type[Pair] = Pair, optimizer: Any = None, **kwargs: Any) -> Learner:
    one = Learner(task.params().build(), (optimizer or adam_and_sgd()).build(), seed=3, **kwargs)
    one.check()
    return one


def batches(num: int) -> list[dict[str, np.ndarray]]:
    draw = np.random.RandomState(0)
    return [
        {
            "x": draw.normal(size=(B, D)).astype("f"),
            "y": draw.normal(size=(B, K)).astype("f"),
            "weights": np.array([1, 1, 0, 1, 1, 1, 1, 1], "f"),
            "rows": np.arange(B, dtype="i"),
        }
        for i in range(num)
    ]


def begin(one: Learner) -> TrainState:
    return tf.nest.map_structure(tf.constant, load_arrays(initial_state(one)))


def steps(one: Learner, num: int, state: TrainState | None = None) -> list[tuple[TrainState, Any]]:
    step, done = tf.function(lambda s, b: train_step(one, s, b), autograph=False), []
    state = begin(one) if state is None else state
    for batch in batches(num)[int(state.step) :]:
        state, report = step(state, {k: tf.constant(v) for k, v in batch.items()})
        done.append(load_arrays((state, report)))
    return done


class Loop:
    """The same training, written in NumPy: Adam for the teacher, plain steps for the student."""

    def __init__(self, teacher: np.ndarray, student: np.ndarray) -> None:
        self.teacher, self.student = teacher.astype("d"), student.astype("d")
        self.m, self.v, self.t = 0.0 * self.teacher, 0.0 * self.teacher, 0

    def move_teacher(self, batch: dict[str, np.ndarray]) -> None:
        x, w = batch["x"], batch["weights"][:, None]
        g = 2 * x.T @ (w * (x @ self.teacher - batch["y"])) / w.sum()
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        self.teacher = self.teacher - RATE * m / (np.sqrt(v) + Adam.params().epsilon)

    def move_student(self, batch: dict[str, np.ndarray]) -> None:
        x, w = batch["x"], batch["weights"][:, None]
        g = x.T @ (w * (x @ self.student - x @ self.teacher)) / w.sum()  # the coefficient is 0.5
        self.student = self.student - LARGE * g


def assert_follows(one: Learner, *, teacher: Any, student: Any, num: int = 6) -> None:
    """Checks steps against `Loop`; `teacher` and `student` say at which steps each is moved."""
    first = begin(one).weights
    loop = Loop(first["teacher/w"].numpy(), first["student/w"].numpy())
    for i, (batch, (state, _)) in enumerate(zip(batches(num), steps(one, num), strict=True)):
        if teacher(i):
            loop.move_teacher(batch)
        if student(i):
            loop.move_student(batch)
        assert state.step == i + 1
        np.testing.assert_allclose(state.weights["teacher/w"], loop.teacher, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.weights["student/w"], loop.student, rtol=1e-4, atol=1e-5)


def test_the_second_phase_sees_the_weights_that_the_first_has_moved():
    assert_follows(learner(), teacher=lambda i: True, student=lambda i: True)


def test_a_phase_is_due_at_every_third_step_and_adam_counts_its_own_updates():
    one = learner(pair(teacher=TEACHER._replace(every_steps=3), student=STUDENT))
    assert_follows(one, teacher=lambda i: i % 3 == 0, student=lambda i: True)


def test_a_phase_begins_at_its_first_step():
    late = TEACHER._replace(every_steps=2, first_step=1)
    one = learner(pair(teacher=late, student=STUDENT._replace(first_step=4)))
    assert_follows(one, teacher=lambda i: i % 2 == 1, student=lambda i: i >= 4)


def test_accumulation_steps_change_nothing():
    phases = pair(teacher=TEACHER._replace(every_steps=2), student=STUDENT)
    whole, parts = (steps(learner(phases, accumulation_steps=n), 4)[-1] for n in (1, 4))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, parts)


def test_a_phase_that_is_not_due_changes_no_bit():
    optimizer = adam_and_sgd(ema_decay=0.9, max_grad_norm=0.1, weight_decay=0.1)
    one = learner(pair(teacher=TEACHER._replace(every_steps=3), student=STUDENT), optimizer)
    (before, _), (after, _) = steps(one, 2)
    for kind in ("weights", "slots"):
        old, new = getattr(before, kind), getattr(after, kind)
        tf.nest.map_structure(np.testing.assert_array_equal, old["teacher/w"], new["teacher/w"])
        assert not all(
            np.array_equal(a, b)
            for a, b in zip(
                *map(tf.nest.flatten, (old["student/w"], new["student/w"])), strict=True
            )
        )
    assert before.state[count_path("teacher")] == after.state[count_path("teacher")] == 1


def test_a_resume_between_the_steps_of_a_phase_is_exact():
    one = learner(pair(teacher=TEACHER._replace(every_steps=3), student=STUDENT))
    straight = steps(one, 6)
    resumed = steps(one, 6, tf.nest.map_structure(tf.constant, straight[3][0]))
    tf.nest.map_structure(np.testing.assert_array_equal, straight[4:], resumed)


def test_gradients_are_clipped_by_the_norm_of_the_phase():
    limit = 0.01
    one = learner(optimizer=Sgd.params(learning_rate=1.0, max_grad_norm=limit))
    before, (after, _) = begin(one), steps(one, 1)[0]
    for where, weight in after.weights.items():
        moved = np.linalg.norm(weight - before.weights[where].numpy())
        np.testing.assert_allclose(moved, limit, rtol=1e-4)


def test_the_terms_of_a_phase_are_means_over_the_steps_where_it_is_due():
    one = learner(pair(teacher=TEACHER._replace(every_steps=2), student=STUDENT))
    (_, first), (_, second) = steps(one, 2)
    assert first["metric_states"]["loss/teacher/error"]["weight"] == 1
    assert second["metric_states"]["loss/teacher/error"] == {"sum": 0, "weight": 0}
    distance = second["metric_states"]["loss/student/distance"]["sum"]
    assert second["scalars"]["loss/total"] == 0.5 * distance > 0
    norms = [first["metric_states"][f"learner/grad_norm/{k}"]["sum"] for k in one.task.phases()]
    np.testing.assert_allclose(first["scalars"]["learner/grad_norm"], np.hypot(*norms), rtol=1e-6)


def test_a_value_that_is_not_finite_skips_its_phase_alone_and_is_named():
    one = learner()
    state = begin(one)
    state.weights["student/w"] = tf.fill([D, K], np.inf)
    batch = {k: tf.constant(v) for k, v in batches(1)[0].items()}
    after, report = load_arrays(train_step(one, state, batch))
    assert np.isinf(after.weights["student/w"]).all()
    assert not np.array_equal(after.weights["teacher/w"], state.weights["teacher/w"])
    tags = [*report["scalars"], *report["metric_states"]]
    arrays = {k: v.numpy() for k, v in batch.items()}
    first = int(report["first_non_finite"])
    named = finite.name_first_non_finite(one, first, batch=arrays, scalars=tags)
    assert named == "loss/student/distance"


def test_a_gradient_beyond_float16_halves_the_loss_scale_and_skips_its_phase_alone():
    one = Learner(Pair.params(dtype="float16").build(), Sgd.params(learning_rate=RATE).build())
    state = begin(one)
    state.state[SCALE] = tf.constant(2.0**15)
    batch = {k: tf.constant(v) for k, v in batches(1)[0].items()}
    batch["y"] = batch["y"] * 1000.0  # of the teacher
    after, report = load_arrays(train_step(one, state, batch))
    np.testing.assert_array_equal(after.weights["teacher/w"], state.weights["teacher/w"])
    assert not np.array_equal(after.weights["student/w"], state.weights["student/w"])
    assert after.state[SCALE] == 2.0**14
    assert report["first_non_finite"] == -1


class Stacked(Pair):
    """The student has three layers in one tensor."""

    stack: Repeat = Repeat.params(
        layer=Linear.params(use_bias=False, dim=D, output_dim=D), num_layers=3
    )

    def setup(self):
        super().setup()
        self.stack = self.p.stack.build()


def test_a_phase_moves_all_layers_of_a_stack_or_none():
    def moved(pattern):
        student = STUDENT._replace(weights=("student/.*", pattern))
        rest = TEACHER._replace(weights=("teacher/.*", f"(?!{pattern})stack/.*"))
        return pair(Stacked, teacher=rest, student=student)

    sgd = Sgd.params(learning_rate=RATE)
    with pytest.raises(ParamError, match=r"only some of the layers .* stack/layers/\[0:3\]/w"):
        learner(moved("stack/layers/[01]/w"), sgd)


class Noisy(Pair):
    """Both phases draw a mask of the same layer."""

    dropout: Dropout = Dropout.params(rate=0.5)

    def coefficients(self):
        return {}

    def setup(self):
        super().setup()
        self.dropout = self.p.dropout.build()

    def error(self, batch):
        return super().error(batch | {"x": self.dropout(batch["x"])})

    def distance(self, batch):
        masked = self.dropout(tf.ones([B, D]))
        return {"distance": tf.reduce_sum(masked * self.student.w[:, 0])}


def test_each_phase_draws_its_own_random_numbers():
    one = learner(Noisy, Sgd.params(learning_rate=1.0))
    (state, _), (again, _) = (steps(one, 1)[0] for _ in range(2))
    tf.nest.map_structure(np.testing.assert_array_equal, state, again)
    swapped = pair(Noisy, teacher=TEACHER, other=STUDENT)
    renamed = steps(learner(swapped, Sgd.params(learning_rate=1.0)), 1)[0][0]
    assert not np.array_equal(state.weights["student/w"], renamed.weights["student/w"])
    np.testing.assert_array_equal(state.weights["teacher/w"], renamed.weights["teacher/w"])


class Normed(Pair):
    """The student's loss calls the teacher's batch norm, too."""

    norm: BatchNorm = BatchNorm.params(dim=K)
    turns: ClassVar[dict[str, Phase]] = {
        "teacher": TEACHER._replace(weights=("teacher/.*", "norm/.*")),
        "student": STUDENT,
    }

    def setup(self):
        super().setup()
        self.norm = self.p.norm.build()

    def error(self, batch):
        return {"error": self._sum(batch, self._normed(self.teacher, batch) - batch["y"])}

    def distance(self, batch):
        return {"distance": self._sum(batch, self._normed(self.student, batch) - batch["y"])}

    def _normed(self, linear, batch):
        return self.norm(linear(batch["x"])[:, None, None, :])[:, 0, 0, :]


def test_a_phase_moves_the_statistics_that_its_patterns_match_and_no_others():
    sgd = Sgd.params(learning_rate=RATE)
    one = learner(Normed, sgd)
    late = STUDENT._replace(first_step=9)
    without = learner(pair(Normed, teacher=Normed.turns["teacher"], student=late), sgd)
    both, alone = (steps(each, 1)[0][0] for each in (one, without))
    name = next(where for where in both.state if where.startswith("norm/"))
    np.testing.assert_array_equal(both.state[name], alone.state[name])
    assert not np.array_equal(both.state[name], begin(one).state[name])


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ({"teacher": TEACHER}, r"no phase moves 'student/w', which would never be trained"),
        ({"a": TEACHER, "b": STUDENT._replace(weights=(".*",))}, "'a' and 'b' move 'teacher/w'"),
        ({"a": TEACHER, "b": STUDENT._replace(weights=("pupil/.*",))}, "matches none of 2"),
        ({"a": TEACHER, "b": STUDENT._replace(weights="student/.*")}, "a tuple of regular"),
        ({"a": TEACHER, "b": STUDENT._replace(weights=("(",))}, "regular expression"),
        (
            {"a": TEACHER, "b": STUDENT._replace(every_steps=0)},
            "every_steps=0 is not an int",
        ),
        (
            {"a": TEACHER, "b": STUDENT._replace(first_step=-1)},
            "first_step=-1 is not an int",
        ),
        ({"a": TEACHER, "b/c": STUDENT}, "'b/c' names a phase: use letters"),
        ({"a": TEACHER, "b": STUDENT._replace(loss="distanse")}, "'b': Pair has no 'distanse'"),
        ({"a": TEACHER, "b": ("student/.*",)}, "a Phase of lingo is wanted"),
        ({"a": TEACHER, "b": STUDENT._replace(weights=(3,))}, "a tuple of regular"),
        (
            {"a": TEACHER, "b": STUDENT._replace(loss=abs)},
            "'b': loss=.*the name of a method of the task is wanted",
        ),
    ],
)
def test_phases_that_do_not_fit_the_weights_are_refused(turns, said):
    with pytest.raises(ParamError, match=rf"test_phase.py:\d+: .*{said}"):
        learner(pair(**turns))


def test_phases_that_are_no_dict_are_refused():
    cls = type("Pair", (Pair,), {"turns": [TEACHER], "__module__": __name__})
    with pytest.raises(
        ParamError, match=r"phases returned \[Phase.*a dict, {name: Phase}, is wanted"
    ):
        learner(cls)


def test_a_frozen_weight_needs_no_phase_and_a_phase_needs_a_weight_that_moves():
    frozen = ByPath.params(learning_rate=RATE, groups={"teacher/.*": Frozen, "student/.*": Sgd})
    (after, _), one = steps(learner(pair(student=STUDENT), frozen), 1)[0], learner()
    np.testing.assert_array_equal(after.weights["teacher/w"], begin(one).weights["teacher/w"])
    with pytest.raises(ParamError, match="the phase 'teacher' moves no weight"):
        learner(optimizer=frozen)


def test_a_coefficient_of_a_term_that_a_phase_does_not_have_is_refused():
    class Wrong(Pair):
        def coefficients(self):
            return {"student/distanse": 1.0}

    with pytest.raises(ParamError, match="distanse"):
        steps(learner(Wrong), 1)
