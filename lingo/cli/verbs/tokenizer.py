"""Trains a SentencePiece tokenizer on the text of an experiment, or of a source.

    lingo tokenizer --exp=lm.source.tiny --vocab_size=8192 --out=python.model
    lingo tokenizer --source='TextFiles(pattern=books/*.txt)' --vocab_size=8192 --out=books.model

It prints the --set that makes an experiment use the file. The text is that of the experiment's
train_input: what is held out is not looked at. Needs: pip install 'lingo-tf[text]'
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.clock import run_with_clock
from lingo.cli.command import UsageError
from lingo.config.node.tree import nodes
from lingo.config.overrides.apply import parse_template
from lingo.config.params import Params
from lingo.config.roots.classes import Classes
from lingo.contract import build_experiment
from lingo.data import sentence_piece_training
from lingo.data.document_source import DocumentSource
from lingo.data.index import Index, open_index
from lingo.data.sentence_piece import SentencePiece
from lingo.data.tokenizer import ByteTokenizer
from lingo.storage.files import write_bytes
from lingo.trainer.progress import Progress

WORD = ""  # it takes no word beside its flags
MAX_BYTES = 100_000_000
SHOWN_BYTES = 1_000_000  # the size of the text on which bytes per token are measured
METHODS = ("unigram", "bpe")

_PLAIN = re.compile(r"[\w./~-]+")


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define(values)
    command.string("source", "Class(field=value, ...) of a source, instead of --exp.", values)
    fewest = sentence_piece_training.NUM_RESERVED + 1
    command.integer("vocab_size", "Number of token ids.", values, lower_bound=fewest)
    command.string("out", "File to write; must not exist.", values)
    command.choice("method", METHODS, "How pieces are chosen.", values)
    command.integer(
        "max_bytes", f"Text to learn from, drawn from all; else {MAX_BYTES}.", values, lower_bound=1
    )


def run(values: flags.FlagValues, word: str) -> int:
    """Trains and writes the tokenizer, and prints the flag that uses it."""
    del word
    if values.vocab_size is None or values.out is None:
        raise UsageError("a tokenizer needs --vocab_size=NUMBER and --out=FILE.model")
    out = Path(values.out)
    _check_free(out)
    sources = _sources(values)
    with Progress(max_steps=0) as progress:
        indices = [_index_source(source.build(), progress) for source in sources]
        with progress.work("reading text") as advance:
            text = sentence_piece_training.sample(
                indices, max_bytes=values.max_bytes or MAX_BYTES, progress=advance
            )
    what = f"learning {values.vocab_size} pieces from {sum(map(len, text)):,} bytes of text"
    sizes = {"vocab_size": values.vocab_size, "model_type": values.method}
    train = functools.partial(sentence_piece_training.train, text, **sizes)
    write_bytes(out, run_with_clock(what, train))
    tokenizer = SentencePiece.params(model=str(out), vocab_size=values.vocab_size).build()
    shown = b"".join(text)[:SHOWN_BYTES]
    rate = len(shown) / len(tokenizer.encode(shown))
    print(f"{out}: {values.vocab_size} pieces, {rate:.2f} bytes a token")
    print(f"use: {usage(out, values.vocab_size)}")
    return 0


def _check_free(out: Path) -> None:
    """Raises UsageError unless a file can be made at a path."""
    if os.path.lexists(out):
        raise UsageError(f"--out={out} exists already")
    if not os.path.isdir(out.parent):
        raise UsageError(f"--out={out} is in no directory that exists: {out.parent}")


def usage(out: Path, vocab_size: int) -> str:
    """Returns the flag that makes an experiment use a model."""
    path = str(out) if _PLAIN.fullmatch(str(out)) else repr(str(out))
    value = f"Tokenizer=SentencePiece(model={path},vocab_size={vocab_size})"
    return f"--set={shlex.quote(value)}"


def _sources(values: flags.FlagValues) -> Sequence[Params]:
    if values.source is None:
        resolved = experiment_flags.resolve(values)
        build_experiment(resolved)
        found = [n for n in nodes(resolved.params.train_input) if issubclass(n.cls, DocumentSource)]
        if not found:
            raise UsageError("the experiment's train_input has no source of text")
        return found
    if values.exp is not None or values.run is not None or values.set:
        raise UsageError("--source replaces them: leave --exp, --run and --set")
    return [
        parse_template(
            values.source, DocumentSource, Classes(command.find_roots(values)), "--source"
        )
    ]


def _index_source(source: DocumentSource, progress: Progress) -> Index:
    with progress.work(f"indexing {source.describe()}") as advance:
        index = open_index(source, ByteTokenizer.params().build(), progress=advance)
    if index.damage.records:
        progress.message(f"left out {index.damage}")
    return index
