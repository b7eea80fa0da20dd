"""Texts to arrays and back."""

from __future__ import annotations

import numpy as np

from lingo.data.tokenizer import ByteTokenizer
from lingo.decode.sampling import Sampling
from lingo.decode.text import continuations, encode, prompt_batch

BYTES = ByteTokenizer.params().build()
START, END = BYTES.start_id, BYTES.end_id


def decoded(prompts: list[str], added: list[list[int]], size: int) -> list:
    """Continues prompts, [1 sample each], by given ids."""
    ids = [encode(BYTES, prompt) for prompt in prompts]
    common, longest = min(map(len, ids)), max(map(len, ids))
    tokens = np.full([len(ids), 1, longest - common + size], END, np.int32)
    for row, prompt, new in zip(tokens, ids, added, strict=True):
        rest = [*prompt[common:], *new]
        row[0, : len(rest)] = rest
    found = {"tokens": tokens, "log_probs": -np.arange(tokens.size).reshape(tokens.shape) * 1.0}
    return continuations(BYTES, ids, found, Sampling.params(max_tokens=size).build())


def test_a_model_reads_the_start_before_a_prompt() -> None:
    assert encode(BYTES, "ab").tolist() == [START, 100, 101]
    assert encode(BYTES, "").tolist() == [START]


def test_prompts_are_split_after_what_the_shortest_has() -> None:
    batch = prompt_batch([np.array([2, 5, 6]), np.array([2, 7])], rows=[4, 9], end_id=1)
    expected = {
        "prefix": [[2, 5], [2, 7]],
        "rest": [[6], [0]],
        "rest_length": [1, 0],
        "end_id": [1, 1],
        "rows": [4, 9],
    }
    assert {name: value.tolist() for name, value in batch.items()} == expected
    assert all(value.dtype in (np.int32, np.int64) for value in batch.values())


def test_a_text_is_cut_at_its_end_and_at_the_number_of_tokens() -> None:
    (ended,), (full,) = decoded(["ab", "c"], [[100, END], [101, 102, 103]], 3)
    assert (ended.text, ended.tokens, ended.is_ended) == ("a", [100], True)
    assert ended.log_probs == [-1.0, -2.0], "that of the end, too"
    assert (full.text, full.tokens, full.is_ended) == ("bcd", [101, 102, 103], False)
    assert len(full.log_probs) == 3


def test_a_letter_begun_by_the_prompt_is_ended_by_the_text() -> None:
    first, second = "é".encode()
    prompt = bytes([first]).decode(errors="surrogateescape")
    ((found,),) = decoded([prompt], [[second + 3, ord("t") + 3]], 2)
    assert found.text == "\ufffdt", "the letter is in two parts: neither is text"


def test_what_follows_a_whole_prompt_is_the_rest_of_the_text() -> None:
    ((found,),) = decoded(["né"], [BYTES.encode("e").tolist()], 1)
    assert found.text == "e"
