"""Decoding params from named settings; the options of `lingo decode` and `lingo chat`."""

from __future__ import annotations

import dataclasses
from typing import Any

from lingo.config.options import option, option_class
from lingo.config.params import ParamError, Params, fields
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling


@option_class
class SamplingOptions:
    """How texts are drawn."""

    max_tokens: int = option("Tokens to add at most.", default=200, minimum=1)
    temperature: float | None = option(
        "Below 1: likely tokens gain; 0: always the likeliest token; else 0.8.",
        default=None,
        minimum=0.0,
    )
    top_k: int | None = option(
        "Draw among this number of likeliest tokens.", default=None, minimum=1
    )
    top_p: float | None = option(
        "Draw among the likeliest tokens that have this probability together.",
        default=None,
        maximum=1.0,
    )
    seed: int = option("Another number draws other texts.", default=0)

    def decoding(self) -> Params:
        """Returns the params of a `Decoding`, as `decoding_of` does."""
        names = [field.name for field in dataclasses.fields(self) if field.name in _SETTINGS]
        return decoding_of(**{name: getattr(self, name) for name in sorted(names)})


@option_class
class DecodeOptions(SamplingOptions):
    """How texts are decoded."""

    num_samples: int | None = option("Texts for each prompt; else 1.", default=None, minimum=1)
    num_beams: int | None = option(
        "Beams of a beam search for the likeliest texts, in place of drawing.",
        default=None,
        minimum=1,
    )
    length_penalty: float | None = option(
        "Of beam search: above 0, longer texts gain; often 0.6, else 0.", default=None, minimum=0.0
    )


_SETTINGS = {*fields(Beam), *fields(Sampling)}


def decoding_of(**settings: Any) -> Params:
    """Returns params of `Beam` if `num_beams` is set, else of `Sampling`.

    None keeps a field's default. Raises ParamError for a setting that is not a field of the class.
    """
    values = {name: value for name, value in settings.items() if value is not None}
    cls = Beam if "num_beams" in values else Sampling
    for name, value in values.items():
        if name not in fields(cls):
            raise ParamError(
                f"{name}={value} says how tokens are drawn, but num_beams={values['num_beams']}"
                " searches and draws nothing: leave one of the two out"
                if cls is Beam
                else f"{name}={value} is for beam search: set num_beams, too"
            )
    return cls.params(**values)
