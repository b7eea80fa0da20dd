"""Learning rates and steps by the batch size: published settings, and errors."""

import pytest

from lingo.config.params import ParamError
from lingo.optim.scaling import epochs_to_steps, scale_by_root, scale_linearly


def test_published_rates_of_resnet_50_follow_the_linear_rule():
    """Goyal et al. 2017: 0.1 for 256 images, 3.2 for 8192."""
    assert scale_linearly(0.1, batch_size=8192, base_batch_size=256) == pytest.approx(3.2)


def test_64_times_the_examples_have_8_times_the_rate_by_the_root_rule():
    rate = scale_by_root(0.00125, batch_size=32768, base_batch_size=512)
    assert rate == pytest.approx(0.01)


def test_the_warm_up_of_25_epochs_of_imagenet_has_977_steps():
    assert epochs_to_steps(25, num_examples=1_281_167, batch_size=32_768) == 977


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (scale_linearly, {"rate": 0.1, "batch_size": 0, "base_batch_size": 256}, "batch_size=0"),
        (
            scale_by_root,
            {"rate": 0.1, "batch_size": 8, "base_batch_size": -1},
            "base_batch_size=-1",
        ),
        (scale_linearly, {"rate": 0.0, "batch_size": 8, "base_batch_size": 8}, "rate=0.0"),
        (epochs_to_steps, {"epochs": 0, "num_examples": 1, "batch_size": 1}, "epochs=0"),
    ],
)
def test_what_is_not_positive_is_refused(function, arguments, words):
    with pytest.raises(ParamError, match=f"{words} is not positive"):
        function(**arguments)
