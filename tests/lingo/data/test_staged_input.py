"""A stage's batches are those of its input alone; numbers count on from stage to stage."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.array_input import ArrayInput
from lingo.data.bucketed_input import BucketedInput
from lingo.data.derived_input import RepeatedInput
from lingo.data.document_input import TextInput
from lingo.data.mixture import Mixture
from lingo.data.objectives.denoising import PrefixText
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.record_source import TextFiles
from lingo.data.staged_input import StagedInput
from tests.lingo.data.documents import assert_equal, assert_starts_anywhere, specs_of
from tests.lingo.data.test_mixture import Shifted

STEPS = (5, 3, 2)
LENGTHS = (8, 12, 16)
SIZES = (4, 6, 2)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "text.txt").write_text("abcdefgh" * 30)
    return TextFiles.params(pattern=str(tmp_path / "text.txt"))


@pytest.fixture
def parts(source):
    """Three inputs of other lengths and batch sizes."""
    zipped = zip(LENGTHS, SIZES, strict=True)
    return [TextInput.params(source=source, length=n, batch_size=size) for n, size in zipped]


@pytest.fixture
def make(parts):
    def make(**fields):
        stages = tuple(zip(parts, STEPS, strict=True))
        return StagedInput.params(**{"stages": stages, **fields}).build()

    return make


def own(batch):
    """Returns the arrays of a batch but for `example_id`."""
    return {name: array for name, array in batch.items() if name != "example_id"}


def test_each_stage_has_the_batches_of_its_input_alone(make, parts):
    input, step = make(), 0
    for part, stage, count in zip(parts, input.inputs, (5, 3, 20), strict=True):
        alone = part.build(seed=stage.p.seed)
        for i in range(count):
            assert_equal(own(input.batch(step)), own(alone.batch(i)))
            step += 1


def test_the_first_stage_has_the_seed_and_the_others_their_own(make, parts):
    input = make(seed=7)
    assert input.inputs[0].p.seed == 7
    assert len({part.p.seed for part in input.inputs}) == 3
    assert [part.p.seed for part in make(seed=7).inputs] == [p.p.seed for p in input.inputs]
    assert [part.p.seed for part in make(seed=8).inputs] != [p.p.seed for p in input.inputs]
    parts[1].seed = 3
    assert make(seed=7).inputs[1].p.seed == 3


def test_a_batch_size_is_for_stages_that_set_none(source):
    plain = TextInput.params(source=source, length=8)
    input = StagedInput.params(
        stages=((plain, 1), (plain.copy().set(batch_size=6), 1)), batch_size=3
    ).build()
    assert [len(input.batch(step)["rows"]) for step in range(3)] == [3, 6, 6]
    with pytest.raises(ParamError, match="batch_size"):
        StagedInput.params(stages=((plain, 1),)).build()


def test_examples_are_numbered_in_the_order_they_come_and_known_before(make):
    input, before = make(), 0
    for step in range(14):
        ids = input.batch(step)["example_id"]
        np.testing.assert_array_equal(ids, np.arange(before, before + len(ids)))
        assert (input.examples_before(step), input.num_rows(step)) == (before, len(ids))
        np.testing.assert_array_equal(input.example_ids(step), ids)
        before += len(ids)


def test_a_fresh_start_at_any_step_gives_what_an_uninterrupted_run_gives(make):
    assert_starts_anywhere(make, range(14))


def test_no_two_stages_share_a_shape(make, source):
    input = make()
    shapes = [input.shape_id(step) for step in range(12)]
    assert shapes == [shapes[0]] * 5 + [shapes[5]] * 3 + [shapes[8]] * 4
    assert len({*shapes}) == 3
    rows = BucketedInput.params(source=source, batch_size=2, boundaries=[100, 200])
    buckets = StagedInput.params(stages=((rows, 9), (rows.copy(), 9))).build()
    batches = [(buckets.locate_step(i).stage, buckets.batch(i)["tokens"].shape) for i in range(18)]
    by_shape = {buckets.shape_id(i): batch for i, batch in enumerate(batches)}
    assert all(by_shape[buckets.shape_id(i)] == batch for i, batch in enumerate(batches))


def test_specs_are_those_of_the_longest_rows_and_every_batch_fits(make):
    input = make()
    assert input.specs() == specs_of(input.batch(8))
    input.check_specs()
    for step in range(12):
        input.check_batch(input.batch(step))
    input.check_repeatable()
    input.check_size()


def test_an_example_is_known_by_its_stage_and_its_place_there(make):
    input = make()
    for step in (0, 4, 5, 7, 8, 11):
        stage, own_step = input.locate_step(step)
        alone = input.inputs[stage]
        wanted = [f"{stage}/{o}" for o in alone.origins(alone.example_ids(own_step))]
        assert input.origins(input.example_ids(step)) == wanted


def test_epochs_are_those_of_all_stages(make):
    input = make()
    each = [part.epochs(1) for part in input.inputs]
    assert input.epochs(4) == pytest.approx(4 * each[0])
    assert input.epochs(10) == pytest.approx(5 * each[0] + 3 * each[1] + 2 * each[2])
    assert input.num_examples() == input.inputs[0].num_examples()
    assert input.pass_batches() == input.inputs[0].pass_batches()


def test_the_data_of_every_stage_is_known(make):
    input, seen = make(), []
    input.prepare(progress=lambda *at: seen.append(at))
    assert input.fingerprint() == {str(i): p.fingerprint() for i, p in enumerate(input.inputs)}
    assert input.offers() == {"vocab_size": 259}
    assert input.tokenizer.describe() == "bytes"
    assert input.prompt("a").tokens.tolist() == input.inputs[0].prompt("a").tokens.tolist()
    assert input.remarks() == []
    assert not input.allows_threads()


def test_batches_that_come_again_may_be_of_several_stages(make):
    input = RepeatedInput.params(input=make().p.copy(), batches=7).build()
    assert_equal(input.batch(13), input.batch(6))
    assert input.num_rows(6) == 6


def test_stages_that_are_not_alike_are_refused(source, parts):
    row = {"source": source, "length": 8, "batch_size": 4}
    arrays = ArrayInput.params(file="nowhere.npz", batch_size=4)
    prefix = PrefixText.params(**row, form="decoder", tokenizer=SentinelTokenizer)
    for other, reason in (
        (prefix, r"stages\[1\] has the array 'prefix', which stages\[0\] lacks"),
        (parts[0].copy().set(tokenizer=SentinelTokenizer), "they offer {'vocab_size': 359} and"),
        (
            TextInput.params(**{**row, "batch_size": 5}),
            r"stages\[1\] has batch_size=5, which is no multi",
        ),
        (TextInput.params(**row, repeat=False), r"stages\[1\] has repeat=False, but a stage ends"),
    ):
        with pytest.raises(ParamError, match=reason):
            StagedInput.params(stages=((parts[0], 1), (other, 1))).build()
    late = StagedInput.params(stages=((arrays, 1), (arrays, 1))).build()
    assert late.declares_late


def test_types_that_differ_are_found_when_the_data_is_opened(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 3), np.float32))
    np.savez(tmp_path / "b.npz", x=np.zeros((8, 3), np.int32))
    np.savez(tmp_path / "c.npz", x=np.zeros((8, 3, 3), np.float32))
    first, *others = (
        ArrayInput.params(file=str(tmp_path / f"{name}.npz"), batch_size=4) for name in "abc"
    )
    for other in others:
        with pytest.raises(ParamError, match=r"stages\[1\] and stages\[0\] differ: x is "):
            StagedInput.params(stages=((first, 1), (other, 1))).build().prepare()


def test_tokenizers_that_differ_are_refused_when_they_are_opened(parts):
    parts[1].tokenizer = Shifted
    with pytest.raises(ParamError, match=r"tokenizers of the inputs differ: .*shifted"):
        StagedInput.params(stages=tuple((part, 1) for part in parts)).build().prepare()


def test_what_cannot_be_a_stage_is_refused(make, parts):
    for fields, reason in (
        ({"stages": ()}, "stages is empty"),
        ({"stages": ((parts[0], 0),)}, r"stages\[0\] has 0 steps"),
        ({"repeat": False}, "a StagedInput never ends: it is for training"),
        ({"batch_size": 0}, "batch_size=0 is not positive"),
    ):
        with pytest.raises(ParamError, match=reason):
            make(**fields)
    with pytest.raises(ParamError, match="StagedInput makes whole batches"):
        Mixture.params(inputs={"a": make().p.copy()}, batch_size=4).build()
    with pytest.raises(IndexError, match="no batch -1"):
        make().batch(-1)
