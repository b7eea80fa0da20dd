"""What all models of Hugging Face's hub share: a `config.json`, and two names for each weight.

The weights of a layer of lingo have two names, ours and theirs; `rename` maps patterns of ours:
`model/stack/layers/3/ffn/w_out` is `model.layers.3.mlp.down_proj.weight`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from lingo.checkpoints.sources.hugging_face import CONFIG
from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.params import ParamError, Params

_ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class HubModel(NamedTuple):
    """A model of the hub: what it computes, and how its weights are read."""

    task: Params  # of a LanguageModeling, a SequenceToSequence or a BertPretraining
    fields: Mapping[str, Any]  # of the WarmStart that reads its weights
    max_length: int | None = None  # positions that it was trained on; None: any number
    start_id: int | None = None  # what a decoder reads first; None: as the tokenizer says

    def warm_start(self, path: str) -> Params:
        """Returns the params of a WarmStart from the file or folder of the weights."""
        return WarmStart.params(path=path, reshape=True, **self.fields)


class Config:
    """The content of a config.json, and the names of the tensors in its folder."""

    def __init__(self, values: Mapping[str, Any], tensors: Collection[str] = ()) -> None:
        """Without `tensors`, weights are taken to have the names that transformers gives them."""
        self._values, self._tensors = values, tensors

    def __getitem__(self, name: str) -> Any:
        """Returns an entry; raises ParamError if it is absent."""
        if name not in self._values:
            raise ParamError(f"{CONFIG} of {self.get('model_type')} has no {name!r}")
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an entry, or the default if it is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def activation(self, name: str) -> str:
        """Returns lingo's name of an activation; raises ParamError if there is none."""
        if name not in _ACTIVATIONS:
            raise ParamError(
                f"{CONFIG} has the activation {name!r}, not one of {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    @property
    def knows_tensors(self) -> bool:
        """Whether the names of the tensors in the folder are known."""
        return bool(self._tensors)

    def has_tensor(self, name: str) -> bool:
        """Returns whether the folder has a tensor of a name; True if its tensors are not known."""
        return not self._tensors or name in self._tensors

    def expect(self, **expected: Any) -> None:
        """Raises ParamError if an entry is there with another value than the one expected."""
        for name, value in expected.items():
            if self.get(name, value) != value:
                raise ParamError(
                    f"{CONFIG} has {name}={self.get(name)!r}; lingo's {self.get('model_type')}"
                    f" supports only {value!r}"
                )
