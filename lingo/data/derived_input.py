"""`DerivedInput` changes another input's examples; `RepeatedInput` repeats its first batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.index import Progress
from lingo.data.input import Input, check_inner
from lingo.data.prompt import Prompt
from lingo.data.request import RequestReader
from lingo.metrics.media import Media


class DerivedInput(Input, interface=True):
    """Another input's examples in another form; by default, methods forward to that input.

    The other input is built with the `batch_size`, `seed` and `repeat` of the derived input.
    """

    input: Input  # where the examples come from

    def setup(self) -> None:
        p = self.p
        self._build(batch_size=p.batch_size, seed=p.seed, repeat=p.repeat)
        check_inner(self.input, self, field="input")

    def _build(self, **fields: Any) -> None:
        self.input = self.p.input.build(**fields)
        if hasattr(self.input, "tokenizer"):
            self.tokenizer = self.input.tokenizer

    def prompt(self, text: str) -> Prompt:
        return self.input.prompt(text)

    def allows_threads(self) -> bool:
        return super().allows_threads() and self.input.allows_threads()

    def offers(self) -> dict[str, Any]:
        return self.input.offers()

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.input.class_names

    def unlabeled_params(self, path: str) -> Params:
        inner = self.input.unlabeled_params(path)
        return self.p.copy().set(input=inner, repeat=False, max_batches=None)

    def example_names(self, numbers: np.ndarray) -> list[str]:
        return self.input.example_names(numbers)

    @property
    def text_ids(self) -> tuple[str, ...]:
        return self.input.text_ids

    def describe_predictions(self, predictions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.input.describe_predictions(predictions)

    def summaries(
        self, numbers: np.ndarray, predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media]:
        return self.input.summaries(numbers, predictions)

    def prepare(self, *, progress: Progress | None = None) -> None:
        self.input.prepare(progress=progress)

    def num_examples(self) -> int:
        return self.input.num_examples()

    def num_items(self) -> int:
        return self.input.num_items()

    def origins(self, numbers: np.ndarray) -> list[str]:
        return self.input.origins(numbers)

    def fingerprint(self) -> dict[str, Any]:
        return self.input.fingerprint()

    def remarks(self) -> list[str]:
        return self.input.remarks()


class RepeatedInput(DerivedInput):
    """The first batches of another input, over and over.

    A model that cannot overfit them has a mistake somewhere.

    Examples keep the other input's `example_id`. Random draws in the training step do not repeat.
    """

    input: Input  # where the batches come from
    batches: int = 1  # number of batches
    batch_size: int | None = None  # must stay None: `input` sets the batch size

    thread_safe = True

    def check(self) -> None:
        ranges.check_positive(self.p, "batches")
        if self.p.batch_size is not None or self.p.max_batches is not None:
            raise ParamError(
                "batch_size and max_batches must stay None: set batch_size of `input`, and"
                " `batches`"
            )

    def setup(self) -> None:
        self._build(seed=self.p.seed)

    @property
    def declares_late(self) -> bool:
        return self.input.declares_late

    def unlabeled_params(self, path: str) -> Params:
        return self.input.unlabeled_params(path)

    def request_reader(self) -> RequestReader | None:
        return self.input.request_reader()

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        self.check_step(step)
        return self.input.batch(step % self.p.batches, rows=rows)

    def shape_id(self, step: int) -> int:
        return self.input.shape_id(step % self.p.batches)

    def specs(self) -> dict[str, ArraySpec]:
        return self.input.specs()

    def pass_batches(self) -> int:
        return self.p.batches

    def num_examples(self) -> int:
        return self.input.examples_before(self.p.batches)

    def num_items(self) -> int:
        return self.num_examples()

    def examples_before(self, step: int) -> int:
        times, rest = divmod(step, self.p.batches)
        return times * self.input.examples_before(self.p.batches) + self.input.examples_before(rest)

    def example_ids(self, step: int) -> np.ndarray:
        return self.input.example_ids(step % self.p.batches)

    def epochs(self, step: int) -> float:
        return step / self.p.batches

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "batches": self.p.batches}
