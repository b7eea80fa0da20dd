"""A text batch is a function of (seed, step): every token once an epoch, resumed anywhere."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.document_input import TextInput
from lingo.data.files import DataError, File
from lingo.data.record_source import TextFiles
from tests.lingo.data.documents import (
    BYTES,
    assert_equal,
    assert_starts_anywhere,
    count_targets,
    expected_targets,
    write_documents,
)

DOCUMENTS = ["a", "bcd", "efghijklmnopqrst", "uvwxyz", "ABCDE", "FG"]  # no letter twice
FIELDS = ("tokens", "targets", "segments", "positions")


@pytest.fixture
def data(tmp_path):
    return write_documents(tmp_path / "data", DOCUMENTS)


def text_input(data, **fields):
    source = TextFiles.params(pattern=f"{data}/*.txt")
    return TextInput.params(**{"source": source, "batch_size": 2, "length": 4} | fields).build()


def rows(batch):
    return [{name: batch[name][i] for name in FIELDS} for i in range(len(batch["weights"]))]


def test_a_batch_has_the_fields_of_the_contract(data):
    batch = text_input(data).batch(3)
    shapes = {name: (value.shape, value.dtype) for name, value in batch.items()}
    assert shapes == {name: ((2, 4), np.int32) for name in FIELDS} | {
        "example_id": ((2,), np.int64),
        "rows": ((2,), np.int32),
        "bytes": ((2,), np.int32),
        "weights": ((2,), np.float32),
    }
    assert batch["example_id"].tolist() == [6, 7]
    assert batch["rows"].tolist() == [0, 1]
    nowhere = TextFiles.params(pattern="/nowhere/*.txt")  # specs are known without data
    specs = text_input(data, source=nowhere).specs()
    assert specs == {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in shapes.items()}


def test_rows_show_documents_one_after_the_other(data):
    input = text_input(data, length=8, batch_size=1, shuffle=False, repeat=False)
    first, second = input.batch(0), input.batch(1)
    text = [2, *BYTES.encode("a"), 2, *BYTES.encode("bcd"), 2, *BYTES.encode("e")]
    assert first["tokens"][0].tolist() == text
    text = [*BYTES.encode("a"), 1, *BYTES.encode("bcd"), 1, *BYTES.encode("ef")]
    assert first["targets"][0].tolist() == text
    assert first["segments"][0].tolist() == [1, 1, 2, 2, 2, 2, 3, 3]
    assert first["positions"][0].tolist() == [0, 1, 0, 1, 2, 3, 0, 1]
    # a row that starts inside a document knows the token before
    assert second["tokens"][0].tolist() == BYTES.encode("fghijklm").tolist()
    assert second["targets"][0].tolist() == BYTES.encode("ghijklmn").tolist()
    assert second["positions"][0].tolist() == list(range(8))


def test_a_batch_goes_on_into_the_next_epoch_without_loss(data):
    input = text_input(data, batch_size=3, length=4)  # 10 rows an epoch: 3 epochs in 10 batches
    batches = [input.batch(step) for step in range(10)]
    assert count_targets(batches) == expected_targets(3 * DOCUMENTS)
    assert input.epochs(10) == 3.0


@pytest.mark.parametrize("packing", ["stream", "bins"])
def test_epochs_and_seeds_have_different_orders_and_no_shuffle_has_one(data, packing):
    num_rows = text_input(data, packing=packing).num_examples()

    def first_epochs(**fields):
        input = text_input(data, batch_size=num_rows, packing=packing, **fields)
        return [input.batch(step)["targets"].tobytes() for step in range(3)]

    assert len({*first_epochs(seed=1), *first_epochs(seed=2)}) == 6
    assert len({*first_epochs(seed=1, shuffle=False), *first_epochs(seed=2, shuffle=False)}) == 1


def test_rows_of_a_batch_seldom_come_from_one_document(data):
    for name in "01":
        (data / f"{name}.txt").write_text(name * 1000)
    source = TextFiles.params(pattern=f"{data}/[01].txt")
    input = text_input(data, source=source, batch_size=8)
    mixed = [np.unique(input.batch(step)["targets"][:, 0]).size > 1 for step in range(50)]
    assert np.mean(mixed) > 0.9


@pytest.mark.parametrize("packing", ["stream", "bins"])
def test_a_fresh_start_at_any_step_gives_what_an_uninterrupted_run_gives(data, packing):
    fields = {"batch_size": 3, "packing": packing, "seed": 5}
    assert_starts_anywhere(lambda: text_input(data, **fields), range(12))


def test_examples_of_a_run_do_not_depend_on_the_batch_size(data):
    small, large = text_input(data, batch_size=2), text_input(data, batch_size=6)
    several = [row for step in range(3) for row in rows(small.batch(step))]
    for a, b in zip(several, rows(large.batch(0)), strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("packing", ["stream", "bins"])
def test_one_pass_has_every_target_once_and_fills_up_with_weight_zero(data, packing):
    input = text_input(data, batch_size=3, length=5, repeat=False, packing=packing)
    assert input.num_batches() == -(-input.num_examples() // 3)
    batches = [input.batch(step) for step in range(input.num_batches())]
    assert count_targets(batches) == expected_targets(DOCUMENTS)
    assert sum(b["weights"].sum() for b in batches) == input.num_examples() == 8
    last = batches[-1]
    assert last["weights"].tolist() == [1, 1, 0]
    assert all(not last[name][2].any() for name in FIELDS)


def test_a_single_pass_ends_with_the_data_or_after_max_batches(data):
    for max_batches, num_batches in ((None, 5), (2, 2), (99, 5)):
        input = text_input(data, repeat=False, max_batches=max_batches)
        assert input.num_batches() == num_batches
        for step in (-1, num_batches):
            with pytest.raises(IndexError, match=f"no batch {step}"):
                input.batch(step)


def test_a_batch_reads_only_the_bytes_it_needs(data, monkeypatch):
    input = text_input(data, length=4, batch_size=1)
    input.prepare()
    sizes, read = [], File.read
    monkeypatch.setattr(File, "read", lambda f, a, b: sizes.append(b - a) or read(f, a, b))
    batch = input.batch(1000)  # far into the run: nothing before it is read
    num_pieces = int(batch["segments"].max())
    assert len(sizes) == num_pieces
    assert sum(sizes) <= 4 + num_pieces


@pytest.mark.parametrize("packing", ["stream", "bins"])
def test_bytes_of_a_row_are_its_targets_without_ends(data, packing):
    input = text_input(data, packing=packing, repeat=False)
    for step in range(input.num_batches()):
        batch = input.batch(step)
        assert batch["bytes"].tolist() == (batch["targets"] >= 3).sum(axis=1).tolist()


def test_building_touches_no_disk_and_knows_the_vocabulary(tmp_path):
    input = text_input(tmp_path / "not_there")
    assert input.offers() == {"vocab_size": 259}
    for use in (input.prepare, lambda: input.batch(0), input.fingerprint):
        with pytest.raises(DataError, match="no file matches"):
            use()


def test_another_process_makes_the_same_batch(data):
    code = (
        "import sys, hashlib; from lingo.data.document_input import TextInput;"
        "from lingo.data.record_source import TextFiles;"
        f"i = TextInput.params(source=TextFiles.params(pattern={f'{data}/*.txt'!r}),"
        " batch_size=2, length=4, seed=3).build(); b = i.batch(7);"
        "print(hashlib.sha256(b''.join(b[k].tobytes() for k in sorted(b))).hexdigest(),"
        " 'tensorflow' in sys.modules)"
    )
    env = {"PYTHONHASHSEED": "1", "XDG_CACHE_HOME": str(data.parent / "other_cache")}
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env=env)
    batch = text_input(data, seed=3).batch(7)
    digest = hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch)))
    assert output.split() == [digest.hexdigest(), "False"]


def test_the_fingerprint_says_what_was_read(data):
    fingerprint = text_input(data).fingerprint()
    assert "TextFiles" in fingerprint.pop("source")
    assert len(fingerprint.pop("digest")) == 64
    num_bytes = sum(map(len, DOCUMENTS))
    assert fingerprint == {
        "tokenizer": "bytes",
        "documents": 6,
        "bytes": num_bytes,
        "tokens": num_bytes,
    }


def test_fields_that_do_not_go_together_are_refused(data):
    with pytest.raises(ParamError, match="batch_size=0 is not positive"):
        text_input(data, batch_size=0)
    with pytest.raises(ParamError, match="length=0 is not positive"):
        text_input(data, length=0)
    with pytest.raises(ParamError, match=r"max_batches=3 must be positive and needs repeat=False"):
        text_input(data, max_batches=3)
    with pytest.raises(ParamError, match="repeats without end: set repeat=False"):
        text_input(data).num_batches()


@pytest.mark.parametrize("packing", ["stream", "bins"])
def test_an_example_is_known_by_its_pass_and_its_row_in_the_plan(data, packing):
    input = text_input(data, packing=packing)
    size = input.num_examples()
    first, second = (input.origins(np.arange(n, n + size)) for n in (0, size))
    assert sorted(first) == sorted(f"0:{row}" for row in range(size))
    assert sorted(second) == sorted(f"1:{row}" for row in range(size))
    assert [o[2:] for o in first] != [o[2:] for o in second]
    if packing == "bins":  # the plan is the same in every pass: so is a row of it
        where = first.index(f"0:{second[0][2:]}")
        one, other = (input.examples(np.array([n]))["tokens"] for n in (where, size))
        np.testing.assert_array_equal(one, other)
