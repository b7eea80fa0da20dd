"""A question finds its fact, another question none; scores are those of BM25."""

from __future__ import annotations

import json
import math
import pathlib
import random

import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from tasks.dialog.tools.retrieval import MAX_CHARS, Bm25, Entry, Retrieval, tokenize
from tasks.dialog.tools.tool import Snippet

SPORT = "https://example.org/sport"
MOSCOW = "\u041c\u043e\u0441\u043a\u0432\u0430"
POPULATION = "\u043d\u0430\u0441\u0435\u043b\u0435\u043d\u0438\u0435"


class People(Retrieval):
    """A few facts in several scripts."""

    def entries(self) -> list[Entry]:
        return [
            Entry("Rafael Nadal", "Birthplace", "Manacor"),
            Entry("Rafael Nadal", "Age", "35", SPORT),
            Entry("Roger Federer", "Age", "40"),
            Entry("Eiffel Tower", "", "Work on the  tower\nbegan in January 1887."),
            Entry("\u6771\u4eac\u90fd", "\u4eba\u53e3", "1400\u4e07\u4eba"),
            Entry(
                MOSCOW,
                POPULATION,
                "13 000 000",
            ),
            Entry("French", "ISO code", "fr"),
            Entry("135", "square", "18225"),
        ]


PEOPLE = People.params().build()


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("How old is Rafael Nadal?", "Rafael Nadal / Age / 35"),
        ("Rafael Nadal's age", "Rafael Nadal / Age / 35"),
        ("Where was Nadal born?", "Rafael Nadal / Birthplace / Manacor"),
        (
            "When did work on the Eiffel Tower begin?",
            "Eiffel Tower / Work on the tower began in January 1887.",
        ),
        (
            "\u6771\u4eac\u306e\u4eba\u53e3\u306f?",
            "\u6771\u4eac\u90fd / \u4eba\u53e3 / 1400\u4e07\u4eba",
        ),
        (
            f"{MOSCOW.upper()} {POPULATION}",
            f"{MOSCOW} / {POPULATION} / 13 000 000",
        ),
    ],
)
def test_a_question_finds_its_fact(query: str, answer: str) -> None:
    assert PEOPLE(query) == [answer]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "what is the",
        "Who is Xavier?",
        "How old is Xavier Nadalson?",
        "135+7721",  # one of two numbers is not enough
        "hello in French",
        "Rafael Nadal " * (MAX_CHARS // 10),
    ],
)
def test_another_question_finds_nothing(query: str) -> None:
    assert PEOPLE(query) == []


def test_a_snippet_has_the_source_of_its_fact() -> None:
    (age,), (birthplace,) = PEOPLE("Nadal's age"), PEOPLE("Nadal's birthplace")
    assert isinstance(age, Snippet)
    assert isinstance(birthplace, Snippet)
    assert (age.source, birthplace.source) == (SPORT, "")


def test_as_many_facts_are_found_as_are_asked_for() -> None:
    tool = People.params(max_answers=2).build()
    assert len(tool("age")) == 2
    assert tool("Rafael Nadal")[1] == "Rafael Nadal / Age / 35"


def test_a_file_has_the_facts(tmp_path: pathlib.Path) -> None:
    rows = [
        {"title": "Rafael Nadal", "key": "Age", "value": "35", "source": SPORT},
        {"title": "Eiffel Tower", "value": "It is in Paris."},
    ]
    file = tmp_path / "facts.jsonl"
    file.write_text("\n\n".join(map(json.dumps, rows)))
    tool = Retrieval.params(file=str(file)).build()
    assert tool("How old is Rafael Nadal?") == ["Rafael Nadal / Age / 35"]
    assert tool("Eiffel Tower?") == ["Eiffel Tower / It is in Paris."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it has no facts"),
        ('{"title": "a", "value": "b"}\n{"title"', "line 2: not JSON"),
        ('{"title": "a"}', "line 1: 'value' is None, not a text"),
        ('\n{"title": " ", "value": "b"}', "line 2: 'title' is ' ', not a text"),
        ('{"title": "a", "value": 35}', "line 1: 'value' is 35, not a text"),
        ('{"title": "a", "value": "b", "key": []}', r"line 1: 'key' is \[\], not a text"),
        ("[1]", "line 1: it is an array, not an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: pathlib.Path, content: str, message: str) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=rf"facts\.jsonl.*{message}"):
        Retrieval.params(file=str(file)).build()


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read"):
        Retrieval.params(file=str(tmp_path / "none.jsonl")).build()


@pytest.mark.parametrize(("name", "value"), [("max_answers", 0), ("min_share", 1.0)])
def test_a_number_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ParamError, match=name):
        Retrieval.params(**{name: value}).build()


# ---- the index ---------------------------------------------------------------------------------

TEXTS = [
    "the cat sat on the mat",
    "the dog sat",
    "a cat and a dog",
    "birds fly over the mat the mat",
    "cat cat cat",
]


def scores(texts: list[str], words: list[str]) -> dict[int, float]:
    index = Bm25(texts)
    return dict(index.search([(word,) for word in words], limit=len(texts), min_share=0.0))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cat"], {4: 0.41863805, 2: 0.24089229, 0: 0.2222666}),
        (["the", "mat"], {3: 0.78309494, 0: 0.67576051, 1: 0.28939411}),
        (["dog", "cat"], {2: 0.63216323, 1: 0.47005033, 4: 0.41863805, 0: 0.2222666}),
    ],
)
def test_scores_are_those_of_bm25s(words: list[str], expected: dict[int, float]) -> None:
    """bm25s 0.3.16, method "lucene", k1=1.2, b=.75; in the order of the scores."""
    found = scores(TEXTS, words)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=1e-7)


def test_scores_are_those_of_the_formula_counted_slowly() -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefgh", k=draw.randint(0, 9))) for _ in range(50)]
    lists = [text.split() for text in texts]
    mean_length = sum(map(len, lists)) / len(lists)
    for words in (["a"], ["a", "b"], ["c", "h", "missing"]):
        expected = {}
        for number, words_of_text in enumerate(lists):
            total = 0.0
            for word in words:
                owners = sum(word in other for other in lists)
                idf = math.log(1 + (len(lists) - owners + 0.5) / (owners + 0.5))
                count = words_of_text.count(word)
                damping = 1.2 * (1 - 0.75 + 0.75 * len(words_of_text) / mean_length)
                total += idf * count / (count + damping)
            if total:
                expected[number] = total
        assert scores(texts, words) == pytest.approx(expected)


def test_a_text_with_more_of_the_terms_is_better_than_one_with_a_higher_score() -> None:
    texts = ["rare common", "rare rare rare", *["common"] * 20]
    found = scores(texts, ["rare", "common"])
    assert list(found)[:2] == [0, 1]
    assert found[1] > found[0]


def test_of_equal_texts_the_first_is_best() -> None:
    assert list(scores(["a b", "b c", "b c", "a b"], ["b"])) == [0, 1, 2, 3]


def test_a_text_counts_only_with_more_than_the_share_of_the_terms() -> None:
    index = Bm25(["a", "a b", "a b c"])
    terms = [("a",), ("b",), ("c",), ("missing",)]
    for min_share, expected in ((0.0, 3), (0.25, 2), (0.5, 1), (0.75, 0)):
        assert len(index.search(terms, limit=9, min_share=min_share)) == expected


def test_tokens_of_one_term_count_as_one() -> None:
    index = Bm25(["old age", "age", "x"])
    (first, _), (second, _) = index.search([("old", "age")], limit=9, min_share=0.9)
    assert (first, second) == (0, 1)


def test_an_index_of_nothing_finds_nothing() -> None:
    for texts in ([], ["", "..."]):
        assert Bm25(texts).search([("a",)], limit=1, min_share=0.0) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nadal's Z\u00dcRICH, 88 km\u00b2", ["nadal", "s", "z\u00fcrich", "88", "km2"]),
        ("\u6771\u4eac\u90fd", ["\u6771", "\u4eac", "\u90fd", "\u6771\u4eac", "\u4eac\u90fd"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", ["\u0939\u093f\u0928\u094d\u0926\u0940"]),
        (
            "\u043c\u043e\u0441\u043a\u0432\u0430 \u041c\u041e\u0421\u041a\u0412\u0410",
            ["\u043c\u043e\u0441\u043a\u0432\u0430"] * 2,
        ),
        ("\uff21\uff22", ["ab"]),  # of full width
        ("?!\0 \ud800", []),
    ],
)
def test_words_of_any_script_are_found(text: str, words: list[str]) -> None:
    assert tokenize(text) == words
