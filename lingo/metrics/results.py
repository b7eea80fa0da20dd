"""Computes numbers and images from metrics' states, which are sums over all examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lingo.metrics.class_names import name_classes
from lingo.metrics.classification import (
    confusion_results,
    score_count_results,
    score_table_results,
)
from lingo.metrics.confusion_picture import MAX_CLASSES, confusion_image
from lingo.metrics.expert_tokens import expert_token_results, expert_token_summaries
from lingo.metrics.mean_average_precision import detection_results
from lingo.metrics.media import Media
from lingo.metrics.metric import State, means
from lingo.metrics.transcript import STATE as WORD_ERRORS
from lingo.metrics.transcript import word_error_results

_BOX_STATE = {"detections", "truths", "images", "outside"}
_READERS: dict[frozenset[str], Callable[[State], dict[str, float]]] = {
    frozenset({"confusion"}): confusion_results,
    frozenset({"positives", "negatives"}): score_count_results,
    frozenset({"scores", "labels", "weights"}): score_table_results,
    frozenset(_BOX_STATE): detection_results,
    frozenset(_BOX_STATE | {"masks", "mask_counts"}): detection_results,
    frozenset({"expert_tokens"}): expert_token_results,
    WORD_ERRORS: word_error_results,
}
"""Names of a state's entries -> the function that computes results from such a state."""


def is_known(state: State) -> bool:
    """Returns whether a function of `lingo.metrics` returns states with these entries.

    >>> is_known({'sum': 6.0, 'weight': 3.0}), is_known({'mine': 1.0})
    (True, False)
    """
    return set(state) == {"sum", "weight"} or frozenset(state) in _READERS


class UnknownState(ValueError):
    """A state has entries that no function of `lingo.metrics` reads."""


def read_state(name: str, state: State) -> dict[str, float]:
    """Returns the results of one metric, {name: number}; {} if nothing was counted.

    A mean has the name of the metric. The names of other results start with it, such as
    `quality/f1_macro`.

    Raises:
        UnknownState: for a state with other entries than the functions of `lingo.metrics` return.

    >>> read_state('loss', {'sum': 6.0, 'weight': 3.0})
    {'loss': 2.0}
    """
    if set(state) == {"sum", "weight"} and not np.ndim(state["sum"]):
        return means({name: state})
    if (read := _READERS.get(frozenset(state))) is None:
        raise UnknownState(f"{name} is not a state of lingo.metrics: it has {sorted(state)}")
    return {f"{name}/{result}": value for result, value in read(state).items()}


def state_summaries(
    name: str, state: State, *, class_names: Sequence[str] | None = None
) -> dict[str, Media]:
    """Returns the images and tables of one metric, by name.

    A confusion matrix gives an image, unless it has more than 1,024 classes. The counts of experts'
    tokens give a table and a picture. `class_names` are the names of all classes; None: the names
    in the data, or numbers.

    >>> list(state_summaries('quality', {'confusion': np.eye(2)}))
    ['quality/confusion']
    """
    if set(state) == {"expert_tokens"}:
        return {f"{name}/{kind}": media for kind, media in expert_token_summaries(state).items()}
    if set(state) != {"confusion"} or len(state["confusion"]) > MAX_CLASSES:
        return {}
    names = class_names or name_classes(len(state["confusion"]))
    return {f"{name}/confusion": confusion_image(state["confusion"], class_names=names)}
