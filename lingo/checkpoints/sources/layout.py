"""Where the files of another program have the weights of a model, and in which form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lingo.checkpoints.sources.transfer import TensorRead
from lingo.config.params import Configurable, Params
from lingo.layers.layer import Layer


class WeightLayout(Configurable, interface=True):
    """Names and forms of the tensors in another program's files of one network."""

    def reads(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorRead]:
        """Returns weight -> how it is read, for the weights in `shapes`, {weight: shape}.

        Raises ParamError for a weight that the network does not have.
        """
        raise NotImplementedError(f"{type(self).__name__} has no reads")

    def is_ignored(self, tensor: str) -> bool:
        """Returns whether a tensor of the file, by its name, has no meaning for the results."""
        raise NotImplementedError(f"{type(self).__name__} has no is_ignored")

    def task(self, trained: Layer) -> Params:
        """Returns the params of a trained task with the network that the files describe."""
        raise NotImplementedError(f"{type(self).__name__} has no task")

    def config(
        self, trained: Layer, original: Mapping[str, Any], class_names: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the content of `config.json` for a trained task.

        `original` is the content of the file that came with the weights, {} without one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no config")
