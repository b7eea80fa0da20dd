import math

import numpy as np

from lingo.metrics.input_picture import summarize_inputs


def num_coloured(pixels: np.ndarray, row: int, column: int) -> int:
    """Returns the widest run of a bar's colour in a cell of the picture, in pixels."""
    cell = pixels[20 * row + 3 : 20 * row + 17, 6 + 134 * column : 6 + 134 * (column + 1)]
    return int((cell == (107, 174, 214)).all(axis=-1).sum(axis=1).max())


def test_a_bar_is_as_long_as_its_share_of_the_largest_value():
    metrics = {"de": {"bleu": 20.0, "loss": 1.0}, "hsb": {"bleu": 5.0, "loss": 2.0, "more": 1.0}}
    media = summarize_inputs(metrics)
    table = {"input": ["de", "hsb"], "bleu": [20.0, 5.0], "loss": [1.0, 2.0]}
    assert media["inputs/table"].columns == table, "only what both have"
    pixels = media["inputs/picture"].pixels
    assert pixels.shape == (60, 408, 3)
    bars = [num_coloured(pixels, row, column) for row in (1, 2) for column in (1, 2)]
    assert np.allclose(bars, [129, 65, 33, 129], atol=1)


def test_values_without_a_bar_are_drawn_as_numbers():
    media = summarize_inputs({"de": {"loss": math.nan}, "fr": {"loss": 0.0}})
    pixels = media["inputs/picture"].pixels
    assert num_coloured(pixels, 1, 1) == num_coloured(pixels, 2, 1) == 0
    assert (pixels < 255).any()


def test_inputs_without_a_shared_metric_show_nothing():
    assert summarize_inputs({"de": {"bleu": 1.0}, "digits": {"accuracy": 0.5}}) == {}
