"""Claims about single layers: what cannot hold is not checked."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.inspection.conformance.claim import NotChecked
from lingo.inspection.conformance.layer_call import LayerCall, perturbed_values
from lingo.inspection.conformance.layer_claims import Example, layer_claims
from lingo.layers import Attention
from lingo.layers.sequence.mask import Bidirectional


def test_attention_that_sees_later_positions_in_any_order_is_not_decoded() -> None:
    layer = Attention.params(dim=4, num_heads=2, mask=Bidirectional).build()
    x = np.random.default_rng(0).normal(size=[2, 5, 4]).astype("f")
    call = LayerCall((x,), {}, np.arange(2, dtype="i"))
    example = Example(layer, perturbed_values(layer), call, 1, False, {})
    check = dict(layer_claims(example))["position by position = whole call"]
    with pytest.raises(NotChecked, match="a result depends on later positions"):
        check()
