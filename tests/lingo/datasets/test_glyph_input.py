"""Drawn letters and digits: their classes, their split by family, and what each image shows."""

from __future__ import annotations

import collections
import importlib.util
import itertools
import string
import subprocess
import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.datasets import glyph_input, typeface
from lingo.datasets.glyph import Change, draw_glyph
from lingo.datasets.glyph_input import GlyphInput
from lingo.datasets.typeface import CLASSES, FAMILIES, read_font
from tests.lingo.data.documents import assert_starts_anywhere, specs_of

CHARACTERS = string.digits + string.ascii_letters
FACES = [face for faces in FAMILIES.values() for face in faces]


def glyphs(**fields):
    return GlyphInput.params(**{"batch_size": 4} | fields).build()


def draw(face, character, *, size, change):
    return draw_glyph(glyphs(size=size)._font(face), character, size=size, change=change)


@pytest.fixture(scope="module")
def plain() -> dict[tuple[str, str], np.ndarray]:
    """Returns each character of each face without any change, uint8 [32, 32]."""
    data = glyphs()
    return {
        (face, c): draw_glyph(data._font(face), c, size=32, change=Change())
        for face in FACES
        for c in CHARACTERS
    }


def test_all_letters_and_digits_have_one_of_47_classes():
    assert sorted("".join(CLASSES)) == sorted(CHARACTERS)
    assert len(CLASSES) == 47
    assert [c for c in CLASSES if len(c) == 2] == [c + c.lower() for c in "CIJKLMOPSUVWXYZ"]


def test_there_are_22_faces_and_no_family_is_in_both_splits():
    faces = {split: set(glyphs(split=split).faces) for split in ("all", "train", "heldout")}
    assert len(faces["all"]) == 22
    assert faces["train"] | faces["heldout"] == faces["all"]
    families = [
        {name for name, members in FAMILIES.items() if faces[split] & {*members}}
        for split in ("train", "heldout")
    ]
    assert families == [{"DejaVu", "STIX"}, {"Computer Modern"}]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_classes_faces_and_cases_are_balanced(split):
    data = glyphs(split=split, images_per_class=96)
    shown = [data.glyph(index) for index in range(data.num_examples())]
    assert len(shown) == 47 * 96
    counts = collections.Counter((glyph.label, glyph.face, glyph.character) for glyph in shown)
    assert {name for _, _, name in counts} == {*CHARACTERS}
    for (label, _, character), count in counts.items():
        assert character in CLASSES[label]
        assert count == 96 / len(data.faces) / len(CLASSES[label])


def test_every_character_of_every_face_has_ink_and_differs_from_the_others(plain):
    assert all(image.max() > 128 for image in plain.values())
    for face in FACES:
        assert len({plain[face, c].tobytes() for c in CHARACTERS}) == len(CHARACTERS)


def test_faces_differ_from_each_other(plain):
    alphabets = [b"".join(plain[face, c].tobytes() for c in CHARACTERS) for face in FACES]
    assert len({*alphabets}) == 22


@pytest.mark.parametrize("face", FACES)
def test_letters_share_a_baseline_and_are_centred(face):
    bottoms = {}
    for character in "HExhn":
        image = draw(face, character, size=128, change=Change())
        rows, columns = (np.flatnonzero(image.max(axis=axis) > 127) for axis in (1, 0))
        bottoms[character] = rows[-1]
        assert abs(columns[0] + columns[-1] - 127) <= 1
    assert bottoms["H"] == bottoms["E"] == 86  # 0.68 of 128 pixels
    assert all(bottom - 86 in (0, 1) for bottom in bottoms.values())  # 1: strokes of italics curve


def test_the_largest_changes_leave_the_rims_black():
    data = glyphs(size=32)
    extremes = [
        Change(0.04 * x, 0.04 * y, 1.1, 0.15 * slant)
        for x, y, slant in itertools.product((-1, 1), repeat=3)
    ]
    for face, character, change in itertools.product(FACES, "WMmQgjif", extremes):
        image = draw_glyph(data._font(face), character, size=32, change=change)
        rim = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert not rim.any(), (face, character, change)


def test_changes_move_scale_and_slant():
    images = {
        name: draw("DejaVuSans", "l", size=128, change=change).astype(float)
        for name, change in {
            "plain": Change(),
            "right": Change(x=0.0625),
            "down": Change(y=0.0625),
            "large": Change(scale=1.1),
            "slanted": Change(slant=0.15),
        }.items()
    }
    np.testing.assert_array_equal(images["right"][:, 8:], images["plain"][:, :-8])
    np.testing.assert_array_equal(images["down"][8:], images["plain"][:-8])
    assert images["large"].sum() == pytest.approx(1.21 * images["plain"].sum(), rel=0.01)
    assert images["slanted"].sum() == pytest.approx(images["plain"].sum(), rel=0.01)
    columns = np.arange(128)
    centres = [images["slanted"][row] @ columns / images["slanted"][row].sum() for row in (40, 80)]
    assert centres[0] - centres[1] == pytest.approx(0.15 * 40, abs=0.2)


def test_changes_are_within_their_limits_and_use_them():
    changes = np.array(glyphs()._changes(np.arange(2000)))
    limits = np.array([0.04, 0.04, 0.1, 0.15])
    parts = (changes - [0, 0, 1, 0]) / limits
    assert (abs(parts) <= 1).all()
    assert (parts.max(axis=0) > 0.98).all()
    assert (parts.min(axis=0) < -0.98).all()
    assert (abs(np.corrcoef(parts.T) - np.eye(4)) < 0.1).all()


def test_splits_change_their_images_differently():
    numbers = np.arange(50)
    train, heldout = (set(glyphs(split=s)._changes(numbers)) for s in ("train", "heldout"))
    assert not train & heldout


def test_images_of_a_character_differ_by_their_number_alone():
    data = glyphs(split="heldout", images_per_class=96)
    indices = 47 * 12 * np.arange(8)  # all show the same
    assert len({data.glyph(i) for i in indices.tolist()}) == 1
    images = data.read_indices(indices)["images"]
    assert len({image.tobytes() for image in images}) == 8
    other = glyphs(split="heldout", images_per_class=95, seed=1)
    np.testing.assert_array_equal(other.read_indices(indices)["images"], images)
    still = glyphs(split="heldout", variation=0).read_indices(indices)["images"]
    assert len({image.tobytes() for image in still}) == 1


def test_batches_are_functions_of_seed_and_step():
    assert_starts_anywhere(lambda: glyphs(images_per_class=1, batch_size=20), range(4))
    whole = glyphs(batch_size=8).batch(3)
    part = glyphs(batch_size=8).batch(3, rows=slice(2, 5))
    for name, array in part.items():
        np.testing.assert_array_equal(array, whole[name][2:5])


def test_images_are_the_same_in_another_process():
    program = (
        "import zlib; from lingo.datasets import GlyphInput;"
        "print(zlib.crc32(GlyphInput.params(batch_size=64).build().batch(0)['images'].tobytes()))"
    )
    found = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert found[0].stdout == found[1].stdout


def test_a_batch_is_as_offered_and_as_specs_say():
    data = glyphs(size=48)
    offers = data.offers()
    assert offers.pop("class_names") == CLASSES
    assert offers == {"num_classes": 47, "image_shape": (48, 48, 1)}
    batch = data.batch(0)
    assert specs_of(batch) == data.specs()
    assert (batch["images"].dtype, batch["labels"].dtype) == (np.uint8, np.int32)
    assert batch["images"].shape == (4, 48, 48, 1)
    data.check_repeatable()


def test_a_single_pass_ends_with_black_images_of_no_weight():
    data = glyphs(images_per_class=1, repeat=False, shuffle=False)
    last = data.batch(data.num_batches() - 1)
    assert last["weights"].tolist() == [1, 1, 1, 0]
    assert last["labels"].tolist() == [44, 45, 46, 0]
    assert [image.any() for image in last["images"]] == [True, True, True, False]


def test_the_fingerprint_tells_faces_and_drawings_apart(monkeypatch):
    data = glyphs(split="heldout")
    first = data.fingerprint()
    assert first == glyphs(split="heldout", seed=1).fingerprint()
    assert first["source"] == "glyphs of 6 faces, 32 pixels"
    assert first["examples"] == 47 * 480
    assert first["bytes"] == sum(len(read_font(face)) for face in data.faces)
    others = [{"split": "train"}, {"size": 33}, {"variation": 0.5}]
    prints = [glyphs(**{"split": "heldout"} | other).fingerprint() for other in others]
    monkeypatch.setattr(glyph_input, "draw_glyph", lambda *_, size, **__: np.zeros((size, size)))
    prints.append(data.fingerprint())
    assert len({one["digest"] for one in [first, *prints]}) == 5


def test_matplotlib_is_not_imported():
    program = "import sys; from lingo.datasets import GlyphInput;"
    program += (
        "GlyphInput.params(batch_size=1).build().batch(0); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"size": 31}, "size=31 is not from 32 to 224 pixels"),
        ({"size": 225}, "size=225 is not from 32 to 224 pixels"),
        ({"images_per_class": 0}, "images_per_class=0 is not positive"),
        ({"variation": 1.5}, "variation=1.5 is not from 0 to 1"),
        ({"variation": -0.5}, "variation=-0.5 is not from 0 to 1"),
        ({"split": "test"}, "split"),
    ],
)
def test_fields_out_of_range_are_refused(field, message):
    with pytest.raises(ParamError, match=message):
        glyphs(**field)


def test_without_matplotlib_an_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    data = glyphs()
    assert data.offers()["num_classes"] == 47
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[data\]'"):
        data.prepare()


def test_a_font_that_is_missing_or_damaged_is_an_error(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("matplotlib", tmp_path / "__init__.py")
    monkeypatch.setattr(typeface.importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(DataError, match=r"DejaVuSans\.ttf cannot be read: No such file"):
        glyphs().prepare()
    folder = tmp_path / "mpl-data" / "fonts" / "ttf"
    folder.mkdir(parents=True)
    (folder / "DejaVuSans.ttf").write_bytes(b"not a font")
    with pytest.raises(DataError, match=r"DejaVuSans\.ttf of matplotlib is not a font"):
        glyphs().prepare()
