"""A suggestion for an override of a class that an experiment does not have."""

from __future__ import annotations

from lingo.config import types
from lingo.config.node.tree import nodes
from lingo.config.params import Configurable, Params, fields, interface
from lingo.config.roots.classes import Classes


def swap_hint(root: Params, name: str, argument: str, classes: Classes) -> str:
    """Returns " To have one: --set='FeedForward=MoE(expert=_, num_experts=8)'.", or "".

    Only a class of lingo is suggested: others would have to be imported. `argument` is what the
    override would have set, `num_experts=8`.
    """
    modules = [place.module for place in classes.places[name] if place.module.startswith("lingo.")]
    if len(modules) != 1:
        return ""
    cls = classes.find(f"{modules[0]}:{name}")
    present = {node.cls.__name__: node.cls for node in nodes(root)}
    found = [*_find_wrapped(cls, present), *_find_replaced(cls, present)]
    if not found:
        return ""
    old, hole = found[0]
    arguments = ", ".join(text for text in (hole, argument) if text)
    return f" To have one: --set='{old}={name}({arguments})'."


def _find_wrapped(cls: type[Configurable], present: dict[str, type]) -> list[tuple[str, str]]:
    """Returns (class, `field=_`) of present classes that are the default of a field of `cls`."""
    defaults = {f.name: f.default.cls for f in fields(cls).values() if types.is_params(f.default)}
    return [
        (old.__name__, f"{field}=_")
        for field, old in defaults.items()
        if old.__name__ in present and interface(old) is interface(cls)
    ]


def _find_replaced(cls: type[Configurable], present: dict[str, type]) -> list[tuple[str, str]]:
    """Returns (class, "") of the present class that shares a base, or else the interface."""
    kin = {name: old for name, old in present.items() if interface(old) is interface(cls)}
    bases = {base for base in cls.__mro__ if base not in interface(cls).__mro__}
    near = [name for name, old in kin.items() if bases.intersection(old.__mro__)]
    return [(name, "") for name in near or kin if len(near or kin) == 1]
