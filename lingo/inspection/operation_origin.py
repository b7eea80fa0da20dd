"""The layer that an operation of a compiled program comes from, by the operation's name.

    jit(run)/while/body/call_tf/local/stack/layers/3/ffn/einsum/Einsum
    jit(run)/.../gradient_tape/local/stack/while/gradients/.../layers/_0_12_/IdentityN_grad/ffn/...

TensorFlow names an operation after its scopes, which layers and the step open (`local`,
`loss_denominators`, `update`); gradients, loops and compilers add words of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.tree import scope_name

PHASES = ("loss_denominators", "forward", "backward", "update")

_FORWARD = "local"  # the scope in which the step computes losses
_BACKWARD = re.compile(r"gradient_tape|gradients|\w+_grad")
_REPEATED = re.compile(r"_\d+$")  # what TensorFlow adds to a scope that is opened once more


class OperationOrigin(NamedTuple):
    """Where an operation comes from."""

    phase: str  # one of `PHASES`; "" if unknown
    layer: str  # program path of the innermost layer; "" if it belongs to no layer


class LayerFinder:
    """Finds the layers of a model in names of operations."""

    def __init__(self, root: Layer) -> None:
        """Collects the names of the layers below a root, whose own scope has no name."""
        self._paths: dict[tuple[str, ...], str] = {}
        paths = [layer.path for layer in root.tree() if layer.path]
        for where in sorted(paths, key=lambda where: where.count("/")):
            parts = tuple(map(scope_name, where.split("/")))
            for start in range(len(parts)):  # a layer that is not called itself opens no scope
                known = self._paths.setdefault(parts[start:], where)
                if known.count("/") == where.count("/"):
                    self._paths[parts[start:]] = _common(known, where)
        self._words = {word for parts in self._paths for word in parts}

    def find(self, op_name: str) -> OperationOrigin:
        """Returns where an operation comes from, by its name in XLA, several joined by ";"."""
        words = op_name.partition(";")[0].split("/")
        roots = [i for i, word in enumerate(words) if _first_name(word) in (_FORWARD, *PHASES)]
        root = _first_name(words[roots[-1]]) if roots else ""
        layer = self._layer(words[roots[-1] + 1 :] if roots else words)
        if any(_BACKWARD.fullmatch(word) for word in words) and root != "update":
            return OperationOrigin("backward", layer)
        return OperationOrigin(
            "forward" if root == _FORWARD or (layer and not root) else root, layer
        )

    def _layer(self, words: Iterable[str]) -> str:
        """Returns the path of the layer that matches the longest prefix of the known words."""
        named = [word if word in self._words else _first_name(word) for word in words]
        named = [word for word in named if word in self._words]
        for length in range(len(named), 0, -1):
            if found := self._paths.get(tuple(named[:length])):
                return found
        return ""


def fold_indices(layer: str) -> str:
    """Returns a path with `*` for the indices of layers, so that equal layers have one path."""
    return "/".join("*" if _is_index(part) else part for part in layer.split("/"))


def _first_name(word: str) -> str:
    return _REPEATED.sub("", word)


def _is_index(part: str) -> bool:
    return part.isdigit() or path.index_range(part) is not None


def _common(one: str, other: str) -> str:
    """Returns two paths of one length as one, with `*` for parts in which they differ."""
    pairs = zip(one.split("/"), other.split("/"), strict=True)
    return "/".join(a if a == b else "*" for a, b in pairs)
