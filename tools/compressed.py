"""What `xz -9` makes of the text that a language model is evaluated on, in bits per byte.

    python -m tools.compressed lm.source.tiny lm.source.small

A compressor predicts, too: fewer bits are a better guess of the next byte. It has not seen the
training data, but goes through the text more than once, and of whole files it sees all.
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Iterable

import numpy as np

from lingo.config import registry
from lingo.data.document_input import TextInput

_START_BYTES = len(lzma.compress(b"", preset=9))  # of the container, with nothing in it


def bits_per_byte(texts: Iterable[bytes]) -> float:
    """Returns how many bits `xz -9` needs for a byte of some texts, each compressed alone."""
    sizes = [(len(lzma.compress(text, preset=9)) - _START_BYTES, len(text)) for text in texts]
    compressed, plain = np.sum(sizes, axis=0)
    return float(8 * compressed / plain)


def evaluation_text(input: TextInput) -> bytes:
    """Returns the text of one pass, in the order of its rows."""
    size = input.p.batch_size * input.num_batches()
    pieces = [piece for number in range(size) for piece in input.pieces(number)]
    return b"".join(
        input.index.read(at.document, *(input.index.bytes_before(at.document, n) for n in at[1:]))
        for at in pieces
    )


def documents(input: TextInput) -> list[bytes]:
    """Returns all texts that evaluation draws from."""
    return input.index.texts(np.arange(len(input.index.size)))


def main(forms: list[str]) -> int:
    """Prints the figures of the evaluation inputs of some experiments; returns the exit code."""
    if not forms:
        print("usage: python -m tools.compressed EXPERIMENT...", file=sys.stderr)
        return 2
    for form in forms:
        for name, input in registry.get(form).params.build().eval_inputs.items():
            if isinstance(input, TextInput):
                _show(f"{form} {name}", input)
    return 0


def _show(name: str, input: TextInput) -> None:
    text, files = evaluation_text(input), documents(input)
    print(
        f"{name}\n"
        f"  {bits_per_byte([text]):.2f} bits per byte: the {len(text):,} bytes of its batches\n"
        f"  {bits_per_byte(files):.2f} bits per byte: each of {len(files)} files by itself\n"
        f"  {bits_per_byte([b''.join(files)]):.2f} bits per byte: these"
        f" {sum(map(len, files)):,} bytes at once"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
