"""The 3D U-Net against slow NumPy, and its numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.models.image.unet import UNet3D

VOLUME = np.random.default_rng(0).normal(size=[2, 5, 4, 3, 2])
PLACES = list(itertools.product(range(2), repeat=3))


def convolve(x, w):
    """Returns the sums over 3x3x3 windows, or one position, of x surrounded by zeros."""
    reach = w.shape[0] // 2
    padded = np.pad(x, [(0, 0), *[(reach, reach)] * 3, (0, 0)])
    y = np.zeros((*x.shape[:-1], w.shape[-1]))
    for place in np.ndindex(*w.shape[:3]):
        cut = [slice(i, i + n) for i, n in zip(place, x.shape[1:-1], strict=True)]
        y += padded[:, *cut] @ w[place]
    return y


def unit(x, values, path):
    """Returns relu(norm(conv(x))), with the moving averages of the norm."""
    x = convolve(x, values[f"{path}/conv/w"])
    norm = {name: values[f"{path}/norm/{name}"] for name in ("gamma", "beta", "moving_mean")}
    variance = values[f"{path}/norm/moving_mean_square"] - norm["moving_mean"] ** 2
    scaled = norm["gamma"] * (x - norm["moving_mean"]) / np.sqrt(variance + 1e-5)
    return np.maximum(scaled + norm["beta"], 0)


def pool(x):
    """Returns the largest value of each 2x2x2 window; those at the end may be smaller."""
    halves = [-(-size // 2) for size in x.shape[1:-1]]
    y = np.full((len(x), *halves, x.shape[-1]), -np.inf)
    for place in np.ndindex(*x.shape[1:-1]):
        window = (slice(None), *(i // 2 for i in place))
        y[window] = np.maximum(y[window], x[:, *place])
    return y


def enlarge(x, w, like):
    """Returns x with a window in place of each position, cut off to the size of `like`."""
    y = np.zeros((len(x), *[2 * size for size in x.shape[1:-1]], w.shape[-1]))
    for place in PLACES:
        y[:, *(slice(i, None, 2) for i in place)] = x @ w[place]
    return y[:, *(slice(size) for size in like.shape[1:-1])]


def expected(x, values, num_levels):
    levels = []
    for level in range(num_levels):
        x = pool(x) if level else x
        for i in (2 * level, 2 * level + 1):
            x = unit(x, values, f"down/{i}")
        levels.append(x)
    for step, same in enumerate(reversed(levels[:-1])):
        x = np.concatenate([same, enlarge(x, values[f"enlargements/{step}/w"], same)], -1)
        for i in (2 * step, 2 * step + 1):
            x = unit(x, values, f"up/{i}")
    return convolve(x, values["conv/w"]) + values["conv/b"]


@pytest.mark.parametrize("num_levels", [1, 2, 3])
def test_it_computes_what_slow_numpy_does_for_sizes_that_do_not_halve(num_levels):
    layer = UNet3D.params(dim=2, num_classes=3, width=2, num_levels=num_levels).build()
    draw = np.random.default_rng(1)
    weights, states = (
        {path: draw.normal(0, 0.5, spec.program_shape) for path, spec in specs.items()}
        for specs in (layer.weights(), layer.states())
    )
    for path in states:
        if path.endswith("_square"):
            states[path] = 1 + states[path.removesuffix("_square")] ** 2  # a variance of 1
    x, weights_32, states_32 = tf.nest.map_structure(
        lambda value: tf.constant(value, tf.float32), (VOLUME, weights, states)
    )
    y, _ = context.apply(layer, weights_32, x, call={"state": states_32})
    wanted = expected(VOLUME, weights | states, num_levels)
    assert y.shape == layer.output_shape(VOLUME.shape) == wanted.shape == (2, 5, 4, 3, 3)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_the_network_of_the_paper_has_its_weights():
    specs = UNet3D.params(dim=3, num_classes=3, num_levels=4).build().weights()
    sizes = {path: int(np.prod(spec.program_shape)) for path, spec in specs.items()}
    gammas = sum(size for path, size in sizes.items() if path.endswith("/gamma"))
    assert sum(sizes.values()) - gammas == 19_069_955  # Cicek et al. 2016, sec. 2


def test_no_level_is_refused():
    with pytest.raises(ParamError, match="num_levels=0 is not positive"):
        UNet3D.params(dim=1, num_classes=2, num_levels=0).build()
