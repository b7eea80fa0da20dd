"""Mixed images: what an example is does not depend on those that are read with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.array_input import ArrayInput
from lingo.data.array_spec import ArraySpec
from lingo.data.document_input import TextInput
from lingo.data.files import DataError
from lingo.data.images.mixed_input import MixedInput
from lingo.data.input import Input
from lingo.datasets.glyph_input import GlyphInput
from lingo.ops import random
from lingo.ops.image import LabelledBatch, cutmix, mixup
from tests.lingo.data.documents import assert_starts_anywhere, specs_of

SIZE, K = 10, 3
WAS_READ: list[int] = []


class Shades(Input):
    """Image n is everywhere of level 10 n, and of class n % 3, in order."""

    dtype: str = "uint8"
    num_classes: int = K

    def prepare(self, *, progress: Any = None) -> None:
        del progress

    def offers(self) -> dict[str, Any]:
        return {"num_classes": K, "image_shape": (4, 6, 1)}

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        WAS_READ.extend(numbers.tolist())
        levels = np.broadcast_to(10 * (numbers % SIZE), [6, 4, 1, len(numbers)]).T.swapaxes(1, 2)
        levels = np.ascontiguousarray(levels.reshape(-1, 4, 6, 1))
        images = levels.astype("u1") if self.p.dtype == "uint8" else (levels / 255).astype("f")
        labels = (numbers % self.p.num_classes).astype("i")
        return {"images": images, "labels": labels, "number": numbers}

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        return super().specs() | {
            "images": ((size, 4, 6, 1), self.p.dtype),
            "labels": ((size,), "int32"),
            "number": ((size,), "int64"),
        }

    def num_examples(self) -> int:
        return SIZE

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "shades"}

    def remarks(self) -> list[str]:
        return ["ten shades"]


HALF = {"mixup_rate": 0.4, "cutmix_rate": 0.4}


def mixed(**fields: Any) -> MixedInput:
    known = {"input": Shades, "batch_size": 4, "seed": 1}
    return MixedInput.params(**known | fields).build()


@pytest.mark.parametrize("fields", [{}, {"mixup_rate": 0.0, "cutmix_rate": 1.0}, HALF])
def test_a_batch_is_the_same_in_any_order_of_asking_and_in_parts(fields: dict[str, Any]) -> None:
    assert_starts_anywhere(lambda: mixed(**fields), range(6))  # 24 examples of epochs of 10


@pytest.mark.parametrize("fields", [{}, {"mixup_rate": 0.0, "cutmix_rate": 1.0}])
def test_an_example_is_mixed_with_the_next_one_by_its_own_key(fields: dict[str, Any]) -> None:
    batch, numbers = mixed(**fields).batch(2), np.arange(8, 13)  # the partner of 11 is 12
    plain = Shades.params(batch_size=4).build().examples(numbers)
    both = LabelledBatch(plain["images"], np.eye(K, dtype="f")[plain["labels"]])
    root = random.fold(random.root_key(1), random.text_hash("mixed"))
    keys = random.fold(random.fold(root, 0), numbers[:4])
    own, partners = (LabelledBatch(*(a[part] for a in both)) for part in np.s_[:4, 1:])
    if fields:
        images, labels = cutmix(own, keys, partners=partners, alpha=1.0)
    else:
        images, labels = mixup(own, keys, partners=partners, alpha=0.2)
    np.testing.assert_array_equal(batch["images"], images)
    np.testing.assert_array_equal(batch["labels"], labels)


def test_levels_are_those_of_the_shares_of_the_labels_rounded() -> None:
    batch = mixed(batch_size=8, mixup_alpha=1.0).batch(0)
    share = batch["labels"][np.arange(8), np.arange(8) % K]
    assert (share >= 0.5).all()
    expected = np.rint(10 * (share * np.arange(8) + (1 - share) * np.arange(1, 9)))
    np.testing.assert_array_equal(batch["images"][:, 0, 0, 0], expected)
    np.testing.assert_allclose(batch["labels"].sum(1), 1, rtol=1e-6)


def test_one_more_example_is_read_for_a_part_and_none_where_nothing_is_mixed() -> None:
    for fields, expected in (({}, range(4, 9)), ({"mixup_rate": 0.0}, range(4, 8))):
        WAS_READ.clear()
        mixed(**fields).batch(1)
        assert list(expected) == WAS_READ


def test_rates_are_those_of_examples() -> None:
    data = mixed(batch_size=4000, **HALF, mixup_alpha=5.0, cutmix_alpha=5.0)
    images = data.batch(0)["images"].reshape(4000, -1).astype(int)
    own = 10 * (np.arange(4000) % SIZE)
    is_flat = (images == images[:, :1]).all(1)
    is_own = is_flat & (images[:, 0] == own)
    assert abs((~is_flat).mean() - 0.4) < 0.05  # CutMix
    assert abs((is_flat & ~is_own).mean() - 0.4) < 0.06  # MixUp
    assert abs(is_own.mean() - 0.2) < 0.06


def test_a_single_pass_mixes_nothing_and_its_labels_are_shares() -> None:
    data = mixed(repeat=False, input=GlyphInput.params(images_per_class=1), batch_size=32)
    plain = GlyphInput.params(images_per_class=1, batch_size=32, repeat=False, seed=1).build()
    assert data.num_batches() == 2
    for step in range(2):
        found, expected = data.batch(step), plain.batch(step)
        np.testing.assert_array_equal(found["images"], expected["images"])
        np.testing.assert_array_equal(found["labels"], np.eye(47, dtype="f")[expected["labels"]])
        np.testing.assert_array_equal(found["weights"], expected["weights"])


def test_what_is_known_of_the_data_is_that_of_the_input() -> None:
    data, plain = mixed(), Shades.params(batch_size=4).build()
    assert data.offers() == plain.offers()
    assert data.fingerprint() == plain.fingerprint()
    assert data.remarks() == plain.remarks()
    assert data.origins(np.array([3, 12])) == plain.origins(np.array([3, 12])) == ["0:3", "1:2"]
    assert (data.num_examples(), data.num_items(), data.num_rows(1)) == (SIZE, SIZE, 4)
    assert data.specs() == specs_of(data.batch(0))
    assert data.batch(1)["number"].tolist() == [4, 5, 6, 7]
    data.prepare()
    data.check_specs()
    data.check_repeatable()


def test_classes_may_be_more_than_those_of_the_data() -> None:
    data = mixed(num_classes=7)
    assert data.offers()["num_classes"] == 7
    assert data.batch(0)["labels"].shape == (4, 7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mixup_rate": 0.6, "cutmix_rate": 0.5},
            "cutmix_rate=0.5 must be prob",
        ),
        ({"mixup_rate": -0.1}, "mixup_rate=-0.1 and"),
        ({"mixup_alpha": 0.0}, r"mixup_alpha=0\.0 is not positive"),
        ({"cutmix_alpha": -1.0}, r"cutmix_alpha=-1\.0 is not positive"),
        ({"num_classes": 0}, "num_classes=0 is not positive"),
        ({"input": Shades.params(batch_size=2)}, "leave out batch_size, repeat and"),
        ({"input": ArrayInput.params(file="a.npz")}, "ArrayInput does not offer num_classes"),
    ],
)
def test_fields_that_do_not_suit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        mixed(**fields)


def test_an_input_without_images_is_refused() -> None:
    data = mixed(input=TextInput.params(length=8), num_classes=3)
    with pytest.raises(ParamError, match=r"TextInput has .*, but MixedInput needs images"):
        data.specs()


def test_a_label_beyond_the_classes_names_its_example() -> None:
    data = mixed(input=Shades.params(num_classes=5))
    with pytest.raises(DataError, match="the label of example 0:3 is 3, but there are 3 classes"):
        data.batch(0)


def test_images_that_cannot_be_mixed_are_refused() -> None:
    data = mixed(input=Dark)
    with pytest.raises(ParamError, match=r"input: a float32 image is in 0\.\.1"):
        data.batch(0)


class Dark(Shades):
    """Shades below black."""

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        arrays = super().examples(numbers)
        return arrays | {"images": -1 - arrays["images"].astype("f")}
