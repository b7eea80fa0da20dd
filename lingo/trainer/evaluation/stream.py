"""Streams a prompt's text while it is decoded, token by token."""

from __future__ import annotations

import queue
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.decoding import Decoding
from lingo.decode.stream import STREAM, StreamedSampling
from lingo.decode.text import Continuation, TextPieces
from lingo.runtimes.program import Program
from lingo.trainer.evaluation.generate import continue_prompts, tokenizer_of


def stream_prompt(
    experiment: Experiment,
    program: Program,
    prompt: Prompt,
    decoding: Decoding,
    *,
    seed: int,
) -> Generator[str, None, list[Continuation]]:
    """Yields the first text of a prompt in pieces, one per token; returns all its texts.

    The texts are the same as from `continue_prompts`. A token that ends within a character gives
    "". A `StreamedSampling` needs a program that `can_stream`; the generator's `close` then stops
    the decoding at its next token, and returns. Any other decoding runs to its end, and yields the
    whole text as one piece.
    """
    if not isinstance(decoding, StreamedSampling):
        (texts,) = continue_prompts(experiment, program, [prompt], decoding, seed=seed)
        yield texts[0].text
        return texts
    tokens: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()  # None: decoding has ended
    is_stopped = False

    def tell(token: np.ndarray) -> bool:
        tokens.put(token)
        return is_stopped

    pieces = TextPieces(tokenizer_of(experiment), prompt)
    with decoding.listen(tell) as stream, ThreadPoolExecutor(1, "decoding") as thread:
        done = thread.submit(
            continue_prompts,
            experiment,
            program,
            [prompt],
            decoding,
            seed=seed,
            arrays={STREAM: stream},
        )
        done.add_done_callback(lambda _: tokens.put(None))
        try:
            while (token := tokens.get()) is not None:
                yield pieces.add(int(token[0]))
        finally:
            is_stopped = True
        (texts,) = done.result()
    yield pieces.rest(texts[0].text)
    return texts
