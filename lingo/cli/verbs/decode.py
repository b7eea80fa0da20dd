"""Continues texts with a checkpoint of a run, or answers them if that is what it is trained for.

    lingo decode --run=runs/tiny --prompt='def '
    lingo decode --run=runs/tiny --prompt='def ' --prompt='class ' --temperature=0
    lingo decode --run=runs/tiny --prompt='import ' --num_samples=4 --top_p=0.9 --seed=1
    lingo decode --run=runs/tiny --prompt='import ' --num_beams=4 --length_penalty=0.6
    lingo decode --run=runs/tiny --prompt='def ' --quantize=int8_weights
    lingo decode --run=runs/tiny --prompts_file=prompts.txt --format=json > texts.jsonl
    cat header.py | lingo decode --run=runs/tiny --prompt=-

It prints each text, the prompt included where the model continues it, and a line of dashes
between two; with --format=json a line for each: prompt, number of the sample, text, tokens, their
log-probabilities (and that of the end), its score, and whether the model ended it. Control
characters are escaped in both. --prompt=- is all of the standard input. The same flags give the
same texts.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import get_args

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.contract import build_experiment
from lingo.decode.settings import decoding_of
from lingo.decode.text import Continuation
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.generate import answers
from lingo.trainer.trained import Trained, WeightQuantize

WORD = ""  # it takes no word beside its flags
STDIN = "-"

_SETTINGS = (
    "max_tokens",
    "num_samples",
    "temperature",
    "top_k",
    "top_p",
    "num_beams",
    "length_penalty",
)


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define_run(values)
    experiment_flags.define_devices(values)
    experiment_flags.define_step(values)
    command.strings("prompt", "A text to continue; - reads one from standard input.", values)
    command.string("prompts_file", "A file with more of them, one a line.", values)
    command.integer("max_tokens", "Tokens to add at most (default: 200).", values, lower_bound=1)
    command.integer("num_samples", "Texts for each (default: 1).", values, lower_bound=1)
    command.number(
        "temperature",
        "Below 1: more of what is likely; 0: always the likeliest token (default: 0.8).",
        values,
        lower_bound=0.0,
    )
    command.integer("top_k", "Draw among so many likeliest tokens.", values, lower_bound=1)
    command.number(
        "top_p",
        "Draw among the likeliest tokens that have this probability.",
        values,
        upper_bound=1.0,
    )
    command.integer(
        "num_beams",
        "Draw nothing, but search so many texts at a time for the likeliest.",
        values,
        lower_bound=1,
    )
    command.number(
        "length_penalty",
        "Of the search: above 0, longer texts gain; often 0.6 (default: 0).",
        values,
        lower_bound=0.0,
    )
    command.integer("seed", "Another number draws other texts (default: 0).", values)
    command.boolean("continuation_only", "Print texts without their prompts.", values)
    command.choice("format", ("text", "json"), "How to print them.", values)
    command.choice(
        "quantize", get_args(WeightQuantize), "Keep the weights of products in 8 bits.", values
    )


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the model's continuations of the prompts, or its answers."""
    del word
    if values.run is None:
        raise UsageError("no run given: --run=DIR")
    step = experiment_flags.read_step(values.step)
    prompts = _prompts(values)
    decoding = decoding_of(**{name: values[name].value for name in _SETTINGS})
    decoding.build()  # a mistake shows before anything is loaded
    resolved = experiment_flags.resolve_run(values, values.set)
    experiment = build_experiment(resolved)
    experiment_flags.make_devices(values, resolved.params)
    with experiment.runtime.join() as processes:
        if processes.count > 1 and STDIN in values.prompt:
            raise UsageError(
                "--prompt=- is for one process: several have no standard input in common"
            )
        model = Trained(
            resolved.params,
            RunDirectory(values.run),
            step=step,
            quantize=values.quantize,
        )
        experiment_flags.print_later_errors(model.checkpoint)
        progress = _print_progress if processes.is_leader else None
        found = model.decode(prompts, decoding, seed=values.seed or 0, progress=progress)
    if processes.is_leader:
        alone = values.continuation_only or answers(experiment)
        _show(found, prompts, as_json=values.format == "json", alone=alone)
    return 0


def _show(
    found: list[list[Continuation]], prompts: list[str], *, as_json: bool, alone: bool
) -> None:
    """Prints the texts of each prompt; `alone`: without the prompts."""
    if as_json:
        for prompt, samples in zip(prompts, found, strict=True):
            for number, sample in enumerate(samples):
                row = {"prompt": prompt, "sample": number, **sample._asdict()}
                print(json.dumps(row))
    else:
        texts = [
            ("" if alone else prompt) + sample.text
            for prompt, samples in zip(prompts, found, strict=True)
            for sample in samples
        ]
        print(f"\n{'-' * 8}\n".join(map(_visible, texts)))


def _prompts(values: flags.FlagValues) -> list[str]:
    """Returns the prompts in the order of the flags, those of the file last."""
    if values.prompt.count(STDIN) > 1:
        raise UsageError("--prompt=- reads all of the standard input: give it once")
    prompts = list(values.prompt)
    if STDIN in prompts:
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
        prompts[prompts.index(STDIN)] = text
    if values.prompts_file is not None:
        prompts += _lines(values.prompts_file)
    if not prompts:
        raise UsageError("no prompt given: --prompt='def ' or --prompts_file=FILE")
    return prompts


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"--prompts_file={file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts_file={file}: byte {error.start} is not UTF-8") from None


def _visible(text: str) -> str:
    """Returns a text with control characters, and bytes that are not UTF-8, escaped."""
    kept = "\n\t"
    return "".join(
        ascii(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") and c not in kept else c
        for c in text
    )


def _print_progress(done: int, total: int) -> None:
    """Prints a note after each batch of prompts but the last."""
    if done < total:
        experiment_flags.print_note(f"{done} of {total} prompts are done.")
