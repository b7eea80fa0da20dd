"""Building: Params become objects, parents before children, unset fields filled by offers."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextvars
from typing import Any, NamedTuple

from lingo.config.node.copying import copy_tree, freeze
from lingo.config.node.error import ParamError
from lingo.config.node.field import REQUIRED
from lingo.config.node.tree import field_path, same
from lingo.config.types import Node

MAX_PARTS = 50_000


class Build(NamedTuple):
    """A record of one built node: its path, its complete parameters, and who offered what."""

    path: str
    params: Any
    offers: dict[str, str]  # field -> class name of the parent whose offer filled it


class _Offer(NamedTuple):
    """An offered value, and the class name of the parent that offers it."""

    value: Any
    by: str


class _Frame(NamedTuple):
    """One object under construction."""

    built: Any
    offers: dict[str, _Offer]  # all it received
    offered: dict[str, str]  # those that filled a field of its own
    records: list[Build]


_frame: contextvars.ContextVar[_Frame | None] = contextvars.ContextVar("frame", default=None)


def build(params: Node, offers: dict[str, Any]) -> Any:
    """Builds an object: see `Params.build`."""
    parent = _frame.get()
    if parent is None:
        return _build_root(params, offers, [])
    if "_path" not in vars(params):
        raise ParamError(
            f"{type(parent.built).__name__} builds {params.cls.__name__} parameters that stand in"
            " none of its fields, where nobody could change them: declare a field for them"
        )
    return _build_node(params, offers, parent, parent.records)


def builds(params: Node) -> list[Build]:
    """Builds a tree and returns the record of every node, root first.

    Raises:
        ParamError: as for `Params.build`.
    """
    records: list[Build] = []
    _build_root(params, {}, records)
    return records


def inherited_values() -> dict[str, Any]:
    """Returns all offers to the object under construction, also those that fit none of its fields.

    A stack passes them to its layers: `self.p.layer.build(**inherited_values())`.
    """
    frame = _frame.get()
    return {name: offer.value for name, offer in frame.offers.items()} if frame else {}


def _build_root(params: Node, offers: dict[str, Any], records: list[Build]) -> Any:
    """Builds a copy in which no node is shared, so that each has one path."""
    return _build_node(freeze(copy_tree(params, None), ""), offers, None, records)


def _build_node(
    template: Node, offers: dict[str, Any], parent: _Frame | None, records: list[Build]
) -> Any:
    offers_here = _collect_offers(template, offers, parent)
    if parent is not None and template.cls._fits_parent and parent.built._fits_parent:
        _check_offers(template, offers_here)
    node, offered = _fill_fields(template, offers_here)
    path, cls = vars(template)["_path"], template.cls
    _check_complete(node, path, parent)
    if len(records) == MAX_PARTS:
        raise ParamError(
            f"{path}: the experiment has more than {MAX_PARTS:,} parts. Take fewer layers, or"
            " Repeat for Stack, which builds a layer once, however often it is used.",
            path,
        )
    built = object.__new__(cls)
    vars(built)["p"] = node
    records.append(Build(path, node, offered))
    token = _frame.set(_Frame(built, offers_here, offered, records))
    try:
        built.check()
        built.setup()
        built._finish(parent.built if parent else None)
    except ParamError as error:
        if error.path is None:
            raise ParamError(f"{path or cls.__name__}: {error}", path) from None
        raise
    finally:
        _frame.reset(token)
    return built


def _collect_offers(
    template: Node, offers: dict[str, Any], parent: _Frame | None
) -> dict[str, _Offer]:
    """Returns all offers to a node: those of its parent, those through a wrapper, and the dtype."""
    by = type(parent.built).__name__ if parent else "the caller"
    found: dict[str, _Offer] = {}
    if parent is not None:
        above: Node = parent.built.p
        if "dtype" in above.cls._fields and (above.is_given("dtype") or "dtype" in parent.offered):
            found["dtype"] = _Offer(parent.built.p.dtype, by)
        wrapped = parent.built._wrapped
        if wrapped and vars(template)["_path"] == field_path(vars(above)["_path"], wrapped):
            found |= parent.offers
    return found | {name: _Offer(value, by) for name, value in offers.items()}


def _check_offers(template: Node, offers: dict[str, _Offer]) -> None:
    """Raises ParamError for a required field that was set to another value than the offer."""
    for name, (offer, by) in offers.items():
        field = template.cls._fields.get(name)
        if field is None or field.default is not REQUIRED or not template.is_given(name):
            continue
        if not same(value := template.__arguments__[name], offer):
            path = vars(template)["_path"]
            raise ParamError(
                f"{field_path(path, name)}={value!r:.80}, but {by}, which builds it, has"
                f" {name}={offer!r:.80}: leave it out, or set it there",
                path,
            )


def _check_complete(node: Node, path: str, parent: _Frame | None) -> None:
    """Raises ParamError for required fields that were neither set nor offered."""
    cls, arguments = node.cls, node.__arguments__
    missing = [
        field.name
        for field in cls._fields.values()
        if field.default is REQUIRED and field.name not in arguments
    ]
    if not missing:
        return
    by = (
        f"{type(parent.built).__name__}, which builds it, does not offer it"
        if parent
        else "it is built by itself"
    )
    what = f"{path or cls.__name__}: {cls.__name__} needs {' and '.join(missing)}"
    raise ParamError(f"{what}: nobody set it, and {by}", path)


def _fill_fields(template: Node, offers: dict[str, _Offer]) -> tuple[Node, dict[str, str]]:
    """Returns the node with offers in its unset fields, and the class that offered each."""
    fields = template.cls._fields
    offered = {
        name: offer.by
        for name, offer in offers.items()
        if name in fields and not template.is_given(name)
    }
    if not offered:
        return template, offered
    node: Node = object.__new__(type(template))
    vars(node).update(vars(template))
    arguments = dict(template.__arguments__)
    for name, by in offered.items():
        try:
            arguments[name] = fields[name].fit(offers[name].value)
        except ParamError as error:
            path = vars(template)["_path"]
            raise ParamError(
                f"{path or template.cls.__name__}: {by} offers a wrong value: {error}", path
            ) from None
    vars(node)["__arguments__"] = arguments
    return node, offered
