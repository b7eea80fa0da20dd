"""What a notebook shows of parameters."""

from __future__ import annotations

import re

import lingo
from lingo.layers import FeedForward, Stack, TransformerLayer


def test_what_was_set_is_shown_and_the_rest_counted() -> None:
    cfg = FeedForward.params(hidden_dim=8, activation="gelu")
    html = cfg._repr_html_()
    assert "<b>FeedForward</b>" in html
    assert re.findall(r"<div>(\w+ = [^<]*)</div>", html) == [
        "hidden_dim = 8",
        "activation = &#x27;gelu&#x27;",
    ]
    assert f"{len([*cfg]) - 2} by default" in html


def test_branches_fold_and_text_is_escaped() -> None:
    layer = TransformerLayer.params(ffn=FeedForward.params(hidden_dim=8))
    html = Stack.params(layer=layer, num_layers=2)._repr_html_()
    titles = re.findall(r"<details( open)?><summary>(\w+ = )?<b>(\w+)</b>", html)
    assert titles == [
        (" open", "", "Stack"),
        (" open", "layer = ", "TransformerLayer"),
        ("", "ffn = ", "FeedForward"),
    ]
    cfg = lingo.get("tiny")
    cfg.evaluate.prompts = ["<script>"]
    assert "<script>" not in cfg._repr_html_()
