"""What all decodings have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.prompt import Prompt
from lingo.decode import Beam, Sampling
from lingo.decode.decoding import forced_tokens
from lingo.decode.settings import decoding_of
from lingo.decode.text import prompt_batch


def test_what_a_longer_prompt_has_is_forced_then_all_choose() -> None:
    prompts = [Prompt(np.int32(ids)) for ids in ([2, 5], [2, 3, 4, 6, 6], [2, 6, 3])]
    batch = prompt_batch(prompts, rows=[0, 1, 2], end_id=1)
    batch = {name: tf.constant(value) for name, value in batch.items()}
    expected = [[-1] * 5, [4, 6, 6, -1, -1], [3, -1, -1, -1, -1]]
    assert forced_tokens(batch, Beam.params(max_tokens=2).build()).numpy().tolist() == expected


def test_settings_of_a_beam_make_a_beam() -> None:
    search = decoding_of(num_beams=3, max_tokens=5, temperature=None)
    assert (search.cls, search.num_beams, search.max_tokens) == (Beam, 3, 5)
    sampling = decoding_of(num_beams=None, temperature=0.5)
    assert (sampling.cls, sampling.temperature, sampling.max_tokens) == (Sampling, 0.5, 200)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length_penalty": 0.6}, r"length_penalty=0\.6 is for beam search: set num_beams, too"),
        (
            {"num_beams": 4, "top_k": 3},
            "top_k=3 says how tokens are drawn, but num_beams=4 searches and draws nothing",
        ),
    ],
)
def test_settings_of_both_kinds_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        decoding_of(**settings)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Beam.params(num_beams=0), "num_beams=0 is not positive"),
        (Beam.params(num_beams=2, num_samples=3), "=3 is more than num_beams=2.*raise num_b"),
        (Beam.params(length_penalty=-0.1), r"length_penalty=-0\.1 is negative"),
        (Beam.params(length_penalty=11.0), r"length_penalty=11\.0 is more than 10"),
        (Sampling.params(max_tokens=0), "max_tokens=0 is not positive"),
        (Sampling.params(num_samples=0), "num_samples=0 is not positive"),
        (Sampling.params(top_k=0), "top_k=0 is not positive"),
        (Sampling.params(temperature=-0.5), r"=-0\.5 is negative; 0 takes the likeliest"),
        (Sampling.params(top_p=0.0), r"top_p=0\.0 is not in \(0, 1\]"),
        (Sampling.params(top_p=1.5), r"top_p=1\.5 is not in \(0, 1\]"),
    ],
)
def test_settings_that_make_no_sense_are_refused(params: Params, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        params.build()
