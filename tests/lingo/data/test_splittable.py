"""What is held out is a function of each thing alone, and stays what it was."""

import hashlib

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import File
from lingo.data.record_source import TextFiles
from lingo.data.splittable import Splittable, split_hash
from lingo.datasets.digits import Digits

HASHES = np.array([split_hash(b"%d" % i) for i in range(1000)], np.uint64)


def inside(split, fraction=0.2):
    return Splittable.params(split=split, heldout_fraction=fraction).build().in_split(HASHES)


def test_train_and_heldout_share_nothing_and_together_are_all():
    assert (inside("train") ^ inside("heldout")).all()
    assert inside("all").all()
    assert 150 < inside("heldout").sum() < 250


def test_what_a_smaller_fraction_holds_out_a_larger_one_does_too():
    assert (inside("heldout", 0.1) <= inside("heldout", 0.3)).all()


def test_a_hash_is_on_one_side_of_the_fraction_exactly():
    half = Splittable.params(split="heldout", heldout_fraction=0.5).build()
    edge = np.array([2**63 - 1, 2**63], np.uint64)
    np.testing.assert_array_equal(half.in_split(edge), [True, False])


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_fraction_that_leaves_a_part_empty_is_refused(fraction):
    with pytest.raises(ParamError, match="is not between 0 and 1"):
        Splittable.params(heldout_fraction=fraction).build()


def test_files_are_split_by_their_names_as_ever():
    source = TextFiles.params(pattern="/x", split="heldout", heldout_fraction=0.25).build()
    names = [f"folder/{i}.txt" for i in range(200)]
    files = [File(name, f"/x/{name}", size=1, modification_time=0) for name in names]
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in names]
    expected = [digest[0] < "4" for digest in digests]  # a quarter of all first digits
    assert source.files_in_split(files).tolist() == expected


def test_the_digits_that_are_held_out_are_those_of_published_runs():
    heldout = Digits.params(split="heldout").build().fingerprint()
    assert heldout["images"] == 334
    assert heldout["source"] == "Digits(split='heldout')"
    assert heldout["digest"].startswith("452fa1a5853f5368")
