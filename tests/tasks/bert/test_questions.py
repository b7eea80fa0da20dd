"""Questions with spans: the sources, the rows of long texts, and the answers that are scored."""

import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest

import lingo
from lingo.config.params import ParamError, fields
from lingo.data.files import DataError
from lingo.data.record_source import TextFiles
from lingo.data.word_pieces import LearnedWordPieces
from lingo.datasets.docstrings import Docstrings
from tasks.bert.question_input import QuestionInput, best_span
from tasks.bert.questions import DocstringQuestions, SquadFiles, docstring_questions

pytest.importorskip("tokenizers", reason="needs pip install 'lingo-tf[tokenizers]'")

CONTEXT = "The river Größe is 120 km long. It rises near Höhr-Town, at 300 m; it ends in the sea."
QUESTIONS = [  # question, and answers with their first characters
    ("How long is the river?", [("120 km", 19), ("120 km long", 19)]),
    ("Where does it rise?", [("near Höhr-Town", 41)]),
    ("Where does it end?", [("the sea", 78), ("in the sea", 75)]),
]


def squad(questions=QUESTIONS, context=CONTEXT, **changes):
    qas = [
        {
            "id": f"q{i}",
            "question": text,
            "answers": [{"text": a, "answer_start": s} for a, s in answers],
        }
        for i, (text, answers) in enumerate(questions)
    ]
    return {"data": [{"title": "A", "paragraphs": [{"context": context, "qas": qas}]}], **changes}


@pytest.fixture
def write(tmp_path):
    def write(content, name="train.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return SquadFiles.params(pattern=str(path))

    return write


@pytest.fixture
def make(write, tmp_path):
    """Returns an input of the questions, whose rows may be shorter than their texts."""
    (tmp_path / "text.txt").write_text(" ".join([CONTEXT, *(text for text, _ in QUESTIONS)]))
    pieces = TextFiles.params(pattern=str(tmp_path / "text.txt"))
    tokenizer = LearnedWordPieces.params(source=pieces, vocab_size=70)

    def make(content=None, **fields):
        fields = {"length": 128, "stride": 16, "max_question": 30, "batch_size": 2} | fields
        source = write(content or squad())
        return QuestionInput.params(source=source, tokenizer=tokenizer, **fields).build()

    return make


def perfect_predictions(data, *, answers):
    """Returns logits whose largest sum is a question's answer, in the order of a pass."""
    shape = (len(data.windows), data.p.length)
    starts, ends = np.full(shape, -5.0, np.float32), np.full(shape, -5.0, np.float32)
    for row, index in enumerate(data._order.indices(np.arange(len(data.windows))).tolist()):
        window = data.windows[index]
        encoded = data._encoded[window.question]
        first, last = encoded.answer
        if answers and window.begin <= first and last < window.end:
            shift = len(encoded.question) + 2 - window.begin
            starts[row, first + shift] = ends[row, last + shift] = 5.0
    return {"start_logits": starts, "end_logits": ends}


def test_files_have_questions_with_all_their_answers(write):
    found = write(squad()).build().questions()
    assert [(one.id, one.question, one.answers) for one in found] == [
        (f"q{i}", text, tuple(answer for answer, _ in answers))
        for i, (text, answers) in enumerate(QUESTIONS)
    ]
    assert all(one.context[one.answer_start :].startswith(one.answers[0]) for one in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "train.json is not JSON"),
        ("[]", 'SQuAD\'s files are objects with a list "data"'),
        ({"data": [{"title": "A"}]}, "article 0: not in SQuAD's format: it lacks 'paragraphs'"),
        (squad([("Who?", [])]), "question 'q0' has no answer: leave SQuAD 2.0's"),
        (squad([("Who?", [("river", 5)])]), "the answer 'river' is not at character 5"),
        (squad([(7, [("river", 4)])]), "question 'q0': not in SQuAD's format: 7 is not a text"),
        ({"data": []}, "has no question"),
        (squad([("Who?", [("river", True)])]), "'q0'.* answer_start=True is not an integer"),
        (squad([("Who?", [("river", -1)])]), "'q0'.* answer_start=-1 is not an integer of 0"),
        (squad([("Who?", [("river", 1.5)])]), "'q0'.* answer_start=1.5 is not an integer"),
        (json.dumps(squad()).replace(": 19", ": 1e999"), "'q0'.* answer_start=inf is not an int"),
        (json.dumps(squad()).replace(": 19", f": {'9' * 5000}"), "train.json is not JSON: Exceeds"),
        (squad([("Who?", [("river", 10**4000)])]), "the answer 'river' is not at character 10{3}"),
    ],
)
def test_another_format_is_an_error_that_names_the_question(content, message, make):
    with pytest.raises(DataError, match=message):
        make(content).prepare()


@pytest.mark.parametrize("source", [SquadFiles, DocstringQuestions])
def test_a_source_has_no_field_that_it_ignores(source):
    """Both had `split_by` and `unique`, which had no effect."""
    assert not {"split", "split_by", "unique", "heldout_fraction"} & set(fields(source))


def test_a_pattern_without_files_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no file matches"):
        SquadFiles.params(pattern=str(tmp_path / "none*.json")).build().questions()
    with pytest.raises(ParamError, match="pattern is empty"):
        SquadFiles.params(pattern="").build()


@pytest.mark.parametrize("length", [128, 64, 50])
def test_answers_are_where_labels_say_in_every_row(length, make):
    """Rows are decoded and compared with the answer, whose case and accents pieces do not have."""
    data = make(length=length, repeat=False, shuffle=False)
    plain = {"120 km": "120 km", "near Höhr-Town": "near hohr - town", "the sea": "the sea"}
    with_answer = Counter()
    for step in range(data.num_batches()):
        batch = data.batch(step)
        for i in np.flatnonzero(batch["weights"]):
            tokens, start, end = batch["tokens"][i], batch["starts"][i], batch["ends"][i]
            window = data.windows[batch["example_id"][i]]
            question = data.questions[window.question]
            size = int(batch["segments"][i].sum())
            assert tokens[0] == data.tokenizer.start_id
            assert (tokens[size:] == data.tokenizer.pad_id).all()
            assert batch["types"][i, :size].sum() == window.end - window.begin + 1
            if start:
                expected = plain[question.answers[0]]
                assert data.tokenizer.decode(tokens[start : end + 1]) == expected
                with_answer[question.id] += 1
            else:
                assert end == 0
    assert set(with_answer) == {"q0", "q1", "q2"}


def test_rows_of_a_long_text_have_every_token(make):
    data = make(length=50)
    for number, encoded in enumerate(data._encoded):
        own = [window for window in data.windows if window.question == number]
        assert len(own) > 1
        covered = {i for window in own for i in range(window.begin, window.end)}
        assert covered == set(range(len(encoded.context)))
        assert all(b.begin - a.begin == 16 for a, b in itertools.pairwise(own))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("length", [128, 50])
def test_right_spans_have_the_text_of_the_answer(length, shuffle, make):
    data = make(length=length, repeat=False, shuffle=shuffle)
    scores, answers = data.score(perfect_predictions(data, answers=True))
    assert scores == {"exact_match": 1.0, "f1": 1.0}
    assert {answer.text for answer in answers} == {"120 km", "near Höhr-Town", "the sea"}


def test_the_most_similar_of_the_right_answers_counts(make):
    """The span `in the sea` is the second answer; `120` has one of the two words of `120 km`."""
    data = make(repeat=False, shuffle=False)
    predictions = perfect_predictions(data, answers=True)
    starts, ends = predictions["start_logits"], predictions["end_logits"]
    first = data._encoded[2].offsets[:, 0].tolist().index(75)
    starts[2], starts[2, first + len(data._encoded[2].question) + 2] = -5.0, 5.0
    last = data._encoded[0].offsets[:, 1].tolist().index(22)
    ends[0], ends[0, last + len(data._encoded[0].question) + 2] = -5.0, 5.0
    scores, answers = data.score(predictions)
    assert [answer.text for answer in answers] == ["120", "near Höhr-Town", "in the sea"]
    assert scores == {
        "exact_match": pytest.approx(2 / 3),
        "f1": pytest.approx((2 / 3 + 1 + 1) / 3),
    }


def test_the_first_rows_of_a_pass_can_be_scored_alone(make):
    data = make(repeat=False, shuffle=False)
    predictions = {k: v[:1] for k, v in perfect_predictions(data, answers=True).items()}
    scores, answers = data.score(predictions)
    assert (len(answers), scores["f1"]) == (1, 1.0)


def test_a_question_is_scored_only_with_all_its_rows(make):
    data = make(length=50, repeat=False, shuffle=False)
    num_first = sum(window.question == 0 for window in data.windows)
    assert num_first > 1
    predictions = perfect_predictions(data, answers=True)
    for num_rows, num_scored in ((num_first - 1, 0), (num_first, 1), (num_first + 1, 1)):
        scores, answers = data.score({k: v[:num_rows] for k, v in predictions.items()})
        assert len(answers) == num_scored
        assert scores["f1"] == (1.0 if num_scored else pytest.approx(np.nan, nan_ok=True))


def test_a_run_shows_answers_and_their_scores(make, tmp_path, capfd):
    cfg = lingo.get("lm.bert.tiny_questions(num_steps=1)")
    data = make().p.copy()
    cfg.set(train_input=data, eval_inputs={"heldout": data.copy().set(repeat=False)})
    cfg.task.model.stack.num_layers = 1
    lingo.train(cfg, tmp_path / "run")
    printed = capfd.readouterr().out
    assert re.search(r"eval heldout .* exact_match \d.* f1 \d", printed)
    for question, _ in QUESTIONS:
        assert f"answer heldout: '{question}' ->" in printed


def test_the_best_span_is_that_of_all_pairs():
    draw = np.random.default_rng(0)
    for _ in range(50):
        starts, ends = draw.normal(size=(2, 12))
        pairs = [(i, j) for i in range(12) for j in range(i, min(i + 4, 12))]
        expected = max(pairs, key=lambda pair: starts[pair[0]] + ends[pair[1]])
        assert best_span(starts, ends, max_length=4)[1:] == expected


def test_rows_that_would_lose_tokens_are_refused(make):
    with pytest.raises(ParamError, match=r"leaves 15 tokens .* fewer than stride=16"):
        make(length=48)


def test_docstrings_ask_about_arguments_and_results():
    text = (
        "Adds.\n\nArgs:\n  x: A number, e.g. 2\n    or more. Not None.\n  y: Any.\n    z: inner.\n"
        "\nReturns:\n  Their sum! As float.\n"
    )
    found = [(one.question, one.answers[0]) for one in docstring_questions(text)]
    assert found == [
        ("What is x?", "A number, e.g"),  # the rule cuts at a period before a space
        ("What is returned?", "Their sum"),
    ]


def test_docstrings_are_held_out_with_their_questions():
    train, heldout = (
        DocstringQuestions.params(source=Docstrings.params(packages=["keras"], split=split))
        .build()
        .questions()
        for split in ("train", "heldout")
    )
    assert len(train) > 2000
    assert len(heldout) > 50
    assert not {one.context for one in train} & {one.context for one in heldout}
    assert all(
        one.context[one.answer_start :].startswith(one.answers[0]) for one in train + heldout
    )
    assert max(len(one.context) for one in train) <= 800
