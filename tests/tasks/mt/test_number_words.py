"""Number words are those of the languages, and a split holds out whole numbers."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.index import open_index
from tasks.mt.number_words import (
    EnglishNumbers,
    NumberTexts,
    NumberWords,
    english,
    esperanto,
)


@pytest.mark.parametrize(
    ("number", "own", "other"),
    [
        (0, "zero", "nul"),
        (9, "nine", "naŭ"),
        (10, "ten", "dek"),
        (11, "eleven", "dek unu"),
        (20, "twenty", "dudek"),
        (99, "ninety-nine", "naŭdek naŭ"),
        (100, "one hundred", "cent"),
        (115, "one hundred fifteen", "cent dek kvin"),
        (1905, "one thousand nine hundred five", "mil naŭcent kvin"),
        (10_000, "ten thousand", "dek mil"),
        (
            321_468,
            "three hundred twenty-one thousand four hundred sixty-eight",
            "tricent dudek unu mil kvarcent sesdek ok",
        ),
    ],
)
def test_words_are_those_of_grammars(number, own, other):
    assert (english(number), esperanto(number)) == (own, other)


def test_each_number_has_words_of_its_own():
    numbers = [*range(2000), *range(998_000, 1_000_000)]
    assert len(set(map(english, numbers))) == len(set(map(esperanto, numbers))) == len(numbers)


def test_splits_share_no_number():
    texts = {}
    for split in ("all", "train", "heldout"):
        source = NumberWords.params(num_numbers=2000, split=split, heldout_fraction=0.1).build()
        index = open_index(source)
        texts[split] = set(index.texts(np.arange(len(index.units))))
    assert texts["train"] | texts["heldout"] == texts["all"]
    assert not texts["train"] & texts["heldout"]
    assert len(texts["all"]) == 2000
    assert 120 < len(texts["heldout"]) < 280


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_numbers": 1_000_001}, "there are only 1,000,000 numbers"),
        ({"num_numbers": 0}, "num_numbers=0 is not positive"),
        ({"heldout_fraction": 2.0}, "heldout_fraction=2.0 is not between 0 and 1"),
    ],
)
def test_settings_of_no_use_are_refused(fields, message):
    with pytest.raises(ParamError, match=message):
        NumberWords.params(**fields).build()


def test_texts_have_both_languages():
    index = open_index(NumberTexts.params(num_numbers=50).build())
    texts = index.texts(np.arange(len(index.units)))
    pairs = open_index(NumberWords.params(num_numbers=50).build())
    words = [text.decode().split("\x1e") for text in pairs.texts(np.arange(len(pairs.units)))]
    assert [text.decode() for text in texts] == [f"{own}. {other}." for own, other in words]
    one = open_index(EnglishNumbers.params(num_numbers=50).build())
    assert [t.decode() for t in one.texts(np.arange(50))] == [f"{own}." for own, _ in words]
