"""Classification of texts and pairs of texts by BERT (Devlin et al. 2019, sec. 4.1).

Axes: B batch, T positions, D model width, C classes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import REQUIRED, ParamError, Params, suggest
from lingo.data.array_spec import ArraySpec, Specs
from lingo.data.document_input import PlannedInput
from lingo.data.files import DataError, File, short_path
from lingo.data.index import Index, Progress, open_index
from lingo.data.packing import FixedRows, Packing
from lingo.data.pairs.pair import SEPARATOR, PairSource, PairTokenizer, pair
from lingo.data.record_source import CorruptRecord
from lingo.data.sources.pair_files import PairLines
from lingo.data.tokenizer import Tokenizer
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.inputs import CallInputs
from lingo.layers.linear import Linear
from lingo.learner.task import Batch, Task
from lingo.metrics.classification import confusion
from lingo.metrics.media import Media, Table, TokenIds
from lingo.metrics.metric import weighted_mean
from lingo.metrics.results import state_summaries
from lingo.ops.losses import cross_entropy
from tasks.bert.model import DENSE, Bert, check_vocab_size
from tasks.bert.rows import ROW_ARRAYS, blank_rows, cut_texts, fill_row, row_specs


class UnlabeledLines(PairLines):
    """A text in each line of each file, with `label` in place of its class, which is not known.

    Empty lines are left out.
    """

    label: str  # the name of any class

    def text(self, data: bytes, where: str) -> bytes:
        try:
            return pair(data.decode("utf-8-sig").rstrip("\r\n"), self.p.label, where)
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"{where}: not UTF-8: {error.reason}.") from None

    def where(self, file: File, number: int, start: int) -> str:
        del start
        return f"{short_path(file.path)}, line {number}"


class ClassificationInput(PlannedInput):
    """Rows `[CLS] text [SEP]`, or `[CLS] text [SEP] text [SEP]` for two texts.

    The source's pairs are a text and the name of its class. A text that is too long loses its last
    tokens. If there are two texts, the longer one loses tokens first.
    """

    source: PairSource = REQUIRED  # texts, each with its class
    tokenizer: Tokenizer  # how texts become integers
    labels: list[str]  # the names of the classes
    separator: str | None = None  # its first occurrence splits a text in two; None: one text
    length: int = 128  # tokens per row

    def check(self) -> None:
        super().check()
        p = self.p
        if p.separator == "":
            raise ParamError(
                "separator is empty: give the text between two texts, such as a bar, or None for"
                " one text"
            )
        if p.length < (least := 3 if p.separator is None else 5):
            raise ParamError(
                f"length={p.length} leaves no room for text: with separator={p.separator!r} it is"
                f" at least {least}"
            )
        if len(set(p.labels)) < max(len(p.labels), 2):
            raise ParamError(f"labels={list(p.labels)} are not two or more different names")

    def offers(self) -> dict[str, Any]:
        return super().offers() | {"class_names": self.class_names}

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.p.labels)

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of an input of the lines in text files, each a text or two texts."""
        source = UnlabeledLines.params(pattern=path, label=self.p.labels[0])
        return self.p.copy().set(source=source, shuffle=False, repeat=False, max_batches=None)

    def example_names(self, numbers: np.ndarray) -> list[str]:
        """Returns the file and line of each text, [B]."""
        rows = [self.pieces(number) for number in numbers.tolist()]
        return [self.index.where(piece.document) for [piece] in rows]

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the rows with ids (`example_id`) `numbers`, int64 [B].

        Returns:
            `tokens`, `types`, `segments`: int32 [B, T], as `fill_row` writes them;
            `labels`: int32 [B], the index of each class in `labels`, if the classes are known.
        """
        out = blank_rows(len(numbers), length=self.p.length, tokenizer=self.tokenizer)
        out["labels"] = np.zeros(len(numbers), np.int32)
        for i, number in enumerate(numbers.tolist()):
            for piece in self.pieces(number):
                row = {name: out[name][i] for name in ROW_ARRAYS}
                out["labels"][i] = self._fill_example(row, piece.document)
        if isinstance(self.source, UnlabeledLines):
            del out["labels"]
        return out

    def specs(self) -> dict[str, ArraySpec]:
        rows = row_specs(self.p.batch_size, length=self.p.length)
        is_unlabeled = isinstance(self.source, UnlabeledLines)
        labels = {} if is_unlabeled else {"labels": ((self.p.batch_size,), "int32")}
        return super().specs() | rows | labels

    def _fill_example(self, row: Mapping[str, np.ndarray], document: int) -> int:
        """Writes a text into the arrays of a row, each [T]; returns the index of its class."""
        text = self.index.read(document, 0, int(self.index.size[document]))
        source, label = (side.decode(errors="replace") for side in text.split(SEPARATOR))
        separator = self.p.separator
        texts = [source] if separator is None else source.split(separator, maxsplit=1)
        if label not in self._numbers:
            raise DataError(
                f"{self.index.where(document)}: the class {label!r:.60} is not one of labels."
                f"{suggest(label, self.p.labels)}"
            )
        ids = [self.tokenizer.encode(text) for text in texts]
        room = self.p.length - 1 - len(texts)
        fill_row(row, cut_texts(ids, max_tokens=room), tokenizer=self.tokenizer)
        return self._numbers[label]

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.p.labels)}

    def _open(self, progress: Progress | None) -> Index:
        tokenizer = PairTokenizer.params(tokenizer=self.p.tokenizer).build()
        return open_index(self.source, tokenizer, progress=progress)

    def _make_plan(self) -> Packing:
        numbers = np.arange(len(self.index.units))
        pieces = np.stack([numbers, np.zeros_like(numbers), self.index.units], axis=1)
        return FixedRows(pieces, numbers)


class TextClassification(Task):
    """Cross-entropy of a text's class; a linear layer reads the text's vector from `Bert.pool`.

    Metrics are `loss` (the cross-entropy), `accuracy`, and the means over classes of precision,
    recall and F1. TensorBoard shows the confusion of classes, and some texts.

    Batches: `tokens`, `types`, `segments`, int32 [B, T]; `labels`, int32 [B]; `weights`, float32
    [B].
    """

    model: Bert = Bert  # from tokens to vectors
    vocab_size: int  # number of token ids; the input offers it
    class_names: tuple[str, ...]  # [C]; the input offers them
    dropout_rate: float = 0.1  # of a text's vector
    head: Linear = DENSE  # from a text's vector to logits

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        p = self.p
        self.model = p.model.build(vocab_size=p.vocab_size)
        self.head = p.head.build(dim=p.model.dim, output_dim=len(p.class_names))

    def check_input(self, offers: Mapping[str, Any]) -> None:
        check_vocab_size(self.p.vocab_size, offers)
        names, labels = list(self.p.class_names), list(offers.get("class_names", ()))
        if names[: len(labels)] != labels:
            raise ParamError(
                f"task.class_names={names}, but the input's labels are {labels}: a class has the"
                " same number in both"
            )

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().loss_denominators(batch) | {"cross_entropy": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses = cross_entropy(self._logits(batch), batch["labels"])
        return {"cross_entropy": tf.reduce_sum(losses * batch["weights"])}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        logits, labels, weights = self._logits(batch), batch["labels"], batch["weights"]
        guesses, num_classes = _likeliest(logits), len(self.p.class_names)
        return {
            "loss": weighted_mean(cross_entropy(logits, labels), weights),
            "accuracy": weighted_mean(tf.equal(guesses, labels), weights),
            "classes": confusion(labels, guesses, weights, num_classes=num_classes),
        }

    def loss_metrics(self) -> dict[str, str]:
        return {"cross_entropy": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `logits`, float32 [B, C], and the likeliest `labels`, int32 [B]."""
        logits = self._logits(batch)
        return {"logits": logits, "labels": _likeliest(logits)}

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        names = self.p.class_names
        columns = {
            title: [names[number] for number in numbers]
            for title, numbers in (("class", batch["labels"]), ("guess", predictions["labels"]))
        }
        rows = zip(batch["tokens"], batch["segments"], strict=True)
        tokens = TokenIds([ids[segments > 0].tolist() for ids, segments in rows])
        return {"texts": Table({**columns, "tokens": tokens})}

    def metric_summaries(
        self, name: str, state: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        return dict(state_summaries(name, state, class_names=list(self.p.class_names)))

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["tokens"]
        return self.model.flops(shape) + self.head.flops([shape[0], self.p.model.dim])

    def _logits(self, batch: Batch) -> tf.Tensor:
        """Returns float32 logits [B, C]."""
        inputs = CallInputs(segments=batch["segments"])
        x = self.model.pool(self.model(batch["tokens"], types=batch["types"], inputs=inputs))
        return tf.cast(self.head(dropout(self, x, rate=self.p.dropout_rate)), tf.float32)


def _likeliest(logits: tf.Tensor) -> tf.Tensor:
    return tf.argmax(logits, axis=-1, output_type=tf.int32)
