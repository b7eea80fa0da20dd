"""What all decodings have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.decoding import forced_tokens, num_positions
from lingo.decode.sampling import Sampling
from lingo.decode.settings import decoding_of
from lingo.decode.text import prompt_batch

PROMPTS = [[2, 5], [2, 3, 4, 6, 6], [2, 6, 3]]


def batch() -> dict[str, Any]:
    made = prompt_batch([Prompt(np.int32(p)) for p in PROMPTS], rows=[0, 1, 2], end_id=1)
    return {name: tf.constant(value) for name, value in made.items()}


def test_positions_are_those_of_the_longest_prompt_and_all_tokens_but_the_last() -> None:
    assert num_positions(batch(), Sampling.params(max_tokens=6).build()) == 5 + 6 - 1


def test_what_a_longer_prompt_has_is_forced_then_all_choose() -> None:
    expected = [[-1] * 5, [4, 6, 6, -1, -1], [3, -1, -1, -1, -1]]
    assert forced_tokens(batch(), Beam.params(max_tokens=2).build()).numpy().tolist() == expected


def test_settings_of_a_beam_make_a_beam() -> None:
    searched = decoding_of(num_beams=3, max_tokens=5, temperature=None)
    assert searched.cls is Beam
    assert (searched.num_beams, searched.max_tokens) == (3, 5)
    drawn = decoding_of(num_beams=None, temperature=0.5)
    assert drawn.cls is Sampling
    assert (drawn.temperature, drawn.max_tokens) == (0.5, 200)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length_penalty": 0.6}, r"length_penalty=0\.6 is of a beam search: set num_beams, too"),
        (
            {"num_beams": 4, "top_k": 3},
            "top_k=3 says how tokens are drawn, but num_beams=4 searches and draws nothing",
        ),
    ],
)
def test_settings_of_both_kinds_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        decoding_of(**settings)
