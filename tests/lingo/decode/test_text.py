"""Texts to arrays and back."""

from __future__ import annotations

import numpy as np

from lingo.data.prompt import Prompt
from lingo.data.tokenizer import ByteTokenizer
from lingo.decode import Beam, Sampling
from lingo.decode.text import continuations, prompt_batch

BYTES = ByteTokenizer.params().build()
START, END = BYTES.start_id, BYTES.end_id


def decoded(prompts: list[str], added: list[list[int]], size: int) -> list:
    """Continues prompts, [1 sample each], by given ids."""
    ids = [np.append(START, BYTES.encode(prompt)) for prompt in prompts]
    common, longest = min(map(len, ids)), max(map(len, ids))
    tokens = np.full([len(ids), 1, longest - common + size], END, np.int32)
    for row, prompt, new in zip(tokens, ids, added, strict=True):
        rest = [*prompt[common:], *new]
        row[0, : len(rest)] = rest
    found = {"tokens": tokens, "log_probs": -np.arange(tokens.size).reshape(tokens.shape) * 1.0}
    sampling = Sampling.params(max_tokens=size).build()
    return continuations(BYTES, [Prompt(tokens) for tokens in ids], found, sampling)


def test_prompts_are_split_after_what_the_shortest_has() -> None:
    batch = prompt_batch([Prompt(np.int32(p)) for p in ([2, 5, 6], [2, 7])], rows=[4, 9], end_id=1)
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
    assert ended.score == -3.0
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


def test_an_answer_is_a_text_by_itself() -> None:
    prompt = Prompt(np.int32([START, *"né".encode()]), is_prefix=True, is_answered=True)
    found = {"tokens": np.int32([[[100, END]]]), "log_probs": np.zeros([1, 1, 2])}
    ((text,),) = continuations(BYTES, [prompt], found, Sampling.params(max_tokens=2).build())
    assert text.text == "a"


def test_a_text_that_no_search_found_is_left_out() -> None:
    found = {"tokens": np.int32([[[100], [END]]]), "log_probs": np.array([[[-1.0], [-np.inf]]])}
    search = Beam.params(max_tokens=1, num_samples=2).build()
    (texts,) = continuations(BYTES, [Prompt(np.int32([START]))], found, search)
    assert [text.text for text in texts] == ["a"]


def test_prefixes_are_seen_at_once_and_sources_filled_up_with_padding() -> None:
    prompts = [
        Prompt(np.int32([START]), source=np.int32(ids), is_prefix=True)
        for ids in ([7, 8, 1], [9, 1])
    ]
    batch = prompt_batch(prompts, rows=[0, 1], end_id=END)
    np.testing.assert_array_equal(batch["prefix_seen"], np.ones([2, 1], bool))
    assert batch["source_tokens"].tolist() == [[7, 8, 1], [9, 1, 0]]
    assert batch["source_segments"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["source_positions"].tolist() == [[0, 1, 2], [0, 1, 0]]
    assert (batch["prefix"].tolist(), batch["rest"].shape) == ([[START], [START]], (2, 0))
