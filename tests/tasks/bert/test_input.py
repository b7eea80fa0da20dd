"""A row is two texts of a chunk or of two documents; every chunk comes once an epoch."""

import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.record_source import TextFiles
from lingo.data.staged_input import StagedInput
from lingo.data.tokenizer import ByteTokenizer
from lingo.data.word_pieces import LearnedWordPieces
from lingo.datasets.docstrings import Docstrings
from tasks.bert.input import BertInput
from tasks.bert.masking import SpanMasking, TokenMasking, WholeWordMasking
from tests.lingo.data.documents import assert_starts_anywhere, specs_of, write_documents
from tests.tasks.bert.letters import END, MASK, PAD, START, Letters

DOCUMENTS = ["Ab.Cde.Fg", "HiJkLmNoPqRsTuVwXyZ", "AB!CD?EF.GH.IJ.KL", "Q"]
LETTERS = Letters.params().build()


@pytest.fixture
def source(tmp_path):
    folder = write_documents(tmp_path / "data", DOCUMENTS)
    return TextFiles.params(pattern=f"{folder}/*.txt")


@pytest.fixture
def make(source):
    """Makes an input of the tiny documents."""

    def make(**fields):
        given = {"source": source, "tokenizer": Letters, "batch_size": 4, "length": 13}
        return BertInput.params(**{**given, "max_predictions": 3, **fields}).build()

    return make


def epoch(input, number=0):
    size = input.num_examples()
    return range(number * size, (number + 1) * size)


def decoded(input, numbers):
    """Returns (A, B, is_random) of rows, as texts."""
    texts = [input.texts(number) for number in numbers]
    return [(LETTERS.decode(a), LETTERS.decode(b), is_random) for a, b, is_random in texts]


def chunks(room):
    return [text[i : i + room] for text in DOCUMENTS for i in range(0, len(text), room)]


def test_without_pairs_an_epoch_has_every_chunk_once_from_its_first_whole_word(make):
    input = make(pairs=False, length=7, short_fraction=0.0)
    wanted = ["Ab.Cd", ".Fg", "HiJkL", "NoPq", "RsTuV", "XyZ", "AB!CD", "?EF.G", "H.IJ.", "KL", "Q"]
    for number in range(3):
        found = [first for first, _, _ in decoded(input, epoch(input, number))]
        assert sorted(found) == sorted(wanted)
    orders = {tuple(decoded(input, epoch(input, number))) for number in range(3)}
    assert len(orders) == 3


def test_a_chunk_inside_of_a_word_is_kept(tmp_path):
    folder = write_documents(tmp_path / "long", ["A" + "b" * 9])
    source = TextFiles.params(pattern=f"{folder}/*.txt")
    fields = {"batch_size": 1, "length": 7, "max_predictions": 2, "short_fraction": 0.0}
    input = BertInput.params(source=source, tokenizer=Letters, pairs=False, **fields).build()
    assert sorted(t[0] for t in decoded(input, range(2))) == ["Abbbb", "bbbbb"]


def test_a_row_has_its_texts_between_special_tokens_and_then_padding(make):
    input = make(short_fraction=0.0)
    batch = input.batch(0)
    restored = batch["tokens"].copy()
    for row, at, ids, weights in zip(
        restored, *(batch[f"masked_{n}"] for n in ("positions", "ids", "weights")), strict=True
    ):
        row[at[weights > 0]] = ids[weights > 0]
    for i, number in enumerate(batch["example_id"].tolist()):
        first, second, is_random = input.texts(number)
        row = [START, *first, END, *second, END]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        padding = [PAD] * (13 - len(row))
        assert restored[i].tolist() == row + padding
        assert batch["types"][i].tolist() == types + padding
        assert batch["segments"][i].tolist() == [1] * len(row) + padding
        assert batch["is_random"][i] == is_random
        assert {*batch["masked_positions"][i]} <= {0, *np.flatnonzero(restored[i] > MASK)}
    assert input.specs() == specs_of(batch)


def test_without_pairs_a_row_is_one_text(make):
    input = make(pairs=False)
    batch = input.batch(0)
    assert "is_random" not in batch
    assert not batch["types"].any()
    assert (batch["tokens"] == END).sum(axis=1).tolist() == [1] * 4
    assert input.specs() == specs_of(batch)


def test_the_second_text_follows_the_first_or_is_of_another_document(make):
    input = make(short_fraction=0.0)
    rows = decoded(input, range(600))
    whole = {first + second for first, second, is_random in rows if not is_random}
    assert whole == {"Ab.Cde.Fg", "HiJkLmNoPq", "RsTuVwXyZ", "AB!CD?EF.G", "H.IJ.KL"}
    pairs = [(one, other) for one in DOCUMENTS for other in DOCUMENTS if one != other]
    for first, second, is_random in rows:
        if is_random:
            assert any(first in one and second in other for one, other in pairs)
            assert 0 < len(second) <= 10 - len(first)


def test_the_first_text_ends_after_a_sentence_or_else_before_a_word(make):
    input = make(short_fraction=0.0)
    ends = {first for first, _, _ in decoded(input, range(1000))}
    of_sentences = {"Ab.", "Ab.Cde.", "AB!", "AB!CD?", "AB!CD?EF.", "H.", "H.IJ."}
    of_words = {"HiJkLmNoPq"[:n] for n in (2, 4, 6, 8)} | {"RsTuVwXyZ"[:n] for n in (2, 4, 6, 8)}
    assert ends == of_sentences | of_words | {"Q"}


def test_one_word_is_followed_by_another_document(make):
    input = make(short_fraction=0.0)
    rows = [row for row in decoded(input, range(300)) if row[0] == "Q"]
    assert rows
    assert all(is_random and len(second) >= 8 for _, second, is_random in rows)


def test_half_of_the_second_texts_are_random(tmp_path):
    rng = np.random.default_rng(0)
    texts = ["".join(chr(c) for c in rng.integers(65, 91, 40)) for _ in range(40)]
    source = TextFiles.params(pattern=f"{write_documents(tmp_path / 'many', texts)}/*.txt")
    fields = {"batch_size": 100, "length": 23, "max_predictions": 3}
    input = BertInput.params(source=source, tokenizer=Letters, **fields).build()
    rows = decoded(input, range(2000))
    num_random = sum(is_random for _, _, is_random in rows)
    assert abs(num_random - 1000) < 4 * math.sqrt(2000 / 4)
    num_short = sum(len(first) + len(second) < 20 for first, second, _ in rows)
    share = 0.1 * (1 - 1 / 19)  # lengths of 2 to 20
    assert abs(num_short - 2000 * share) < 4 * math.sqrt(2000 * share * (1 - share))
    seconds = {second for _, second, is_random in rows if is_random}
    others = {i for i, text in enumerate(texts) if any(s in text for s in seconds if len(s) > 5)}
    assert others == {*range(40)}  # any other document


def test_a_row_differs_from_epoch_to_epoch_and_seed_to_seed(make):
    input, other = make(), make(seed=1)
    row = {input.origins(np.array([n]))[0].partition(":")[2]: n for n in epoch(input)}
    again = {input.origins(np.array([n]))[0].partition(":")[2]: n for n in epoch(input, 1)}
    assert row.keys() == again.keys()
    same = [input.examples(np.array([row[k], again[k]]))["tokens"] for k in row]
    assert any(not np.array_equal(*pair) for pair in same)
    assert not np.array_equal(input.batch(0)["tokens"], other.batch(0)["tokens"])


def test_short_rows_and_then_long_ones_are_stages_of_one_run(source):
    fields = {"source": source, "tokenizer": Letters}
    short = BertInput.params(**fields, length=9, max_predictions=2, batch_size=4)
    long = BertInput.params(**fields, length=13, max_predictions=3, batch_size=2)
    stages = StagedInput.params(stages=((short, 2), (long, 1)))
    assert_starts_anywhere(stages.build, range(5))
    assert stages.build().specs() == specs_of(stages.build().batch(2))
    assert stages.build().batch(1)["masked_ids"].shape == (4, 2)


@pytest.mark.parametrize("pairs", [True, False])
def test_a_fresh_start_at_any_step_gives_what_an_uninterrupted_run_gives(make, pairs):
    assert_starts_anywhere(lambda: make(pairs=pairs, seed=3), range(6))


def test_a_single_pass_ends_with_padding(make):
    input = make(repeat=False, batch_size=5)
    assert input.num_examples() == len(chunks(10)) == 6
    last = input.batch(input.num_batches() - 1)
    assert last["weights"].tolist() == [1, 0, 0, 0, 0]
    assert (last["tokens"][1:] == PAD).all()
    for name in ("types", "segments", "masked_positions", "masked_ids", "masked_weights"):
        assert not last[name][1:].any()
    assert not last["is_random"][1:].any()


def test_what_cannot_be_is_refused(make, tmp_path):
    for fields, reason in (
        ({"length": 4}, "length=4 leaves no room for text: with pairs=True it is at least 5"),
        ({"length": 2, "pairs": False}, "with pairs=False it is at least 3"),
        ({"max_predictions": 0}, "max_predictions=0 is not positive"),
        ({"short_fraction": 1.0}, "short_fraction"),
    ):
        with pytest.raises(ParamError, match=reason):
            make(**fields)
    assert make(length=5).batch(0)["tokens"].shape == (4, 5)
    assert make(length=3, pairs=False).batch(0)["tokens"].shape == (4, 3)
    with pytest.raises(DataError, match=r"tokenizer bytes has no token \[MASK\].*LearnedWordPiec"):
        make(tokenizer=ByteTokenizer).prepare()
    one = TextFiles.params(pattern=f"{write_documents(tmp_path / 'one', ['Ab Cd'])}/*.txt")
    with pytest.raises(DataError, match=r"there is one document, but .* set pairs=False"):
        make(source=one).prepare()
    assert make(source=one, pairs=False).batch(0)["weights"].all()


def test_docstrings_become_rows_whose_words_are_whole():
    pytest.importorskip("tokenizers", reason="needs pip install 'lingo-tf[tokenizers]'")
    source = Docstrings.params(packages=["rich"])
    data = BertInput.params(
        source=source,
        tokenizer=LearnedWordPieces.params(source=source, vocab_size=800),
        **{"batch_size": 64, "length": 64, "max_predictions": 10},
    )
    for masking in (TokenMasking, WholeWordMasking, SpanMasking):
        input = data.copy().set(masking=masking).build()
        assert input.offers() == {"vocab_size": 800}
        continues = input.tokenizer.word_continuations()
        for batch in map(input.batch, range(3)):
            chosen = batch["masked_weights"].sum()
            assert 0.11 < chosen / batch["segments"].sum() < 0.16
            assert 0.3 < batch["is_random"].mean() < 0.75
            assert batch["masked_weights"].sum(axis=1).max() <= 10
            for row in zip(*map(batch.get, NAMES), strict=True):
                check_row(*row, continues=None if masking is TokenMasking else continues)


NAMES = ("tokens", "segments", "masked_positions", "masked_ids", "masked_weights")


def check_row(tokens, segments, positions, ids, weights, *, continues):
    """Checks that a row is two texts, and, by the pieces that continue words, that words stay."""
    is_chosen = np.isin(np.arange(len(tokens)), positions[weights > 0])
    restored = tokens.copy()
    restored[is_chosen] = ids[weights > 0]
    ends = np.flatnonzero((restored == END) & (segments > 0))
    assert len(ends) == 2
    assert ends[1] == segments.sum() - 1
    if continues is not None:
        inside = continues[restored]
        inside[[1, ends[0] + 1]] = False  # a chunk that has no whole word
        np.testing.assert_array_equal(is_chosen[inside], np.roll(is_chosen, 1)[inside])
