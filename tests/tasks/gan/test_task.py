"""A GAN is Goodfellow's loop, written in TensorFlow by hand."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.step import evaluate_batch, predict_batch, train_step
from lingo.ops import random
from lingo.optim.sgd import Sgd
from tasks.gan.task import Discriminator, Generator, ImageGan, join_images

B, Z, RATE = 6, 3, 0.5
SHAPE = (4, 4, 1)


def learner(rate=RATE, **fields):
    task = ImageGan.params(
        generator=Generator.params(num_filters=2),
        discriminator=Discriminator.params(num_filters=2),
        image_shape=SHAPE,
        latent_dim=Z,
        **fields,
    )
    one = Learner(task.build(), Sgd.params(learning_rate=rate).build(), seed=5)
    one.check()
    return one


def state_of(one):
    return tf.nest.map_structure(tf.constant, load_arrays(initial_state(one)))


def batch():
    draw = np.random.RandomState(0)
    arrays = {
        "images": draw.uniform(size=(B, *SHAPE)).astype("f"),
        "weights": np.array([1, 1, 1, 0, 1, 1], "f"),
        "rows": np.arange(B, dtype="i"),
        "example_id": np.arange(10, 10 + B, dtype="int64"),
    }
    return {name: tf.constant(array) for name, array in arrays.items()}


def draws(one, phase, name, size, step=0):
    key = random.fold(random.root_key(one.seed), step)
    key = random.fold(key, random.text_hash(phase))
    with context.enter_call(context.Call({}, key=key)):
        key = random.fold(one.task.random_key(name), tf.range(B))
    return random.uniform(key, size)


def by_hand(one, weights, examples):
    """One step of alternating gradient descent, as a loop in TensorFlow would have it."""
    task, w = one.task, {name: tf.Variable(value) for name, value in weights.items()}
    count = examples["weights"] / tf.reduce_sum(examples["weights"])
    real = 2 * examples["images"] - 1
    is_wasserstein = task.p.form == "wasserstein"

    def judge(images):
        return context.apply(task.discriminator, w, images)[0]

    def make(phase):
        return context.apply(task.generator, w, 2 * draws(one, phase, "latents", Z) - 1)[0]

    def descend(tape, loss, owner):
        own = [value for name, value in w.items() if name.startswith(owner)]
        for variable, gradient in zip(own, tape.gradient(loss, own), strict=True):
            variable.assign_sub(RATE * gradient)

    fake = make("discriminator")
    with tf.GradientTape() as tape:
        if is_wasserstein:
            share = draws(one, "discriminator", "shares", 1)[:, :, None, None]
            between = share * real + (1 - share) * fake
            with tf.GradientTape() as inner:
                inner.watch(between)
                value = judge(between)
            norm = tf.norm(tf.reshape(inner.gradient(value, between), [B, -1]), axis=1)
            losses = judge(fake) - judge(real) + 10 * (norm - 1) ** 2
        else:
            losses = -tf.math.log(tf.sigmoid(judge(real))) - tf.math.log(
                1 - tf.sigmoid(judge(fake))
            )
        loss = tf.reduce_sum(count * losses)
    descend(tape, loss, "discriminator")
    with tf.GradientTape() as tape:
        logits = judge(make("generator"))
        losses = -logits if is_wasserstein else -tf.math.log(tf.sigmoid(logits))
        loss = tf.reduce_sum(count * losses)
    descend(tape, loss, "generator")
    return {name: value.numpy() for name, value in w.items()}


@pytest.mark.parametrize("form", ["non_saturating", "wasserstein"])
def test_a_step_is_that_of_a_loop_written_by_hand(form):
    one = learner(form=form)
    state, examples = state_of(one), batch()
    expected = by_hand(one, state.weights, examples)
    after, report = tf.function(lambda s, b: train_step(one, s, b), autograph=False)(
        state, examples
    )
    for name, value in after.weights.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
        if name != "discriminator/head/b":  # a difference of logits does not depend on it
            assert not np.array_equal(value, state.weights[name]), name
    terms = {name for name in report["metric_states"] if name.startswith("loss/")}
    assert ("loss/discriminator/penalty" in terms) == (form == "wasserstein")


def test_the_generator_learns_at_every_fifth_step():
    one = learner(1e-3, form="wasserstein", generator_every_steps=5)
    step = tf.function(lambda s, b: train_step(one, s, b)[0], autograph=False)
    state, moved = state_of(one), []
    for _ in range(6):
        after = step(state, batch())
        moved.append(not np.array_equal(*(s.weights["generator/last/w"] for s in (state, after))))
        assert not np.array_equal(*(s.weights["discriminator/head/w"] for s in (state, after)))
        state = after
    assert moved == [True, False, False, False, False, True]


def test_samples_of_an_evaluation_depend_on_the_example_alone():
    one = learner()
    state, examples = state_of(one), batch()
    made = predict_batch(one.task, state.weights, {}, examples)
    assert made["samples"].shape == (B, *SHAPE)
    assert 0 <= np.min(made["samples"]) < np.max(made["samples"]) <= 1
    part = {name: value[2:4] for name, value in examples.items()}
    again = predict_batch(one.task, state.weights, {}, part | {"rows": tf.range(2)})
    np.testing.assert_allclose(again["samples"], made["samples"][2:4], atol=1e-6)
    assert not np.allclose(made["samples"][0], made["samples"][1])


def test_metrics_count_both_kinds_of_images_and_no_padding():
    one = learner()
    state, examples = state_of(one), batch()
    states = evaluate_batch(one.task, state.weights, {}, examples)
    logits = predict_batch(one.task, state.weights, {}, examples)["logits"].numpy()
    kept = examples["weights"].numpy() > 0
    assert states["accuracy/data"]["sum"] == np.sum(logits[kept] > 0)
    assert states["accuracy/samples"]["weight"] == kept.sum() == states["frechet"]["weight"]
    names = {"loss/discriminator/data", "loss/discriminator/samples", "loss/generator/samples"}
    assert names <= states.keys()


def test_images_of_another_shape_are_refused():
    with pytest.raises(ParamError, match=r"image_shape=\(6, 4, 1\): .* multiples of 4"):
        ImageGan.params(image_shape=(6, 4, 1)).build()
    with pytest.raises(ParamError, match=r"image_shape=\(3, 4, 1\): .* multiples of 2"):
        Generator.params(image_shape=(3, 4, 1), latent_dim=2).build()
    with pytest.raises(ParamError, match="the input has no images"):
        learner().task.check_input({"tokens": 3})


def test_pictures_are_pages_of_eight_images_a_row():
    images = np.arange(10)[:, None, None, None] * np.ones([10, 3, 2, 1]) / 10
    page = join_images(images)
    assert page.shape == (2 * (3 + 2) * 4, 8 * (2 + 2) * 4, 1)
    assert page[0, 16, 0] == 0.1
    assert page[20, 0, 0] == 0.8
    assert page[-1, -1, 0] == 1


def test_operations_of_a_step_are_those_of_all_calls_of_both_networks():
    specs = {"images": ((B, *SHAPE), "float32")}
    plain, critic = learner(), learner(form="wasserstein", generator_every_steps=5)
    made = plain.task.generator.flops((B, Z))
    judged = plain.task.discriminator.flops((B, *SHAPE))
    assert plain.task.batch_flops(specs) == made + judged
    assert plain.task.step_flops(specs) == 4 * made + 8 * judged
    assert critic.task.step_flops(specs) == made + 12 * judged + (3 * made + 2 * judged) // 5
