"""A batch of pairs is a function of (seed, step): every pair once an epoch, both sides whole."""

import collections

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.mixture import Mixture
from lingo.data.objectives.denoising import SpanCorruption
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.pairs.pair_input import PairInput, best_fit_pairs
from lingo.data.record_source import TextFiles
from lingo.data.sources.pair_files import TsvPairs
from tests.lingo.data.documents import assert_starts_anywhere, specs_of

PAIRS = [("a", "A"), ("bc", "BCDE"), ("defghij", "F"), ("k", "GHIJKLM"), ("lm", "NO"), ("ö", "ü")]
LENGTHS = {"source_length": 8, "target_length": 8}
FORMS = ["encoder_decoder", "decoder"]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    return tmp_path / "pairs.tsv"


def pair_input(data, **fields):
    values = {"source": TsvPairs.params(pattern=str(data)), "batch_size": 2, **LENGTHS} | fields
    return PairInput.params(**values).build()


def pairs_of(input, batch):
    """Returns the texts in a batch, told apart by its segments alone."""
    found = []
    joined = "prefix" in batch
    for i in range(len(batch["segments"])):
        row = {name: array[i] for name, array in batch.items()}
        for segment in range(1, row["segments"].max() + 1):
            here = row["segments"] == segment
            if joined:
                source = row["tokens"][here & row["prefix"]]
                target = row["targets"][here & (row["target_weights"] > 0)]
            else:
                source = row["source_tokens"][row["source_segments"] == segment]
                target = row["targets"][here]
            found.append((input.tokenizer.decode(source), input.tokenizer.decode(target)))
    return found


def epoch_of(input, epoch=0):
    size = input.num_examples()
    arrays = input.examples(np.arange(epoch * size, (epoch + 1) * size))
    return collections.Counter(pairs_of(input, arrays))


def test_text_pairs_depend_on_the_source_alone(data):
    whole = pair_input(data, repeat=False).text_pairs(None)
    assert sorted((source, target) for _, source, target in whole) == sorted(PAIRS)
    changes = {"seed": 3, "batch_size": 4, "packing": "none", "shuffle": False}
    others = pair_input(data, repeat=False, **changes).text_pairs(4)
    assert [pair[1:] for pair in others] == [pair[1:] for pair in whole[:4]]


@pytest.mark.parametrize("form", FORMS)
def test_the_prompt_of_a_text_pair_is_cut_like_the_source_of_its_example(data, form):
    input = pair_input(data, form=form, source_length=4, target_length=4)
    for prompt, source, target in input.text_pairs(None):
        read = prompt.source if form == "encoder_decoder" else prompt.tokens[1:]
        assert read.tolist() == [*input.tokenizer.encode(source)[:3], input.tokenizer.end_id]
        assert (source, target) in PAIRS
    ids = input.tokenizer.encode("abc")
    end = input.tokenizer.end_id
    for whole, made in zip(input.prompt("abc"), input.source_prompt([*ids, end]), strict=True):
        np.testing.assert_array_equal(whole, made)


def test_text_pairs_that_are_left_out_are_not_answered(data):
    input = pair_input(data, source_length=4, target_length=8, too_long="leave_out")
    assert "defghij" not in [pair.source for pair in input.text_pairs(None)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packing", ["bins", "none"])
def test_an_epoch_has_every_pair_once(data, form, packing):
    input = pair_input(data, form=form, packing=packing)
    for epoch in range(3):
        assert epoch_of(input, epoch) == collections.Counter(PAIRS)
    assert (input.num_examples() == len(PAIRS)) == (packing == "none")
    assert input.num_items() == len(PAIRS)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_as_specs_say(data, form):
    input = pair_input(data, form=form)
    found = specs_of(input.batch(3))
    assert found == input.specs()
    assert found["tokens"][0] == ((2, 16) if form == "decoder" else (2, 8))


def test_a_single_pass_ends_in_rows_without_content(data):
    input = pair_input(data, repeat=False, batch_size=16)
    batch = input.batch(0)
    empty = batch["weights"] == 0
    assert input.num_batches() == 1
    assert empty.sum() == 16 - input.num_examples()
    for name in ("source_segments", "segments", "source_tokens", "targets", "bytes"):
        assert not batch[name][empty].any()


@pytest.mark.parametrize("form", FORMS)
def test_a_fresh_start_at_any_step_gives_what_an_uninterrupted_run_gives(data, form):
    assert_starts_anywhere(lambda: pair_input(data, form=form), range(7))


@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_those_of_the_text_of_the_targets(data, form):
    input = pair_input(data, form=form, target_length=4, packing="none", shuffle=False)
    assert input.batch(0, rows=slice(0, 2))["bytes"].tolist() == [1, 4]  # cut: no end in it
    sizes = [min(len(target.encode()), 4) for _, target in PAIRS]
    assert [input.row(i).num_bytes for i in range(len(PAIRS))] == sizes


def test_a_cut_source_keeps_its_end_and_a_cut_target_has_none(data):
    input = pair_input(data, source_length=4, target_length=4, packing="none", shuffle=False)
    end = input.tokenizer.end_id
    long_source, long_target = input.row(2).pairs[0], input.row(3).pairs[0]
    assert long_source.source.tolist() == [*input.tokenizer.encode("def"), end]
    assert long_target.target.tolist() == input.tokenizer.encode("GHIJ").tolist()
    assert input.row(0).pairs[0].target.tolist() == [*input.tokenizer.encode("A"), end]
    assert input.remarks() == [
        "cut 3 of 6 pairs, with more than source_length=4 or target_length=4 tokens"
    ]


def test_pairs_that_are_too_long_may_be_left_out(data):
    input = pair_input(data, source_length=4, target_length=4, too_long="leave_out")
    assert epoch_of(input) == collections.Counter([PAIRS[0], PAIRS[4], PAIRS[5]])
    assert input.num_items() == 3
    assert input.remarks()[0].startswith("left out 3 of 6 pairs")
    assert pair_input(data).remarks() == []
    short = pair_input(data, source_length=1, too_long="leave_out")
    with pytest.raises(DataError, match=r"left out 6 of 6 pairs.*: none is left"):
        short.num_examples()


def test_a_source_that_has_no_pairs_is_refused(data):
    with pytest.raises(ParamError, match=r"PairInput\.source takes a PairSource"):
        pair_input(data, source=TextFiles.params(pattern=str(data)))
    with pytest.raises(ParamError, match="target_length=0 is not positive"):
        pair_input(data, target_length=0)


def test_a_mixture_shares_by_pairs_and_not_by_rows(data):
    def mixture(**fields):
        source = TsvPairs.params(pattern=str(data))
        packed = PairInput.params(source=source, **LENGTHS)
        inputs = {"packed": packed, "alone": packed.copy().set(packing="none")}
        return Mixture.params(inputs=inputs, batch_size=4, **fields).build()

    rows = pair_input(data).num_examples()
    for fields in ({}, {"max_examples": 2}):
        packed, alone = mixture(**fields).shares
        assert packed * len(PAIRS) / rows == pytest.approx(alone)
    assert mixture().num_items() == 2 * len(PAIRS)


def test_pairs_mix_with_span_corruption_of_the_same_vocabulary(data):
    text = TextFiles.params(pattern=str(data))
    spans = SpanCorruption.params(source=text, source_length=16)
    length = SpanCorruption.params(source=text, source_length=16, batch_size=1).build().lengths
    source = TsvPairs.params(pattern=str(data))
    lengths = {"source_length": 16, "target_length": length.target}
    pairs = PairInput.params(source=source, tokenizer=SentinelTokenizer, **lengths)
    mixture = Mixture.params(inputs={"text": spans, "pairs": pairs}, batch_size=4).build()
    mixture.prepare()
    assert mixture.offers() == {"vocab_size": 359}
    assert mixture.batch(0)["targets"].shape == (4, length.target)


ROW = (64, 20)


def drawn(num_pairs, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(1, limit + 1, num_pairs) for limit in ROW], axis=1)


def slow_best_fit(lengths, row_lengths):
    """As the module says, looking at every row for every pair."""
    shares = lengths / np.array(row_lengths)
    first = int(np.argmax(shares.sum(axis=0)))
    rooms = []
    rows = [0] * len(lengths)
    for i in np.argsort(-shares.max(axis=1), kind="stable").tolist():
        sizes = lengths[i].tolist()
        fits = [r for r, room in enumerate(rooms) if (lengths[i] <= room).all()]
        if fits:
            rows[i] = min(fits, key=lambda r: (rooms[r][first], rooms[r][1 - first]))
        else:
            rooms.append(list(row_lengths))
            rows[i] = len(rooms) - 1
        for side in (0, 1):
            rooms[rows[i]][side] -= sizes[side]
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_fills_rows_as_looking_at_every_row_would(seed):
    lengths = drawn(300, seed)
    rows = best_fit_pairs(lengths, ROW)
    assert rows.max() == max(slow_best_fit(lengths, ROW)) < 250
    for side in (0, 1):
        assert np.bincount(rows, lengths[:, side]).max() <= ROW[side]


def test_rows_without_room_on_one_side_take_no_more():
    assert best_fit_pairs(np.array([[1, 20], [1, 20], [63, 1]]), ROW).tolist() == [0, 1, 2]
    assert best_fit_pairs(np.array([[32, 10], [32, 10]]), ROW).tolist() == [0, 0]
