"""Texts to ids by TensorFlow's operations."""

from __future__ import annotations

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.data.tokenizer import ByteTokenizer
from lingo.export.text_signature import find_layout


@pytest.mark.parametrize("name", ["lm.source.tiny", "seq2seq.source.signatures"])
def test_ids_are_those_of_the_inputs_prompt(name: str) -> None:
    data = lingo.get(name).train_input.build()
    layout = find_layout(data)
    assert layout is not None
    texts = ["", "def ", "naïve"]
    tokens, lengths = layout.encode(tf.constant(texts))
    for text, ids, length in zip(texts, tokens.numpy(), lengths.numpy(), strict=True):
        prompt = data.prompt(text)
        expected = prompt.tokens if prompt.source is None else prompt.source
        np.testing.assert_array_equal(ids[:length], expected)
        assert not ids[length:].any()


def test_another_tokenizer_has_no_layout() -> None:
    class Upper(ByteTokenizer):
        def encode(self, text: str | bytes) -> np.ndarray:
            return super().encode(text.upper())

    params = lingo.get("lm.source.tiny")
    params.train_input.tokenizer = Upper.params()
    assert find_layout(params.train_input.build()) is None
