"""Images of another size against TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.vision.resize import Resize

IMAGES = np.random.default_rng(0).normal(size=[2, 5, 4, 3]).astype("f")


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(10, 8), (3, 9), (5, 4), (1, 1)])
def test_it_is_tensorflows(size: tuple[int, int], method: str) -> None:
    layer = Resize.params(size=size, method=method).build()
    found, _ = context.apply(layer, {}, tf.constant(IMAGES))
    assert tuple(found.shape) == layer.output_shape(IMAGES.shape)
    np.testing.assert_allclose(found, tf.image.resize(IMAGES, size, method), rtol=1e-5, atol=1e-5)


def test_no_size_is_refused() -> None:
    with pytest.raises(ParamError, match="size"):
        Resize.params(size=(0, 3)).build()
