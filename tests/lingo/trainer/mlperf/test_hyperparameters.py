"""Hyper-parameters in logs are the numbers of the experiment, in the units of the rules."""

import pytest

from lingo.config import registry
from lingo.optim import ConstantRate, Polynomial, ProductSchedule, SequentialSchedule, Warmup
from lingo.trainer.mlperf.hyperparameters import hyperparameters


def read(params, benchmark, ruleset="0.7.0"):
    found = hyperparameters(params.build(), benchmark, ruleset)
    return {key: entry.value for key, entry in found.items()}


def test_lars_is_logged_with_the_rate_at_its_end(settings):
    found = read(settings("resnet"), "resnet")
    assert found == {
        "global_batch_size": 128,
        "opt_name": "lars",
        "opt_base_learning_rate": 31.2,
        "opt_learning_rate_warmup_epochs": 2.5,
        "model_bn_span": 32,
        "lars_epsilon": 0.0,
        "lars_opt_learning_rate_decay_steps": 100,
        "lars_opt_learning_rate_decay_poly_power": 2.0,
        "lars_opt_weight_decay": 1e-4,
        "lars_opt_base_learning_rate": 31.2,
        "lars_opt_end_learning_rate": 1e-4,
        "lars_opt_learning_rate_warmup_epochs": 2.5,
        "lars_opt_momentum": 0.9,
    }


def test_weight_decay_is_logged_as_a_part_of_the_gradient(settings):
    """Decoupled decay comes to that of the rules times 1 / (1 - momentum): 10 here."""
    entries = hyperparameters(settings("sgd").build(), "resnet", "0.6.0")
    assert entries["sgd_opt_weight_decay"] == (1e-4, {"decoupled": 1e-3})


def test_steps_are_logged_as_the_epochs_that_they_were_made_from(settings):
    """The rate falls at steps 11 + 22 and 11 + 45, of 11.43 in an epoch."""
    found = read(settings("sgd"), "resnet", "0.6.0")
    assert found["opt_learning_rate_warmup_epochs"] == 1.0
    assert found["opt_learning_rate_decay_boundary_epochs"] == [3.0, 5.0]


@pytest.mark.parametrize(
    ("num_steps", "epochs"), [(1, 0.0875), (2, 0.175), (10, 0.875), (11, 1.0), (13, 1.1375)]
)
def test_steps_that_are_no_whole_epochs_are_not_rounded(num_steps, epochs, settings):
    """1,463 examples are 11.43 batches of 128."""
    params = settings("sgd")
    params.optimizer.schedule.num_steps = num_steps
    found = read(params, "resnet", "0.6.0")
    assert found["opt_learning_rate_warmup_epochs"] == pytest.approx(epochs, rel=1e-3)


def test_a_rate_that_begins_at_zero_has_no_factor(settings):
    params = settings("gnmt")
    params.optimizer.schedule.then.values = [0.0, 0.5, 0.25, 0.125]
    assert "opt_learning_rate_decay_factor" not in read(params, "gnmt")


def test_a_rate_without_a_drop_has_no_factor(settings):
    params = settings("maskrcnn")
    params.optimizer.schedule.then.set(boundaries=[], values=[1.0])
    found = read(params, "maskrcnn")
    assert "opt_learning_rate_decay_factor" not in found
    assert found["opt_learning_rate_decay_steps"] == []


def test_a_schedule_of_parts_says_where_the_fall_begins(settings):
    found = read(settings("dlrm"), "dlrm")
    assert found["opt_learning_rate_warmup_steps"] == 2750
    assert found["lr_decay_start_steps"] == 49_315
    assert found["sgd_opt_learning_rate_decay_steps"] == 27_772


def test_steps_of_the_rate_are_logged_as_gnmt_names_them(settings):
    found = read(settings("gnmt"), "gnmt")
    names = ("remain_steps", "decay_interval", "decay_factor", "decay_steps", "warmup_steps")
    values = [found[f"opt_learning_rate_{name}"] for name in names]
    assert values == [300, 50, 0.5, 3, 200]


def test_lengths_say_what_happens_to_longer_texts(settings):
    params = settings("transformer")
    for too_long, method in (("cut", "truncate"), ("leave_out", "discard")):
        params.train_input.too_long = too_long
        entries = hyperparameters(params.build(), "transformer", "0.7.0")
        assert entries["max_sequence_length"] == (192, {"method": method})


def test_what_an_experiment_does_not_have_is_left_out():
    """A cosine has no boundaries and no power, and LeNet has no batch norm."""
    found = read(registry.get("image.lenet.digits").params, "resnet")
    assert found.keys() == {"global_batch_size", "opt_name", "opt_base_learning_rate"} | {
        "adam_opt_base_learning_rate",
        "adam_opt_weight_decay",
    }


@pytest.mark.parametrize("name", ["supercomputer", "multipod"])
def test_the_warm_up_of_the_published_recipes_is_whole_epochs(name):
    found = read(registry.get(f"image.resnet.{name}").params, "resnet")
    epochs = {"supercomputer": 25, "multipod": 31}
    assert found["lars_opt_learning_rate_warmup_epochs"] == epochs[name]
    assert found["lars_opt_end_learning_rate"] == 1e-4


def test_a_product_with_a_warm_up_has_its_steps_and_the_start_of_the_fall(settings):
    params = settings("dlrm")
    fall = SequentialSchedule.params(
        parts=[(ConstantRate, 40_000), (Polynomial.params(num_steps=20_000), 20_000)]
    )
    warmup = Warmup.params(num_steps=2000)
    params.optimizer.schedule = ProductSchedule.params(schedules=[warmup, fall])
    found = read(params, "dlrm")
    assert found["opt_learning_rate_warmup_steps"] == 2000
    assert found["lr_decay_start_steps"] == 40_000
