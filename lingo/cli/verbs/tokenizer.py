"""Trains a SentencePiece tokenizer on the text of an experiment, or of a source.

    lingo tokenizer --exp=lm.source.tiny --vocab_size=8192 --out=python.model
    lingo tokenizer --source='TextFiles(pattern=books/*.txt)' --vocab_size=8192 --out=books.model

It prints the --set that makes an experiment use the file. The text comes from the experiment's
train_input; held-out text is not read. Needs: pip install 'lingo-tf[text]'
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lingo.cli.clock import run_with_clock
from lingo.cli.command import UsageError
from lingo.cli.experiment_options import ExperimentOptions
from lingo.config.classes import Classes
from lingo.config.node.tree import nodes
from lingo.config.options import option, option_class
from lingo.config.overrides import parse_template
from lingo.config.params import Params
from lingo.contract import build_experiment
from lingo.data import learned_tokenizer, sentence_piece
from lingo.data.index import Index, open_index
from lingo.data.record_source import RecordSource
from lingo.data.tokenizer import ByteTokenizer
from lingo.storage.files import write_bytes
from lingo.trainer.progress import Progress

SHOWN_BYTES = 1_000_000  # how much text is encoded to measure bytes per token

_PLAIN = re.compile(r"[\w./~-]+")


@option_class
class Options(ExperimentOptions):
    """The options of `lingo tokenizer`."""

    source: str | None = option("Class(field=value, ...) of a source, instead of --exp.")
    vocab_size: int | None = option("Number of token ids.", minimum=sentence_piece.NUM_RESERVED + 1)
    out: str | None = option("File to write; must not exist.")
    method: Literal["unigram", "bpe"] = option("How pieces are chosen.", default="unigram")
    max_bytes: int = option("Text to learn from, drawn from all.", default=100_000_000, minimum=1)


def run(options: Options) -> int:
    """Trains and writes a tokenizer, and prints the --set that makes an experiment use it."""
    if options.vocab_size is None or options.out is None:
        raise UsageError("a tokenizer needs --vocab_size=NUMBER and --out=FILE.model")
    out = Path(options.out)
    _check_free(out)
    sources = _sources(options)
    with Progress() as progress:
        indices = [_index_source(source.build(), progress) for source in sources]
        with progress.work("reading text") as advance:
            text = learned_tokenizer.sample(indices, max_bytes=options.max_bytes, progress=advance)
    what = f"learning {options.vocab_size} pieces from {sum(map(len, text)):,} bytes of text"
    sizes = {"vocab_size": options.vocab_size, "model_type": options.method}
    train = functools.partial(sentence_piece.train, text, **sizes)
    write_bytes(out, run_with_clock(what, train))
    tokenizer = sentence_piece.SentencePiece.params(
        model=str(out), vocab_size=options.vocab_size
    ).build()
    shown = b"".join(text)[:SHOWN_BYTES]
    rate = len(shown) / len(tokenizer.encode(shown))
    print(f"{out}: {options.vocab_size} pieces, {rate:.2f} bytes a token")
    print(f"use: {usage(out, options.vocab_size)}")
    return 0


def _check_free(out: Path) -> None:
    """Raises UsageError if the file exists already, or its directory does not exist."""
    if os.path.lexists(out):
        raise UsageError(f"--out={out} exists already")
    if not os.path.isdir(out.parent):
        raise UsageError(f"--out={out}: there is no directory {out.parent}")


def usage(out: Path, vocab_size: int) -> str:
    """Returns the --set flag that makes an experiment use a tokenizer's file."""
    path = str(out) if _PLAIN.fullmatch(str(out)) else repr(str(out))
    value = f"Tokenizer=SentencePiece(model={path},vocab_size={vocab_size})"
    return f"--set={shlex.quote(value)}"


def _sources(options: Options) -> Sequence[Params]:
    if options.source is None:
        resolved = options.resolve()
        build_experiment(resolved)
        found = [n for n in nodes(resolved.params.train_input) if issubclass(n.cls, RecordSource)]
        if not found:
            raise UsageError("the experiment's train_input has no source of text")
        return found
    if options.exp is not None or options.run is not None or options.set:
        raise UsageError("--source replaces the experiment: leave out --exp, --run and --set")
    return [parse_template(options.source, RecordSource, Classes(options.roots()), "--source")]


def _index_source(source: RecordSource, progress: Progress) -> Index:
    with progress.work(f"indexing {source.describe()}") as advance:
        index = open_index(source, ByteTokenizer.params().build(), progress=advance)
    if index.damage.records:
        progress.message(f"left out {index.damage}")
    return index
