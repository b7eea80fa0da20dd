"""A text is split at a random place: what is before it is given, what is behind it predicted."""

import collections

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.objectives.prefix_text import PrefixText
from lingo.data.record_source import TextFiles
from lingo.data.text_input import TextInput
from tests.lingo.data.documents import random_letters

LENGTH = 10


@pytest.fixture
def data(tmp_path):
    return random_letters(tmp_path, 57, 3, 120)


def prefixes(data, **fields):
    values = {"source": TextFiles.params(pattern=f"{data}/*.txt"), "batch_size": 2}
    return PrefixText.params(**values | {"length": LENGTH} | fields).build()


def texts(data, numbers):
    source = TextFiles.params(pattern=f"{data}/*.txt")
    plain = TextInput.params(source=source, batch_size=2, length=LENGTH).build().examples(numbers)
    return [t[s > 0].tolist() for t, s in zip(plain["targets"], plain["segments"], strict=True)]


def test_the_two_parts_are_the_text(data):
    input = prefixes(data)
    numbers = np.arange(2 * input.num_examples())
    for number, wanted in zip(numbers.tolist(), texts(data, numbers), strict=True):
        row = input.row(number)
        ((source, target),) = row.pairs
        assert [*source[:-1], *target] == wanted
        assert source[-1] == input.tokenizer.end_id
        assert len(source) > 1
        assert len(target) > 0
        assert row.num_bytes == (target >= 3).sum()


def test_a_decoder_alone_reads_the_text_and_is_scored_behind_the_split(data):
    input = prefixes(data, form="decoder")
    numbers = np.arange(input.num_examples())
    batch = input.examples(numbers)
    for i, wanted in enumerate(texts(data, numbers)):
        here = batch["segments"][i] > 0
        assert batch["targets"][i][here].tolist() == wanted
        assert batch["tokens"][i][here].tolist() == [input.tokenizer.start_id, *wanted[:-1]]
        given = int(batch["prefix"][i].sum()) - 1  # the start is shown, too
        weights = [0.0] * given + [1.0] * (len(wanted) - given)
        assert batch["target_weights"][i][here].tolist() == weights
        assert batch["prefix"][i].tolist() == [j <= given for j in range(LENGTH)]


def test_every_place_is_equally_likely(data):
    input = prefixes(data, shuffle=False)
    numbers = (n * input.num_examples() for n in range(900))
    found = collections.Counter(len(input.row(n).pairs[0].source) - 1 for n in numbers)
    assert sorted(found) == list(range(1, LENGTH))
    assert max(abs(n - 100) for n in found.values()) < 50


def test_a_text_that_cannot_be_split_is_refused(data):
    with pytest.raises(ParamError, match="length=1 has no place to split a text at"):
        prefixes(data, length=1)
