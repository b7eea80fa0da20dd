"""Recognizers of spoken digits: sizes, and arms that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.context import apply
from params.asr import voices
from tools.studies import speech

MOST_WEIGHTS = 600_000


def get(name: str) -> Params:
    return lingo.get(name)


def num_weights(cfg: Params) -> int:
    return sum(spec.size for spec in cfg.build().task.weights().values())


@pytest.mark.parametrize("arm", speech.ARMS)
def test_arms_are_small(arm: str) -> None:
    assert num_weights(get(speech.ARMS[arm].experiment)) <= MOST_WEIGHTS


def test_the_first_has_the_size_that_it_says() -> None:
    size = num_weights(get("asr.voices.digits"))
    assert f"{size:,} weights" in (voices.digits.__doc__ or "")


def test_masks_are_all_that_the_second_arm_changes() -> None:
    plain, masked = get("asr.voices.digits"), get("asr.voices.digits(masked=True)")
    assert plain.task.spec_augment is None
    masked.task.spec_augment = None
    assert masked == plain


def test_the_same_recordings_train_and_test_every_arm() -> None:
    inputs = [
        (cfg.train_input, cfg.eval_inputs)
        for cfg in (get(trial.experiment) for trial in speech.ARMS.values())
    ]
    assert all(one == inputs[0] for one in inputs)
    train, evals = inputs[0]
    assert {*evals} == {"voices", "flite"}
    assert (train.source.split, evals["voices"].source.split) == ("train", "heldout")
    assert train.source.heldout_fraction == evals["voices"].source.heldout_fraction
    assert evals["flite"].source.synthesizer == "flite" != train.source.synthesizer


def test_a_person_is_tested_on_request() -> None:
    assert "people" in get("asr.voices.digits(people=True)").eval_inputs


@pytest.mark.parametrize("causal", [False, True])
def test_only_the_causal_encoder_ignores_later_frames(causal: bool, draw: Callable) -> None:
    cfg = get(f"asr.voices.digits(causal={causal})").task.encoder
    cfg.stack.num_layers = 1
    encoder = cfg.build(dim=40)
    weights = {name: 0.1 * value for name, value in draw(encoder).items()}
    states = {name: 0.5 * tf.ones(spec.program_shape) for name, spec in encoder.states().items()}
    x = np.random.default_rng(0).normal(size=[1, 32, 40]).astype("f")
    later = np.where(np.arange(32)[None, :, None] < 16, x, 2 * x)
    first, second = (apply(encoder, weights, y, call={"state": states})[0] for y in (x, later))
    num_equal = 4  # frames 0, 4, 8, 12, whose windows end before frame 16
    is_equal = np.allclose(first[:, :num_equal], second[:, :num_equal], atol=1e-5)
    assert is_equal == causal
    assert not np.allclose(first[:, num_equal:], second[:, num_equal:], atol=1e-3)


def test_an_unknown_head_is_one_sentence() -> None:
    with pytest.raises(ParamError, match=r"head takes one of 'ctc', 'transducer', got"):
        get("asr.voices.digits(head='las')")
