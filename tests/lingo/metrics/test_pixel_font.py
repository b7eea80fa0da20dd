"""A pixel font: every character has dots of its own, and text is legible on any colour."""

import numpy as np
import pytest

from lingo.metrics.pixel_font import CHARACTER_WIDTH, LINE_HEIGHT, draw_text, text_dots

PRINTABLE = "".join(map(chr, range(33, 127)))


def test_every_printable_character_has_its_own_dots_and_others_share_a_box():
    pictures = {text_dots(c).tobytes() for c in PRINTABLE}
    assert len(pictures) == len(PRINTABLE)
    assert text_dots("é").tobytes() == text_dots("漢").tobytes()
    assert text_dots("é").tobytes() not in pictures


def test_a_line_is_as_wide_as_its_characters_and_an_empty_one_has_no_width():
    assert text_dots("abc").shape == (LINE_HEIGHT, 3 * CHARACTER_WIDTH - 1)
    assert text_dots("").shape == (LINE_HEIGHT, 0)


@pytest.mark.parametrize(("ground", "ink"), [(255, 0), (0, 255)])
def test_text_is_black_on_light_and_white_on_dark_and_cut_at_the_edge(ground, ink):
    pixels = np.full([10, 9, 3], ground, np.uint8)
    draw_text(pixels, "HH", top=1, left=2, scale=1)
    assert (pixels[1:9, 2:9] == np.where(text_dots("HH")[:, :7, None], ink, ground)).all()
    assert (pixels[0] == ground).all()
    draw_text(pixels, "H", top=20, left=0)  # outside: nothing
