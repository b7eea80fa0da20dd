"""What a run computes for the examples of an export, which is compared with it."""

from __future__ import annotations

from collections.abc import Sequence

from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.decoding import Decoding
from lingo.decode.text import Continuation
from lingo.export.exported_model import Arrays
from lingo.runtimes.runtime import Program
from lingo.trainer.evaluation.generate import continue_prompts
from lingo.trainer.evaluation.predict import concatenate, predict_arrays


class Reference:
    """The program of a run, as `lingo.export.signature.Run` describes it."""

    def __init__(self, experiment: Experiment, program: Program) -> None:
        self._experiment, self._program = experiment, program

    def predict(self, arrays: Arrays) -> Arrays:
        size = len(next(iter(arrays.values())))
        batches = predict_arrays(self._experiment, self._program, arrays, batch_size=size)
        return concatenate(batches)

    def decode(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Continuation]]:
        return continue_prompts(self._experiment, self._program, prompts, decoding, seed=0)
