"""A mixture takes every example of each part in order, at its share, found without replay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.bucketed_input import BucketedInput
from lingo.data.choice_tree import ChoiceTree, constant_shares
from lingo.data.document_input import TextInput
from lingo.data.input import Input
from lingo.data.mixture import Mixture
from lingo.data.record_source import TextFiles
from lingo.data.tokenizer import ByteTokenizer
from tests.lingo.data.documents import assert_starts_anywhere, specs_of


class Numbers(Input):
    """Says which example of which part it is."""

    part: int  # its own number
    size: int = 10  # examples an epoch

    def prepare(self, *, progress: Any = None) -> None:
        if progress is not None:
            progress(self.p.size, self.p.size)

    def num_examples(self) -> int:
        return self.p.size

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        inside = numbers < self.p.size if not self.p.repeat else np.full(len(numbers), True)
        return {"part": np.full(len(numbers), self.p.part), "number": np.where(inside, numbers, -1)}

    def specs(self) -> dict[str, ArraySpec]:
        shape = (self.p.batch_size,)
        return super().specs() | {"part": (shape, "int64"), "number": (shape, "int64")}

    def fingerprint(self) -> dict[str, Any]:
        return {"part": self.p.part}


def mixture(*sizes, **fields):
    inputs = {f"p{i}": Numbers.params(part=i, size=n) for i, n in enumerate(sizes)}
    return Mixture.params(**{"inputs": inputs, "batch_size": 8} | fields).build()


def choose(numbers, shares):
    return ChoiceTree(constant_shares(shares)).choose(numbers)


SHARES = [[1.0], [1.0, 1.0], [3.0, 1.0], [0.7, 0.2, 0.1], [5.0, 1e-3, 2.0, 1.0, 1.0, 40.0, 7.0]]


@pytest.mark.parametrize("shares", SHARES)
def test_each_part_gives_its_examples_in_order_and_has_had_its_share_at_every_moment(shares):
    found, wanted = choose(np.arange(5000), shares), np.array(shares) / sum(shares)
    for part in range(len(shares)):
        numbers = found.number[found.part == part]
        np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
    had = np.cumsum(found.part[:, None] == np.arange(len(shares)), axis=0)
    error = had - wanted * np.arange(1, 5001)[:, None]
    assert np.abs(error).max() <= 0.5 * math.ceil(math.log2(max(len(shares), 2))) + 1e-6


def test_far_into_a_run_the_counts_are_exact():
    start = 10**17 + 12345
    part, number = choose(np.arange(start, start + 1000), [3.0, 1.0])
    assert np.bincount(part).tolist() == [750, 250]
    for i, share in ((0, 3), (1, 1)):
        np.testing.assert_array_equal(np.diff(number[part == i]), 1)
        assert abs(number[part == i][0] - start * share // 4) <= 1


def test_shares_are_those_of_sizes_capped_and_tempered():
    assert mixture(60, 20, 20).shares == pytest.approx([0.6, 0.2, 0.2])
    assert mixture(60, 20, 20, max_examples=20).shares == pytest.approx([1 / 3] * 3)
    assert mixture(81, 16, temperature=4.0).shares == pytest.approx([3 / 5, 2 / 5])
    assert mixture(5, 5, weights={"p1": 3.0, "p0": 1.0}).shares == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("temperature", "shares"),
    [
        (1.0, [0.990001, 0.009900, 0.000099]),
        (5.0, [0.642427, 0.255755, 0.101818]),
        (100.0, [0.348796, 0.333098, 0.318106]),
    ],
)
def test_a_temperature_lifts_languages_of_few_pairs(temperature, shares):
    """Sizes as in M4 (Arivazhagan et al. 2019), whose temperature is 5."""
    found = mixture(10**9, 10**7, 10**5, temperature=temperature).shares
    assert found == pytest.approx(shares, abs=5e-7)


def test_a_fresh_start_at_any_step_gives_what_an_uninterrupted_run_gives():
    assert_starts_anywhere(lambda: mixture(30, 10, 5), range(8))


def test_a_single_pass_has_every_example_of_every_input_once():
    input = mixture(5, 1, 7, repeat=False)
    batches = [input.batch(step) for step in range(input.num_batches())]
    real = np.concatenate([b["weights"] for b in batches]) > 0
    part = np.concatenate([b["part"] for b in batches])[real]
    number = np.concatenate([b["number"] for b in batches])[real]
    wanted = [(i, n) for i, size in enumerate((5, 1, 7)) for n in range(size)]
    assert list(zip(part.tolist(), number.tolist(), strict=True)) == wanted
    assert batches[-1]["number"][~(batches[-1]["weights"] > 0)].tolist() == [-1, -1, -1]


def test_the_fingerprint_is_that_of_each_part():
    assert mixture(1, 1).fingerprint() == {"p0": {"part": 0}, "p1": {"part": 1}}


# ---- with text ---------------------------------------------------------------------------------


class Shifted(ByteTokenizer):
    """Is no byte tokenizer, though as large."""

    def describe(self) -> str:
        return "shifted"


@pytest.fixture
def texts(tmp_path):
    parts = {}
    for name, text in (("low", "abcdefgh" * 20), ("high", "ABCDEFGH" * 20)):
        (tmp_path / f"{name}.txt").write_text(text)
        source = TextFiles.params(pattern=str(tmp_path / f"{name}.txt"))
        parts[name] = TextInput.params(source=source, length=8)
    return parts


def test_rows_are_those_that_each_input_gives_alone(texts):
    input = Mixture.params(inputs=texts, batch_size=4, seed=3).build()
    alone = [part.build(batch_size=1, seed=3) for part in texts.values()]
    assert input.specs() == specs_of(input.batch(0))
    for step in range(3):
        batch = input.batch(step)
        part, number = input.choice(batch["example_id"])
        for row, (i, n) in enumerate(zip(part, number, strict=True)):
            expected = alone[i].batch(int(n))
            for name in ("tokens", "targets", "segments", "positions"):
                np.testing.assert_array_equal(batch[name][row], expected[name][0])


def test_it_has_the_tokenizer_and_the_offers_of_its_parts(texts):
    input = Mixture.params(inputs=texts, batch_size=4).build()
    assert input.offers() == {"vocab_size": 259}
    assert input.vocab_size == 259
    assert input.tokenizer.describe() == "bytes"


def test_parts_that_are_not_alike_are_refused_at_build(texts):
    high = texts["high"]
    for part, message in (
        (high.copy().set(length=9), "differ: tokens is"),
        (BucketedInput.params(boundaries=[8]), "BucketedInput makes whole batches"),
        (high.copy().set(batch_size=2), "leave out batch_size, repeat and max_batches"),
        (high.copy().set(repeat=False, max_batches=2), "repeat and max_batches, and set them in"),
    ):
        with pytest.raises(ParamError, match=message):
            Mixture.params(inputs={"low": part, "high": high}, batch_size=4).build()


def test_tokenizers_that_differ_are_refused_when_they_are_opened(texts):
    texts["low"].tokenizer = Shifted
    with pytest.raises(ParamError, match=r"tokenizers of the inputs differ: .*shifted"):
        Mixture.params(inputs=texts, batch_size=4).build().prepare()


def test_preparing_shows_the_progress_of_every_part():
    seen = []
    mixture(3, 4).prepare(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 3), (4, 4)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"inputs": {}}, "inputs is empty"),
        ({"weights": {"p0": 1.0}}, "weights are for 'p0', but inputs are 'p0', 'p1'"),
        ({"weights": {"p0": 1.0, "p1": 0.0}}, "must be positive"),
        ({"temperature": 0.0}, "temperature and max_examples must be positive"),
        ({"max_examples": 0}, "temperature and max_examples must be positive"),
        ({"weights": {"p0": 1.0, "p1": 1.0}, "max_examples": 3}, "are for shares by size"),
        ({"repeat": False, "temperature": 2.0}, "leave out the shares"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields, reason):
    with pytest.raises(ParamError, match=reason):
        mixture(1, 1, **fields)


def test_an_example_is_known_by_its_input_its_pass_and_its_number_there():
    found = mixture(2, 6).origins(np.arange(8))
    assert sorted(found) == sorted(["p0/0:0", "p0/0:1", *(f"p1/0:{i}" for i in range(6))])
