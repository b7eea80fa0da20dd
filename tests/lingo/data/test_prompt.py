"""How inputs lay out a text that a model is given."""

import numpy as np

from lingo.data.derived_input import RepeatedInput
from lingo.data.document_input import TextInput
from lingo.data.mixture import Mixture
from lingo.data.objectives.denoising import PrefixText, SpanCorruption
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.pairs.pair_input import PairInput
from lingo.data.prompt import Prompt
from lingo.datasets import Signatures

PAD, END, START = 0, 1, 2
A, B = 100, 101  # ids of "a" and "b"
TEXT = TextInput.params(batch_size=1, length=8)
PAIRS = PairInput.params(source=Signatures, batch_size=1, source_length=8, target_length=8)


def laid_out(params, text):
    prompt = params.build().prompt(text)
    source = None if prompt.source is None else prompt.source.tolist()
    return prompt.tokens.tolist(), source, prompt.is_prefix, prompt.is_answered


def test_a_text_is_a_beginning_to_a_language_model():
    assert laid_out(TEXT, "ab") == ([START, A, B], None, False, False)
    assert laid_out(TEXT, "") == ([START], None, False, False)


def test_the_source_of_a_pair_has_an_end_and_an_answer():
    assert laid_out(PAIRS, "ab") == ([START], [A, B, END], False, True)
    joined = PAIRS.copy().set(form="decoder")
    assert laid_out(joined, "ab") == ([START, A, B, END], None, True, True)


def test_the_beginning_of_a_text_that_is_a_prefix_goes_on():
    split = PrefixText.params(batch_size=1, length=8)
    assert laid_out(split, "ab") == ([START], [A, B, END], False, False)
    assert laid_out(split.set(form="decoder"), "ab") == ([START, A, B], None, True, False)


def test_what_is_gone_from_a_text_is_marked():
    spans, first = SpanCorruption.params(batch_size=1), SentinelTokenizer.params().build().sentinels
    marked = [A, int(first[0]), B, int(first[7]), END]
    assert laid_out(spans, "a<extra_id_0>b<extra_id_7>") == ([START], marked, False, True)


def test_an_input_around_another_lays_out_as_it_does():
    pairs = PairInput.params(source=Signatures, source_length=8, target_length=8)
    mixture = Mixture.params(batch_size=1, inputs={"one": pairs, "other": pairs.copy()})
    repeated = RepeatedInput.params(input=PAIRS)
    assert laid_out(mixture, "ab") == laid_out(repeated, "ab") == laid_out(PAIRS, "ab")


def test_positions_are_those_of_what_is_longer_of_source_and_answer():
    assert Prompt(np.int32([2, 5])).num_positions(4) == 5
    assert Prompt(np.int32([2]), source=np.int32([5] * 9)).num_positions(4) == 9
    assert Prompt(np.int32([2]), source=np.int32([5])).num_positions(4) == 4
