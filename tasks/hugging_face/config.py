"""`config.json` of a model of Hugging Face's hub, and the names of its weights.

A weight has a name in lingo and another one in the hub's files. `rename` maps patterns of the first
to the second: `model/stack/layers/3/ffn/w_out` is `model.layers.3.mlp.down_proj.weight`.
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
    """A model of the hub: its task, and the settings that read its weights."""

    task: Params  # of a LanguageModeling, a SequenceToSequence or a BertPretraining
    fields: Mapping[str, Any]  # of the WarmStart that reads its weights
    max_length: int | None = None  # number of positions; None: no limit
    start_id: int | None = None  # first token of a decoder's input; None: the tokenizer's start

    def warm_start(self, path: str) -> Params:
        """Returns the params of a WarmStart from a file or folder of weights."""
        return WarmStart.params(path=path, reshape=True, **self.fields)


class Config:
    """The content of a `config.json`, and the names of the tensors in its folder."""

    def __init__(self, values: Mapping[str, Any], tensors: Collection[str] = ()) -> None:
        """Without `tensors`, the weights are assumed to have the names of transformers."""
        self._values, self._tensors = values, tensors

    def __getitem__(self, name: str) -> Any:
        """Returns an entry; raises ParamError if the file lacks it."""
        if name not in self._values:
            raise ParamError(f"{CONFIG} of {self.get('model_type')} has no {name!r}")
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an entry, or the default if the file lacks it or has null."""
        value = self._values.get(name)
        return default if value is None else value

    def number(self, name: str, default: float) -> float:
        """Returns an entry or its default; raises ParamError if it is no number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ParamError(f"{CONFIG} has {name}={value!r:.80}, which is not a number")
        return value

    def size(self, name: str, default: int) -> int:
        """Returns an entry or its default; raises ParamError if it is no positive integer."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParamError(f"{CONFIG} has {name}={value!r:.80}, which is not a positive integer")
        return value

    def architecture(self) -> str:
        """Returns the first of `architectures`, or ""; raises ParamError if it is no list."""
        names = self.get("architectures", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ParamError(f"{CONFIG} has architectures={names!r:.80}, not a list of names")
        return names[0] if names else ""

    def activation(self, name: Any) -> str:
        """Returns lingo's name of an activation; raises ParamError if lingo does not have it."""
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise ParamError(
                f"{CONFIG} has the activation {name!r:.80}, not one of {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    @property
    def knows_tensors(self) -> bool:
        """Whether the names of the tensors in the folder are known."""
        return bool(self._tensors)

    def has_tensor(self, name: str) -> bool:
        """Returns whether the folder has a tensor; True if its tensors are not known."""
        return not self._tensors or name in self._tensors

    def expect(self, **expected: Any) -> None:
        """Raises ParamError if the value of an entry is not the expected one."""
        for name, value in expected.items():
            if self.get(name, value) != value:
                raise ParamError(
                    f"{CONFIG} has {name}={self.get(name)!r}; lingo's {self.get('model_type')}"
                    f" supports only {value!r}"
                )
