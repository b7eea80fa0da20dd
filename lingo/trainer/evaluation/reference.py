"""What a run computes for the examples of an export, which is compared with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.decoding import Decoding
from lingo.decode.text import Continuation
from lingo.export.exported_model import Arrays
from lingo.runtimes.program import Program
from lingo.trainer.evaluation.generate import continue_prompts
from lingo.trainer.evaluation.predict import concatenate, predict_arrays


class Reference:
    """The program of a run, as `lingo.export.signature.Run` describes it."""

    def __init__(self, experiment: Experiment, program: Program) -> None:
        self._experiment, self._program = experiment, program

    def predict(self, arrays: Arrays) -> Arrays:
        size, log = len(next(iter(arrays.values()))), logging.getLogger("tensorflow")
        log.addFilter(_is_not_of_shapes)
        try:
            batches = predict_arrays(self._experiment, self._program, arrays, batch_size=size)
            return concatenate(batches)
        finally:
            log.removeFilter(_is_not_of_shapes)

    def decode(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Continuation]]:
        return continue_prompts(self._experiment, self._program, prompts, decoding, seed=0)


def _is_not_of_shapes(record: logging.LogRecord) -> bool:
    """Returns False for TensorFlow's warning of many shapes, which the examples have on purpose."""
    return "triggered tf.function retracing" not in record.getMessage()
