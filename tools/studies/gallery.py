"""The study of docs/gallery.md: experiments that train on a laptop, once, as they are registered.

The minutes that `lingo list` shows, `@experiment(minutes=...)`, are measured by studies, this one
or another: seconds of the process with seed 0, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.config import experiment_index
from tools.studies.page import NONE, table
from tools.studies.trial import PRETRAINED, Results, Trial

PAGE = Path(__file__).parent.parent.parent / "docs" / "gallery.md"
NUM_WORKERS = 1  # minutes are with both cores


class Piece(NamedTuple):
    """An experiment of the gallery."""

    trial: Trial
    metric: str  # of its first evaluation input
    name: str = ""  # what the page calls the metric; "": its own name
    scale: float = 1.0  # 100: in percent


def _piece(experiment: str, metric: str = "accuracy", name: str = "", scale: float = 1.0) -> Piece:
    return Piece(Trial(experiment), metric, name, scale)


def _percent(experiment: str, metric: str = "accuracy", name: str = "accuracy") -> Piece:
    return _piece(experiment, metric, f"% {name}", 100)


def _bits(experiment: str) -> Piece:
    return _piece(experiment, "bits_per_byte", "bits per byte")


_BERT = Trial("lm.bert.tiny_bert(stages=True)")
_FROM_BERT = (f"exp.pretrained={PRETRAINED}",)

PIECES: Mapping[str, Sequence[Piece]] = {
    "images": (
        _percent("image.lenet.digits"),
        _percent("image.lenet.digits_int8"),
        _percent("image.resnet.glyphs"),
        _percent("image.resnet.glyphs_int8"),
        _percent("image.botnet.glyphs"),
        _percent("image.efficientnet.glyphs"),
        _percent("image.vit.glyphs"),
        _percent("image.transfer.digits"),
        _percent("image.amoebanet.digits"),
        _percent("image.amoebanet.digits_b"),
        _percent("image.unet.blobs"),
        _piece("gan.digits", "frechet", "Frechet distance"),
        _piece("gan.digits_wasserstein", "frechet", "Frechet distance"),
        _percent("image.ssd.scenes", "ap", "average precision"),
    ),
    "text": (
        _bits("lm.source.tiny"),
        _bits("lm.source.tiny_int8"),
        _bits("lm.source.tiny_moe"),
        _bits("lm.source.mixture"),
        _bits("lm.source.domains"),
        _bits("lm.docstrings.docstrings"),
        _bits("lm.docstrings.doctests"),
        _percent("seq2seq.source.signatures"),
        _percent("lm.st_moe.tiny_pretrain"),
        _percent("lm.switch.tiny_switch"),
        _percent("lm.bert.tiny_bert"),
        Piece(Trial("lm.bert.tiny_labels", 0, _FROM_BERT, _BERT), "accuracy", "% accuracy", 100),
        Piece(Trial("lm.bert.tiny_questions", 0, _FROM_BERT, _BERT), "f1", "% F1", 100),
    ),
    "speech": (_piece("asr.tones.words", "wer", "% word errors"),),
    "tables": (
        _percent("table.mine"),
        _percent("table.wine"),
        _percent("table.breast_cancer"),
        _piece("table.diabetes", "r2", "R^2"),
    ),
    "clicks": (_piece("click.dlrm.clicks", "auc", "area under the curve"),),
    "benchmarks": (
        _percent("mlperf.resnet.digits"),
        _percent("mlperf.ssd.digit_scenes", "ap", "average precision"),
        _piece("mlperf.dlrm.planted", "auc", "area under the curve"),
        _percent("mlperf.bert.numbers"),
        _piece("mlperf.transformer.numbers", "bleu", "BLEU"),
    ),
}
"""The experiments of each table of the page."""


def trials(results: Results) -> Iterator[Trial]:
    """Yields the trainings, each after the one that it starts from."""
    del results  # none depends on another
    for pieces in PIECES.values():
        for piece in pieces:
            if piece.trial.start is not None:
                yield piece.trial.start
            yield piece.trial


def minutes(results: Results, trial: Trial) -> int | None:
    """Returns the minutes of a training, rounded up; None without a result."""
    result = results.get(trial)
    return None if result is None else math.ceil(result.seconds / 60)


def tables(results: Results) -> dict[str, list[str]]:
    """Returns the tables of the page, by name."""
    head = ["experiment", "what it is", "held-out result", "minutes", "command"]
    return {
        name: table(head, [_row(results, piece) for piece in pieces])
        for name, pieces in PIECES.items()
    }


def _row(results: Results, piece: Piece) -> list[str]:
    name = piece.trial.experiment
    value, spent = results.metric(piece.trial, piece.metric), minutes(results, piece.trial)
    shown = NONE if value is None else f"{piece.scale * value:.3g} {piece.name or piece.metric}"
    short = name.rpartition(".")[2]
    command = f"`lingo train --exp={name} --logdir=runs/{short}`"
    summary = experiment_index.index().find(name).summary
    return [f"`{name}`", summary, shown, NONE if spent is None else str(spent), command]
