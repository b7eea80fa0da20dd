"""What self-attention and cross attention share."""

from __future__ import annotations

import numpy as np

from lingo.config.lazy import tf
from lingo.layers import Attention, CrossAttention, TransformerLayer
from lingo.layers.sequence.dot_product import DotProductAttention, within_documents

SEGMENTS = tf.constant([[1, 1, 2, 0]])


def test_a_field_of_both_is_set_at_once() -> None:
    cfg = TransformerLayer.params(cross_attention=CrossAttention)
    cfg.all(DotProductAttention).set(num_heads=3)
    assert (cfg.attention.num_heads, cfg.cross_attention.num_heads) == (3, 3)
    cfg.all(Attention).set(num_heads=4)
    assert (cfg.attention.num_heads, cfg.cross_attention.num_heads) == (4, 3)


def test_documents_and_padding_are_kept_apart() -> None:
    expected = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], bool)
    np.testing.assert_array_equal(within_documents(None, SEGMENTS, SEGMENTS)[0], expected)
    causal = np.tri(4, dtype=bool)
    masked = within_documents(tf.constant(causal)[None], SEGMENTS, SEGMENTS)
    np.testing.assert_array_equal(masked[0], expected & causal)


def test_one_document_leaves_the_mask_as_it_is() -> None:
    mask = tf.ones([1, 4, 4], tf.bool)
    assert within_documents(mask, None, None) is mask
    assert within_documents(None, None, SEGMENTS) is None
