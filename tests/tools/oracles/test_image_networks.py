"""What timm and torchvision compute is stored for each network, and both sides draw the same.

Nothing here needs torch: tools/oracles/image_networks.py wrote the files.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tools.oracles.image_networks import (
    FOLDER,
    NETWORKS,
    NUM_CLASSES,
    draw_images,
    draw_tensors,
)


def test_there_is_a_file_for_each_network_and_no_other() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {f"{name}.json" for name in NETWORKS}


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_depend_on_the_image(name: str) -> None:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    assert {*content["versions"]} == {"torch", name.partition(".")[0]}
    assert tuple(content["size"]) == NETWORKS[name]
    first, second = np.array(content["logits"])
    assert first.shape == (NUM_CLASSES,)
    assert 0.5 <= np.abs(first - second).max() <= 2


def test_tensors_are_drawn_in_the_order_of_their_names() -> None:
    shapes = {"b.weight": (4, 3, 2, 2), "a.running_var": (5,), "bn.weight": (6,), "bn.bias": (6,)}
    shapes |= {"bn.num_batches_tracked": ()}
    drawn = draw_tensors(shapes, gain=2.0)
    again = draw_tensors(dict(sorted(shapes.items())), gain=2.0)
    np.testing.assert_equal(drawn, again)
    assert drawn["bn.num_batches_tracked"] == 7
    assert drawn["a.running_var"].min() > 0
    half = draw_tensors(shapes, gain=0.5)["b.weight"]
    np.testing.assert_allclose(half, drawn["b.weight"] / 2, rtol=1e-6)
    assert draw_images((8, 9)).shape == (2, 8, 9, 3)
