"""Parts of JPEG and PNG: the pixels that Pillow decodes, upright, and bilinear resizing."""

from __future__ import annotations

import io
import itertools
import threading

import numpy as np
import pytest
from PIL import Image, ImageOps

from lingo.data.images import decode as decode_
from lingo.data.images.decode import PixelBudget, decode_into, part_of
from lingo.data.images.header import BrokenImage, Header, Turn, read_header
from lingo.data.images.view import Window
from lingo.ops.image.box import Box
from tests.faults.hostile_inputs import HARMLESS_IMAGES, IMAGES, ROWS, chunk, cut_jpeg, png
from tests.lingo.data.images.pictures import decode_by_pillow, encode, picture

GREY = np.asarray(Image.fromarray(picture(16, 16)).convert("L"))


def show(data, window, size=16, channels=3):
    return decode([part_of(data, read_header(data), window)], size=size, channels=channels)[0]


def decode(parts, *, size, channels):
    """Returns [B, size, size, C], or [B, *size, C] for a size of (height, width)."""
    height, width = (size, size) if isinstance(size, int) else size
    images = np.empty([len(parts), height, width, channels], np.uint8)
    decode_into(images, parts, PixelBudget())
    return images


def whole(data, channels=3):
    height, width = read_header(data).upright_size
    assert height == width == 16
    return show(data, Window(Box(0, 0, 16, 16)), channels=channels)


def bilinear(image, size):
    """Returns [*size, C] by the textbook, with the centers of pixels at half numbers."""
    out = image.astype(float)
    for axis in (0, 1):
        places = (np.arange(size[axis]) + 0.5) * out.shape[axis] / size[axis] - 0.5
        places = places.clip(0, out.shape[axis] - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, out.shape[axis] - 1)
        share = (places - low).reshape([-1 if i == axis else 1 for i in range(3)])
        out = out.take(low, axis) * (1 - share) + out.take(high, axis) * share
    return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"comment": b"of a scanner"},
        {"icc_profile": bytes(70_000)},
        {"exif": b"Exif\0\0"},
    ],
)
def test_sizes_of_jpegs_are_those_that_pillow_reads(options):
    stream = io.BytesIO()
    Image.fromarray(picture(20, 30)).save(stream, "JPEG", **options)
    header = read_header(stream.getvalue())
    assert header == Header(20, 30, Turn(), decodes_whole="progressive" in options)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pixels_are_those_that_pillow_decodes(form):
    data = encode(picture(16, 16), form)
    np.testing.assert_array_equal(whole(data), decode_by_pillow(data))
    image = Image.open(io.BytesIO(data))
    image.draft("L", None)  # a JPEG has grey in a channel of its own
    difference = whole(data, 1)[..., 0].astype(int) - np.asarray(image.convert("L"))
    assert abs(difference).max() <= (0 if form == "JPEG" else 1)


@pytest.mark.parametrize(
    ("image", "form"),
    [
        (Image.fromarray(GREY), "JPEG"),
        (Image.fromarray(GREY), "PNG"),
        (Image.fromarray(picture(16, 16)).convert("P"), "PNG"),
        (Image.fromarray(np.dstack([picture(16, 16), GREY]), "RGBA"), "PNG"),
        (Image.fromarray(np.dstack([GREY, GREY]), "LA"), "PNG"),
    ],
    ids=["grey JPEG", "grey PNG", "palette", "alpha", "grey and alpha"],
)
@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_grey_palettes_and_alpha_become_colours(image, form):
    data = encode(image, form)
    np.testing.assert_array_equal(whole(data), decode_by_pillow(data))


def test_cmyk_becomes_rgb():
    data = encode(Image.fromarray(picture(16, 16)).convert("CMYK"))
    difference = whole(data).astype(int) - decode_by_pillow(data)
    assert abs(difference).max() <= 3


def test_16_bits_become_8():
    deep = Image.fromarray((GREY.astype(np.uint16) << 8) + 7)
    np.testing.assert_array_equal(whole(encode(deep, "PNG"), 1)[..., 0], GREY)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_part_is_that_of_the_whole_image(form):
    data = encode(picture(48, 64), form)
    box = Box(row=13, column=21, height=16, width=16)
    expected = decode_by_pillow(data)[box.slices].astype(int)
    found = show(data, Window(box)).astype(int)
    # Colours of a JPEG are blurred over two pixels, which a part has not beyond its rim.
    assert abs(found - expected)[1:-1, 1:-1].max() <= (2 if form == "JPEG" else 0)
    assert abs(found - expected).max() <= (16 if form == "JPEG" else 0)
    mirrored = show(data, Window(box, is_mirrored=True))
    np.testing.assert_array_equal(mirrored, found[:, ::-1])


@pytest.mark.parametrize("box", [Box(2, 3, 24, 30), Box(0, 5, 9, 12)], ids=["smaller", "larger"])
def test_resizing_is_bilinear(box):
    data = encode(picture(40, 50), "PNG")
    expected = bilinear(decode_by_pillow(data)[box.slices], (16, 16))
    assert abs(show(data, Window(box)) - expected).max() <= 0.51


@pytest.mark.parametrize(("form", "bound"), [("PNG", 0.51), ("JPEG", 3)])
def test_a_large_part_is_divided_first_so_that_no_pixel_is_left_out(form, bound):
    image = picture(140, 200).copy()
    image[::2, ::2] ^= 32  # every fourth pixel differs, which bilinear alone would miss or hit
    data = encode(image, form, subsampling=0)
    box = Box(8, 16, 128, 160)
    means = decode_by_pillow(data)[box.slices].reshape(16, 8, 20, 8, 3).mean((1, 3))
    assert abs(show(data, Window(box)) - bilinear(means, (16, 16))).max() <= bound


@pytest.mark.parametrize("size", [16, (8, 32), (32, 8)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_exif_orientation_says(orientation, size):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(40, 50), "PNG", exif=exif)
    with Image.open(io.BytesIO(data)) as stored:
        upright = np.asarray(ImageOps.exif_transpose(stored))
    assert read_header(data).upright_size == upright.shape[:2]
    for box, is_mirrored in itertools.product([Box(3, 10, 16, 16), Box(1, 2, 21, 30)], (0, 1)):
        window = Window(box, bool(is_mirrored))
        plain = encode(np.ascontiguousarray(upright), "PNG")
        found, expected = show(data, window, size), show(plain, window, size)
        np.testing.assert_array_equal(found, expected)
        image = upright[box.slices][:, :: -1 if is_mirrored else 1]
        assert abs(found - bilinear(image, found.shape)).max() <= 0.51


def test_images_of_a_batch_do_not_depend_on_each_other():
    data = [encode(picture(20, 20, seed=i), ("JPEG", "PNG")[i % 2]) for i in range(5)]
    parts = [part_of(d, read_header(d), Window(Box(1, i, 15, 14))) for i, d in enumerate(data)]
    together = decode(parts, size=8, channels=3)
    assert together.shape == (5, 8, 8, 3)
    for part, pixels in zip(parts, together, strict=True):
        np.testing.assert_array_equal(decode([part], size=8, channels=3)[0], pixels)
    assert decode([], size=8, channels=3).shape == (0, 8, 8, 3)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n1234"])
def test_what_is_no_image_is_broken(data):
    with pytest.raises(BrokenImage, match=r"^its header is cut off or damaged$"):
        read_header(data)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_an_image_that_is_cut_short_is_broken(form):
    data = encode(picture(64, 64), form)
    with pytest.raises(BrokenImage, match=r"(?i)jpeg|png"):
        show(data[: len(data) // 2], Window(Box(0, 0, 64, 64)))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_flipped_bytes_are_pixels_or_a_broken_image_but_no_other_error(form):
    data = encode(picture(16, 16), form)
    random, broken = np.random.default_rng(0), list[str]()
    for _ in range(60):
        changed = bytearray(data)
        changed[random.integers(len(data))] ^= int(random.integers(1, 256))
        try:
            header = read_header(bytes(changed))
            part = part_of(bytes(changed), header, Window(Box(0, 0, *header.upright_size)))
            if header.height * header.width < 1e6:
                decode([part], size=4, channels=3)
        except BrokenImage as error:
            broken.append(str(error))
    assert broken
    assert all(broken)


def test_a_large_png_is_decoded_in_bands_to_the_same_pixels(monkeypatch):
    data = encode(picture(203, 301), "PNG")
    windows = [
        Window(Box(*box), is_mirrored)
        for box in [(0, 0, 203, 301), (3, 5, 140, 201), (9, 8, 16, 250), (1, 2, 30, 20)]
        for is_mirrored in (False, True)
    ]
    forms = [(window, channels) for window in windows for channels in (1, 3)]
    whole = [show(data, window, channels=channels) for window, channels in forms]
    monkeypatch.setattr(decode_, "_LARGE_PIXELS", 0)
    monkeypatch.setattr(decode_, "_BAND_PIXELS", 5000)
    for (window, channels), pixels in zip(forms, whole, strict=True):
        np.testing.assert_array_equal(show(data, window, channels=channels), pixels)


def test_an_image_of_more_pixels_than_allowed_is_broken():
    for form in ("JPEG", "PNG"):
        data = encode(picture(20, 30), form)
        assert read_header(data, max_pixels=600).upright_size == (20, 30)
        with pytest.raises(
            BrokenImage, match="it has 30 x 20 pixels, more than 599, the max_pixels"
        ):
            read_header(data, max_pixels=599)


@pytest.mark.parametrize("name", [name for name in IMAGES if name not in HARMLESS_IMAGES])
def test_a_hostile_image_is_a_broken_image(name, tmp_path):
    IMAGES[name](tmp_path / "image", b"")
    data = (tmp_path / "image").read_bytes()
    with pytest.raises(BrokenImage):
        show(data, Window(Box(0, 0, 64, 64)))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_a_sound_jpeg_may_be_grey_as_one_that_ends_early(options):
    image = picture(64, 64).copy()
    image[24:] = 128
    for pixels in (image, np.full_like(image, 128)):
        data = encode(pixels, **options)
        assert (show(data, Window(Box(0, 0, 64, 64)))[-1] == 128).all()
    if "progressive" not in options:  # whose first scans are a whole image, less sharp
        with pytest.raises(BrokenImage, match="ends early"):
            show(cut_jpeg(encode(picture(64, 64), **options), 0.3), Window(Box(0, 0, 64, 64)))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("shown", "size"), [((8, 16), 16), ((16, 8), 16), ((5, 7), 16), ((12, 12), (12, 20))]
)
def test_a_padded_jpeg_that_ends_early_is_broken(orientation, is_mirrored, shown, size):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(64, 64), exif=exif)
    window = Window(Box(0, 0, 64, 64), is_mirrored, shown)
    assert show(data, window, size).any()
    with pytest.raises(BrokenImage, match="ends early"):
        show(cut_jpeg(data, 0.3), window, size)


def test_a_png_with_32_mebibytes_behind_it_is_broken():
    data = png(64, 64, ROWS) + bytes(1 << 25)
    with pytest.raises(BrokenImage, match=r"its 33,\d+,\d+ bytes are too many for 64 x 64 pixels"):
        read_header(data)
    assert read_header(png(64, 64, ROWS, before=chunk(b"tEXt", bytes(10**6)))).height == 64


def test_threads_share_a_budget_of_pixels():
    budget, held, most = PixelBudget(10), 0, 0
    lock = threading.Lock()

    def work(pixels):
        nonlocal held, most
        for _ in range(50):
            with budget.take(pixels):
                with lock:
                    held += pixels
                    most = max(most, held)
                with lock:
                    held -= pixels

    threads = [threading.Thread(target=work, args=[pixels]) for pixels in (3, 4, 5, 10, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (held, most) == (0, 10)


def test_images_beyond_the_budget_are_decoded_one_after_the_other(monkeypatch):
    data = [encode(picture(64, 64, seed=i), "PNG") for i in range(5)]
    parts = [part_of(d, read_header(d), Window(Box(0, 0, 64, 64))) for d in data]
    expected = decode(parts, size=8, channels=3)
    taken = []
    budget = PixelBudget(64 * 64 * 2)
    take = budget.take
    monkeypatch.setattr(budget, "take", lambda pixels: taken.append(pixels) or take(pixels))
    monkeypatch.setattr(decode_, "_LARGE_PIXELS", 64 * 64)
    monkeypatch.setattr(decode_.os, "cpu_count", lambda: 4)
    images = np.empty([5, 8, 8, 3], np.uint8)
    decode_into(images, parts, budget)
    np.testing.assert_array_equal(images, expected)
    assert taken == [8192, 8192, 4096]
