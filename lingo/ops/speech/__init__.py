"""Speech: spectra, SpecAugment, and the losses and decoding of CTC and of transducers."""

from __future__ import annotations

from lingo.ops.speech.ctc import (
    CtcLosses,
    Decoded,
    Hypothesis,
    ctc_greedy,
    ctc_is_feasible,
    ctc_losses,
    ctc_prefix_beam,
)
from lingo.ops.speech.edit_distance import edit_distances
from lingo.ops.speech.log_mel import Features, LogMel, stack_frames
from lingo.ops.speech.spec_augment import POLICIES, SpecAugment, spec_augment_policy
from lingo.ops.speech.transducer import (
    TransducerScores,
    scores_of_logits,
    transducer_losses,
    transducer_scores,
)
from lingo.ops.speech.transducer_decode import (
    Hypotheses,
    TransducerModel,
    transducer_beam,
    transducer_greedy,
)

__all__ = [
    "POLICIES",
    "CtcLosses",
    "Decoded",
    "Features",
    "Hypotheses",
    "Hypothesis",
    "LogMel",
    "SpecAugment",
    "TransducerModel",
    "TransducerScores",
    "ctc_greedy",
    "ctc_is_feasible",
    "ctc_losses",
    "ctc_prefix_beam",
    "edit_distances",
    "scores_of_logits",
    "spec_augment_policy",
    "stack_frames",
    "transducer_beam",
    "transducer_greedy",
    "transducer_losses",
    "transducer_scores",
]
