"""Media: what is shown is what was given, and what cannot be shown is told in a few words."""

import io
import wave

import numpy as np
import pytest

from lingo.metrics.media import MAX_ROWS, Audio, Histogram, Image, Table, Text, media_problem


@pytest.mark.parametrize("shape", [(64, 80), (64, 80, 1), (64, 80, 3)])
def test_pixels_of_every_form_are_the_same_image(shape):
    grey = np.random.default_rng(0).integers(0, 256, (64, 80)).astype(np.uint8)
    pixels = np.broadcast_to(grey.reshape([64, 80, *[1] * (len(shape) - 2)]), shape)
    expected = np.stack([grey] * 3, axis=-1)
    assert (Image(pixels).to_rgb() == expected).all()
    assert (Image(pixels / 255).to_rgb() == expected).all()


def test_floats_are_clipped_and_unknown_ones_are_black():
    pixels = np.array([[-1.0, 2.0, np.nan, 0.5]]).repeat(64, axis=0).repeat(64, axis=1)
    assert Image(pixels).to_rgb()[0, ::64, 0].tolist() == [0, 255, 0, 128]


def test_several_small_images_are_side_by_side_and_enlarged():
    digits = np.zeros([3, 8, 8, 1])
    digits[1] = 1
    row = Image(digits).to_rgb()
    assert row.shape == (64, 3 * 64 + 2 * 4, 3)
    assert not row[:, :64].any()
    assert (row[:, 64 : 64 + 4 + 64 + 4] == 255).all()


def decode(file: bytes) -> tuple[int, np.ndarray]:
    """Returns the rate and the samples, int16 [L, C], of a WAV file."""
    with wave.open(io.BytesIO(file)) as stream:
        samples = np.frombuffer(stream.readframes(stream.getnframes()), "<i2")
        return stream.getframerate(), samples.reshape(-1, stream.getnchannels())


def test_sounds_of_any_length_are_files_with_the_same_samples():
    draw = np.random.default_rng(0)
    sounds = [draw.integers(-32768, 32768, [size, 2]).astype(np.int16) for size in (5, 0, 300)]
    audio = Audio(sounds, 16_000)
    assert not audio.problem()
    for file, sound in zip(audio.to_wav(), sounds, strict=True):
        rate, samples = decode(file)
        assert rate == 16_000
        np.testing.assert_array_equal(samples, sound)


def test_floats_of_a_sound_are_clipped_and_unknown_ones_are_silence():
    audio = Audio(np.array([[[-2.0], [-1.0], [0.5], [3.0], [np.nan]]], np.float32), 8000)
    (file,) = audio.to_wav()
    assert decode(file)[1].ravel().tolist() == [-32767, -32767, 16384, 32767, 0]


def test_captions_are_shown_as_they_are():
    assert Audio(np.zeros([2, 3, 1]), 8000).to_markdown() == ["", ""]
    (caption,) = Audio(np.zeros([1, 3, 1]), 8000, ["a_b <i>"]).to_markdown()
    assert caption == "a&#95;b &#60;i&#62;"


def test_a_histogram_has_the_finite_values():
    values = np.array([[1, np.nan], [np.inf, 2]])
    assert Histogram(values).finite().tolist() == [1, 2]


def test_cells_of_a_table_are_shown_as_they_are():
    nasty = "a|b *c* <i>_d_\n`e`"
    text = Table({"text | x": [nasty, b"ok"], "n": np.array([1, 20]), "p": [0.25, np.nan]})
    lines = text.to_markdown().splitlines()
    assert len(lines) == 4
    assert lines[1] == "|---|---|---|"
    assert all(line.count("|") == 4 for line in lines)
    assert not set("*<_`") & set("".join(lines))
    assert lines[3] == "| ok | 20 | nan |"


def test_a_long_table_says_how_many_rows_it_leaves_out():
    text = Table({"n": range(MAX_ROWS + 5)}).to_markdown()
    assert text.endswith("\n\n5 more rows")
    assert len(text.splitlines()) == MAX_ROWS + 2 + 2


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Image(np.zeros([3, 4, 5])), r"shape \[3, 4, 5\], not \[H, W, 3\]"),
        (Image(np.zeros([3])), r"shape \[3\]"),
        (Image(np.zeros([3, 4], np.int64)), "are int64: take uint8"),
        (Image(np.zeros([0, 4])), "no pixels"),
        (Histogram(np.array(["a"])), "are <U1, not numbers"),
        (Audio([np.zeros(4)], 8000), r"shape \[4\], not \[L, C\]"),
        (Audio([np.zeros([4, 1], int)], 8000), "is int64: take int16"),
        (Audio(np.zeros([1, 4, 1]), 0), "sample_rate of an Audio is 0, not an int of 1 to 768,000"),
        (Audio(np.zeros([1, 4, 1]), 8e3), "is 8000.0, not an int"),
        (Audio(np.zeros([1, 4, 1]), 8000, ["a", "b"]), "1 waveforms, but 2 captions"),
        (Audio([], 8000), "no waveform"),
        (Audio(3, 8000), "no list of arrays"),
        (Text(3), "a Text holds a int, not a str"),
        (Table({}), "no columns"),
        (Table({"a": "text"}), "column 'a' of a Table is not a list"),
        (Table({"a": [1], "b": [1, 2]}), r"different numbers of cells: {'a': 1, 'b': 2}"),
        ("text", "it is a str"),
        (True, "it is a bool"),
        (np.zeros(2), "it is a ndarray"),
    ],
)
def test_what_cannot_be_shown_is_told(value, why):
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(media_problem(value))


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.5,
        np.float32(2),
        np.array(3.0),
        Image(np.zeros([2, 2], bool)),
        Audio(np.zeros([1, 4, 2], np.float32), np.int32(8000)),
        Text(""),
        Table({"a": []}),
    ],
)
def test_what_can_be_shown_has_no_problem(value):
    assert media_problem(value) == ""
