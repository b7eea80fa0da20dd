"""The signature of models of tables: it takes the raw cells of a row, not encoded arrays.

TensorFlow operations in the exported program read dates and look up categories.

Axes: B rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lingo.config.lazy import tf
from lingo.data.input import Input
from lingo.data.tables.table_input import TableInput
from lingo.export.exported_model import Arrays, ExportedModel
from lingo.export.signature import Inputs, Mean, Predict, Run, Signature


class PredictRaw(Signature):
    """The predictions of the task for raw cells.

    Inputs: for each column of the table, float32 [B] of numbers (NaN: missing), or string [B] of
    dates and categories, as they stand in the file. The input's name is the column's, with `_` for
    other characters than letters and digits.
    """

    name = "predict"

    def __init__(self, predict: Predict, data: TableInput) -> None:
        self.inputs: Inputs = data.encoder.raw_specs()
        self._predict, self._data = predict, data

    def compute(
        self, model: ExportedModel, inputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        arrays = self._data.encoder.encode_raw(inputs)
        return self._predict.compute(model, {name: arrays[name] for name in self._predict.inputs})

    def examples(self, batch: Arrays) -> dict[str, np.ndarray]:
        return self._data.raw_examples(batch["example_id"])

    def reference(self, run: Run, inputs: Arrays) -> dict[str, np.ndarray]:
        return self._predict.reference(run, self._data.encoder.read_raw(inputs))

    def evaluate(self, batch: Arrays, outputs: Arrays) -> dict[str, Mean]:
        return self._predict.evaluate(batch, outputs)


def read_raw_cells(signatures: Sequence[Signature], data: Input) -> list[Signature]:
    """Returns the signatures, with `PredictRaw` in place of `Predict` if the data is a table.

    A table whose rows are augmented has no cells for what the model gets.
    """
    if not isinstance(data, TableInput) or data.p.augment is not None:
        return list(signatures)
    return [PredictRaw(s, data) if isinstance(s, Predict) else s for s in signatures]
