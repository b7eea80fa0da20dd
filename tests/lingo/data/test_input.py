"""The input contract counts batches and epochs from the number of examples."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.input import Input


class Seven(Input):
    """Has seven examples."""

    def num_examples(self) -> int:
        return 7


def seven(**fields):
    return Seven.params(**fields).build()


@pytest.mark.parametrize(("batch_size", "batches"), [(3, 3), (7, 1), (100, 1)])
def test_the_last_batch_of_a_pass_counts(batch_size, batches):
    assert seven(batch_size=batch_size, repeat=False).num_batches() == batches


def test_examples_and_epochs_are_counted_from_the_first_step_on():
    assert [seven(batch_size=14).epochs(step) for step in (0, 1, 5)] == [0.0, 2.0, 10.0]
    assert [seven(batch_size=3).examples_before(step) for step in (0, 1, 5)] == [0, 3, 15]


def test_an_input_offers_and_remarks_nothing_unless_it_says_so():
    assert seven(batch_size=1).offers() == {}
    assert seven(batch_size=1).remarks() == []


class Drawing(Seven):
    """Has noise in every example: NaN, or what NumPy draws."""

    kind: str = "none"

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        return {**super().specs(), "x": ((size,), "float64"), "name": ((size,), "string")}

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        if self.p.kind == "noise":
            return {"x": np.random.rand(len(numbers)), "y": numbers}
        if self.p.kind == "names":
            return {"x": np.array([b"a", b"bc"], object), f"y{np.random.rand()}": numbers}
        if self.p.kind == "in place":
            self.memory = getattr(self, "memory", np.zeros(len(numbers)))
            self.memory += 1
            return {"x": self.memory}
        names = np.array([f"{n}".encode() for n in numbers], object)
        return {"x": np.full(len(numbers), np.nan), "name": names}


def test_an_input_that_gives_the_same_batch_again_is_repeatable():
    Drawing.params(batch_size=2).build().check_repeatable()


@pytest.mark.parametrize(
    ("kind", "arrays"), [("noise", "x"), ("names", r"y0\.\d+, y0\.\d+"), ("in place", "x")]
)
def test_an_input_that_does_not_is_refused_and_the_arrays_named(kind, arrays):
    with pytest.raises(
        ParamError, match=rf"Drawing: .* differs in {arrays}\. .*lingo\.ops\.random"
    ):
        Drawing.params(batch_size=2, kind=kind).build().check_repeatable()


@pytest.mark.parametrize("repeat", [True, False])
def test_the_ids_of_a_step_are_known_without_its_batch(repeat):
    drawing = Drawing.params(batch_size=2, repeat=repeat).build()
    for step in (0, 1, 3):
        ids = drawing.batch(step)["example_id"]
        np.testing.assert_array_equal(drawing.example_ids(step), ids)


def test_an_input_has_no_class_names_and_reads_no_other_files_unless_it_says_so():
    drawing = Drawing.params(batch_size=2).build()
    assert drawing.class_names == ()
    assert drawing.example_names(np.array([0, 12])) == []
    with pytest.raises(ParamError, match=r"Drawing cannot read a/b\.csv: it defines no"):
        drawing.unlabeled_params("a/b.csv")
