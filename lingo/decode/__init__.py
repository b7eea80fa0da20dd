"""Decoding: sampling and beam search, with caches."""

from __future__ import annotations

from lingo.decode.beam import Beam
from lingo.decode.decoding import Decoding
from lingo.decode.pruned_beam import PrunedBeam
from lingo.decode.sampling import Sampling

__all__ = ["Beam", "Decoding", "PrunedBeam", "Sampling"]
