"""What all decodings have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.decoding import forced_tokens
from lingo.decode.sampling import Sampling
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
