"""Decoding params from named settings, as the command line and `Trained.generate` take them."""

from __future__ import annotations

from typing import Any

from lingo.config.params import ParamError, Params, fields
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling


def decoding_of(**settings: Any) -> Params:
    """Returns the params of `Beam` if `num_beams` is set, else those of `Sampling`.

    The settings are fields of that class, else it raises ParamError; None keeps the default.
    """
    values = {name: value for name, value in settings.items() if value is not None}
    cls = Beam if "num_beams" in values else Sampling
    for name, value in values.items():
        if name not in fields(cls):
            raise ParamError(
                f"{name}={value} says how tokens are drawn, but num_beams={values['num_beams']}"
                " searches and draws nothing: leave one of the two out"
                if cls is Beam
                else f"{name}={value} is of a beam search: set num_beams, too"
            )
    return cls.params(**values)
