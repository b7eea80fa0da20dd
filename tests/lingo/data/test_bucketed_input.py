"""A batch is of one bucket; every token is a target once an epoch; any step is found at once."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.bucketed_input import BucketedInput, Buckets
from lingo.data.derived_input import RepeatedInput
from lingo.data.record_source import TextFiles
from tests.lingo.data.documents import (
    assert_starts_anywhere,
    count_targets,
    expected_targets,
    specs_of,
    write_documents,
)

DOCUMENTS = ["a", "bc", "def", "ghi", "jklmnop", "qrstuvw", "xyzABCDEFGHIJKLMNOPQRST", "UVW"]
BOUNDARIES = [4, 8, 16]


@pytest.fixture
def data(tmp_path):
    return write_documents(tmp_path / "data", DOCUMENTS)


def bucketed(data, **fields):
    source = TextFiles.params(pattern=f"{data}/*.txt")
    given = {"source": source, "batch_size": 2, "boundaries": BOUNDARIES} | fields
    return BucketedInput.params(**given).build()


def epoch(input, number=0):
    size = input.pass_batches()
    return [input.batch(step) for step in range(number * size, (number + 1) * size)]


@pytest.mark.parametrize("constant_tokens", [True, False])
def test_every_token_is_a_target_exactly_once_an_epoch(data, constant_tokens):
    input = bucketed(data, constant_tokens=constant_tokens)
    for number in range(3):
        assert count_targets(epoch(input, number)) == expected_targets(DOCUMENTS)


def test_a_row_is_one_document_in_the_first_bucket_it_fits(data):
    for batch in epoch(bucketed(data)):
        length = batch["targets"].shape[1]
        used = (batch["segments"] > 0).sum(axis=1)
        assert batch["segments"].max() == 1
        for n in used[batch["weights"] > 0]:
            assert length == min(b for b in BOUNDARIES if b >= n)
        np.testing.assert_array_equal(batch["weights"], used > 0)


def test_shorter_buckets_have_more_rows_if_tokens_are_to_be_constant(data):
    shapes = {batch["targets"].shape for batch in epoch(bucketed(data))}
    assert shapes == {(8, 4), (4, 8), (2, 16)}
    shapes = {batch["targets"].shape for batch in epoch(bucketed(data, constant_tokens=False))}
    assert shapes == {(2, 4), (2, 8), (2, 16)}


def test_specs_are_those_of_the_largest_batch(data):
    input = bucketed(data)
    largest = next(b for b in epoch(input) if b["targets"].shape[1] == 16)
    assert input.specs() == specs_of(largest)


def test_steps_of_one_shape_id_have_one_shape(data):
    input = bucketed(data)
    for step in range(3 * input.pass_batches()):
        assert input.batch(step)["targets"].shape[1] == BOUNDARIES[input.shape_id(step)]


def test_a_fresh_start_at_any_step_gives_what_an_uninterrupted_run_gives(data):
    num_batches = bucketed(data).pass_batches()
    assert_starts_anywhere(lambda: bucketed(data, seed=4), range(num_batches, 2 * num_batches))


def test_epochs_and_seeds_have_different_orders_and_no_shuffle_has_one(data):
    def first_epochs(**fields):
        input = bucketed(data, **fields)
        return [b"".join(b["targets"].tobytes() for b in epoch(input, n)) for n in range(3)]

    assert len({*first_epochs(seed=1), *first_epochs(seed=2)}) > 3
    assert len({*first_epochs(seed=1, shuffle=False), *first_epochs(seed=2, shuffle=False)}) == 1


@pytest.mark.parametrize("constant_tokens", [True, False])
def test_examples_are_numbered_in_the_order_they_come_and_known_before(data, constant_tokens):
    input, before = bucketed(data, constant_tokens=constant_tokens), 0
    for step in range(3 * input.pass_batches()):
        ids = input.batch(step)["example_id"]
        np.testing.assert_array_equal(ids, np.arange(before, before + len(ids)))
        assert (input.examples_before(step), input.num_rows(step)) == (before, len(ids))
        np.testing.assert_array_equal(input.example_ids(step), ids)
        before += len(ids)


@pytest.mark.parametrize("batches", [2, 3])
def test_the_rows_of_batches_that_come_again_are_known(data, batches):
    input = RepeatedInput.params(input=bucketed(data).p, batches=batches).build()
    sizes = [len(input.batch(step)["rows"]) for step in range(7)]
    assert [input.num_rows(step) for step in range(7)] == sizes
    assert input.num_examples() == sum(sizes[:batches])


def test_one_pass_counts_and_ends(data):
    input = bucketed(data, repeat=False)
    assert input.num_batches() == 3
    assert bucketed(data, repeat=False, max_batches=2).num_batches() == 2
    assert input.num_examples() == sum(b["weights"].sum() for b in epoch(input)) == 9
    assert input.epochs(3) == 1.0
    with pytest.raises(IndexError, match="no batch 3"):
        input.batch(3)


def test_a_plan_pads_little():
    lengths = np.random.default_rng(0).integers(1, 65, 1000)
    plan = Buckets(lengths, boundaries=[16, 32, 48, 64], rows=[4, 4, 4, 4], seed=0)
    batches = [plan.batch(0, i) for i in range(plan.num_batches)]
    pieces = [piece for batch in batches for piece in batch.pieces]
    assert sorted(piece.document for piece in pieces) == list(range(1000))
    slots = sum(4 * [16, 32, 48, 64][batch.bucket] for batch in batches)
    assert lengths.sum() / slots > 0.78


@pytest.mark.parametrize("boundaries", [[], [0, 4], [4, 4]])
def test_wrong_boundaries_are_refused_at_build(data, boundaries):
    with pytest.raises(ParamError, match="must be positive and ascending"):
        bucketed(data, boundaries=boundaries)


def test_a_row_is_known_by_its_pass_and_its_number_in_the_plan(data):
    input = bucketed(data)
    found = [o for batch in epoch(input, 1) for o in input.origins(batch["example_id"])]
    assert sorted(found) == sorted(f"1:{row}" for row in range(len(found)))
