"""Which experts get which tokens in an evaluation, as a number, a table and a picture.

Axes: E experts, V token ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lingo.metrics.media import Image, Media, Table, TokenIds

_NUM_SHOWN = 12  # tokens per expert in the table
_NUM_DRAWN = 128  # tokens in the picture
_WIDTH, _HEIGHT = 6, 192  # pixels: a column's width, the approximate height of all rows

_LEGEND = (
    "A **row** for each expert, a **column** for each of the most frequent tokens. The darker, the"
    " larger the share of the token's choices that this expert has. Columns are sorted by the"
    " expert that has most of them."
)


def expert_token_results(state: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the mutual information of token and expert, in bits.

    It is computed from the counts `expert_tokens`, [E, V], in the state. 0 bits: all tokens are
    spread alike. log2(E) bits: each token has one expert, and experts have equal loads. The result
    is empty if no token was counted.
    """
    joint, expert, token = _shares(state)
    if not joint.any():
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(joint > 0, joint * np.log2(joint / (expert * token)), 0.0)
    return {"token_bits": float(bits.sum())}


def expert_token_summaries(state: Mapping[str, np.ndarray]) -> dict[str, Media]:
    """Returns a table of each expert's most typical tokens, and a picture of all counts.

    The counts are `expert_tokens`, [E, V], in the state. Tokens are ordered by s log(s / t), where
    s is the token's share of the expert's choices, and t is the token's share of all choices. The
    result is empty if no token was counted.
    """
    joint, expert, token = _shares(state)
    if not joint.any():
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(joint > 0, joint * np.log(joint / (expert * token)), 0.0)
    order = np.argsort(-weight, axis=1, kind="stable")[:, :_NUM_SHOWN]
    shown = [[int(i) for i in row if weight[e, i] > 0] for e, row in enumerate(order)]
    frequent = np.argsort(-token[0], kind="stable")[:_NUM_DRAWN]
    share = (joint / np.where(token > 0, token, 1.0))[:, frequent[token[0, frequent] > 0]]
    share = share[:, np.lexsort((-share.max(axis=0), share.argmax(axis=0)))]
    columns = {
        "expert": np.arange(len(joint)),
        "share of choices": expert[:, 0],
        "tokens": TokenIds(shown),
    }
    rows = max(_HEIGHT // len(share), 1)
    pixels = (1.0 - np.sqrt(share)).repeat(rows, axis=0).repeat(_WIDTH, axis=1)
    return {"table": Table(columns), "picture": Image(pixels, _LEGEND)}


def _shares(state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the shares of all choices per pair, [E, V], per expert, [E, 1], per token, [1, V]."""
    counts = np.asarray(state["expert_tokens"], np.float64)
    joint = counts / max(counts.sum(), 1.0)
    return joint, joint.sum(axis=1, keepdims=True), joint.sum(axis=0, keepdims=True)
