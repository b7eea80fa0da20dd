"""Dialogs packed into rows, to train a model of dialogs.

Axes: B examples (rows), T tokens per row.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.data.array_spec import ArraySpec
from lingo.data.epoch_order import EpochOrder
from lingo.data.files import DataError
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.packing import FixedRows, best_fit
from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import join_rows, specs_of_joined_rows
from lingo.data.prompt import Prompt
from tasks.dialog import formats
from tasks.dialog.formats import DialogTokenizer
from tasks.dialog.turns import ATTRIBUTES, Attribute, Dialog, DialogSource, Turn, to_json


class RatingRows(NamedTuple):
    """Rows with one response each, for `Trained.predict`."""

    inputs: dict[str, np.ndarray]  # arrays of `DialogInput.examples`, [N, T]
    is_rating: np.ndarray  # bool [N, T], whether a target is a rating


class _Example(NamedTuple):
    pair: Pair
    num_bytes: int  # bytes of the target's text
    attributes: tuple[Attribute, ...] = ()  # attributes whose ratings are the target, if any


class DialogInput(Input):
    """Rows of packed examples that do not see each other. An epoch has every example once.

    An example of `generative` is a turn of the model that follows another turn, with the loss on
    the model's turn and the end after it. An example of `discriminative` is a rating of such a
    turn, with the loss on the rating. An example of `text` is a dialog for pre-training, or a part
    of a long one, with the loss on every token. `tasks/dialog/formats.py` describes the tokens. To
    learn several objectives, mix inputs by `Mixture`.

    With `shares_prefix`, all ratings of a response follow one copy of it, which saves most tokens:
    the attributes follow one another, each predicts its rating, and no rating is an input. With
    `Attention.mask=RatingMask`, each loss is the same as in a separate example.
    """

    source: DialogSource  # the dialogs
    tokenizer: DialogTokenizer = DialogTokenizer  # turns dialogs into token ids
    objective: Literal["generative", "discriminative", "text"] = "generative"  # what is learned
    length: int  # tokens per row
    shares_prefix: bool = False  # one copy of a response for all its ratings; needs RatingMask
    shuffle: bool = True  # a new order of rows each epoch; False: as packed

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "length")

    def setup(self) -> None:
        self.source = self.p.source.build()
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size

    def offers(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}

    def prepare(self, *, progress: Progress | None = None) -> None:
        if "dialogs" not in self.__dict__:
            self.dialogs = self.source.dialogs(progress=progress)

    @functools.cached_property
    def dialogs(self) -> list[Dialog]:
        """All dialogs of the source; read at first use."""
        return self.source.dialogs()

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the rows with ids `numbers`, int64 [B]; beyond a single pass, rows are padding.

        Returns:
            `tokens`, `targets`, `segments`, `positions`: int32 [B, T], as in `join_rows`;
            `target_weights`: float32 [B, T], 1 where `targets` is in a response or a rating, else
                0; absent for `text`, where every target counts;
            `prefix`: bool [B, T], False at the attributes; only with `shares_prefix`;
            `bytes`: int32 [B], bytes of these targets' text.
        """
        rows = self._rows(numbers)
        out = self._join(rows)
        size = [sum(example.num_bytes for example in row) for row in rows]
        return self._select(out) | {"bytes": np.array(size, np.int32)}

    def rows_of_ratings(self, pairs: Sequence[Pair]) -> RatingRows:
        """Returns one row for each pair of `formats.all_ratings`; only with `shares_prefix`."""
        out = self._join([[_Example(pair, 0, ATTRIBUTES * 2)] for pair in pairs])
        is_rating = out.pop("target_weights") > 0
        return RatingRows(out, is_rating)

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        rows = self._select(specs_of_joined_rows(size, length=self.p.length))
        return super().specs() | rows | {"bytes": ((size,), "int32")}

    def num_examples(self) -> int:
        return self._packing.num_rows

    def num_items(self) -> int:
        return len(self._kept)

    def prompt(self, text: str) -> Prompt:
        return self.dialog_prompt([Turn("user", text)])

    def dialog_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Returns the prompt for an answer to turns; a long one loses its first turns."""
        ids = formats.response_prefix(turns, tokenizer=self.tokenizer, max_tokens=self.p.length)
        return Prompt(np.append(self.tokenizer.start_id, ids).astype(np.int32), is_answered=True)

    def fingerprint(self) -> dict[str, Any]:
        content = "\n".join(map(to_json, self.dialogs)).encode()
        return {
            "source": self.source.describe(),
            "tokenizer": self.tokenizer.describe(),
            "dialogs": len(self.dialogs),
            "bytes": len(content),
            "digest": hashlib.sha256(content).hexdigest(),
        }

    def remarks(self) -> list[str]:
        remarks = self.source.remarks()
        if left_out := len(self._examples) - len(self._kept):
            remarks.append(
                f"left out {left_out:,} of {len(self._examples):,} examples, whose response is too"
                f" long for length={self.p.length}"
            )
        return remarks

    def _group(self, rated: tuple[Attribute, ...]) -> list[tuple[Attribute, ...]]:
        """Returns the rated attributes in groups, one for each example of a response."""
        if self.p.shares_prefix and rated:
            return [rated]
        return [(attribute,) for attribute in rated]

    def _select(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Returns the arrays that batches have; the other arrays are left out."""
        is_kept = {
            "prefix": self.p.shares_prefix,
            "target_weights": self.p.objective != "text",
        }
        return {name: array for name, array in arrays.items() if is_kept.get(name, True)}

    def _join(self, rows: Sequence[Sequence[_Example]]) -> dict[str, np.ndarray]:
        """Returns the arrays of `join_rows`, [B, T], with the changes of `shares_prefix`."""
        pairs = [[example.pair for example in row] for row in rows]
        out = join_rows(pairs, length=self.p.length, tokenizer=self.tokenizer)
        out["prefix"][:] = True
        if self.p.shares_prefix:
            for i, row in enumerate(rows):
                self._branch({name: array[i] for name, array in out.items()}, row)
        return out

    def _branch(self, row: dict[str, np.ndarray], examples: Sequence[_Example]) -> None:
        """Replaces ratings among a row's input tokens by attributes; arrays are [T]."""
        at = 0
        for pair, _, attributes in examples:
            at += len(pair.source) + len(pair.target)
            if attributes:
                here = slice(at - len(attributes), at)
                row["tokens"][here] = [self.tokenizer.sentinel(a.upper()) for a in attributes]
                row["positions"][here] = row["positions"][here.start]
                row["prefix"][here] = False

    def _rows(self, numbers: np.ndarray) -> list[list[_Example]]:
        """Returns the examples in each of the rows `numbers`, int64 [B]; none after one pass."""
        is_padding = np.zeros(len(numbers), bool)
        if not self.p.repeat:
            is_padding = numbers >= self.num_examples()
        rows = self._order.indices(numbers)
        return [
            [] if pad else [self._kept[piece.document] for piece in self._packing.row(0, row)]
            for pad, row in zip(is_padding.tolist(), rows.tolist(), strict=True)
        ]

    @functools.cached_property
    def _order(self) -> EpochOrder:
        size, p = self.num_examples(), self.p
        return EpochOrder(size, seed=p.seed, name="dialogs", shuffle=p.shuffle)

    @functools.cached_property
    def _packing(self) -> FixedRows:
        """The rows of packed examples, the same in every epoch."""
        pairs = [example.pair for example in self._kept]
        sizes = np.array([len(pair.source) + len(pair.target) for pair in pairs])
        numbers = np.arange(len(sizes))
        pieces = np.stack([numbers, np.zeros_like(numbers), sizes], axis=1)
        return FixedRows(pieces, best_fit(sizes, self.p.length))

    @functools.cached_property
    def _kept(self) -> list[_Example]:
        kept = [example for example in self._examples if example is not None]
        if not kept:
            raise DataError(
                f"{self.source.describe()}: none of {len(self.dialogs):,} dialogs has an example"
                f" for objective={self.p.objective} that fits into length={self.p.length}."
            )
        return kept

    @functools.cached_property
    def _examples(self) -> list[_Example | None]:
        """Every example of every dialog, in order; None for one whose response is too long."""
        return [example for dialog in self.dialogs for example in self._make_examples(dialog)]

    def _make_examples(self, dialog: Dialog) -> Iterator[_Example | None]:
        keys = {"tokenizer": self.tokenizer, "length": self.p.length}
        if self.p.objective == "text":
            for pair in formats.running_text(dialog, **keys):
                text = self.tokenizer.tokenizer.decode(pair.target)  # without words of sentinels
                yield _Example(pair, len(text.encode()))
            return
        for response in dialog.responses():
            if self.p.objective == "generative":
                pair = formats.generative(response, **keys)
                yield pair and _Example(pair, len(response.turn.text.encode()))
                continue
            for attributes in self._group(tuple(response.turn.ratings)):
                pair = formats.discriminative(response, *attributes, **keys)
                yield pair and _Example(pair, len(attributes), attributes)
