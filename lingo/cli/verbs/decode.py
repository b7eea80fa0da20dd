"""Continues texts with a checkpoint of a run, or answers them if it was trained to answer.

    lingo decode --run=runs/tiny --prompt='def '
    lingo decode --run=runs/tiny --prompt='def ' --prompt='class ' --temperature=0
    lingo decode --run=runs/tiny --prompt='import ' --num_samples=4 --top_p=0.9 --seed=1
    lingo decode --run=runs/tiny --prompt='import ' --num_beams=4 --length_penalty=0.6
    lingo decode --run=runs/tiny --prompt='def ' --quantize=int8_weights
    lingo decode --run=runs/tiny --prompts_file=prompts.txt --format=json > texts.jsonl
    cat header.py | lingo decode --run=runs/tiny --prompt=-

It prints each text, with its prompt if the model continues it, and a line of dashes between two
texts. --format=json prints a line per text: prompt, number of the sample, text, tokens, their
log-probabilities (and the end's), score, and whether the model ended the text. Control characters
are escaped in both formats. --prompt=- is all of the standard input. The same flags give the same
texts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lingo.cli import experiment_options
from lingo.cli.command import FormatOptions, UsageError
from lingo.cli.experiment_options import DeviceOptions, RunOptions
from lingo.cli.options import LoadOptions
from lingo.config.options import option, option_class
from lingo.config.printable import escape_text
from lingo.contract import build_experiment
from lingo.decode.settings import DecodeOptions
from lingo.decode.text import Continuation
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.generate import answers
from lingo.trainer.trained import Trained

STDIN = "-"


@option_class
class Options(DecodeOptions, LoadOptions, RunOptions, DeviceOptions, FormatOptions):
    """The options of `lingo decode`."""

    prompt: Sequence[str] = option(
        "A text to continue; - reads one from standard input.", default=()
    )
    prompts_file: str | None = option("A file with more prompts, one per line.")
    continuation_only: bool = option("Print texts without their prompts.", default=False)


def run(options: Options) -> int:
    """Prints the model's continuations of the prompts, or its answers."""
    run = options.require_run()
    prompts = _prompts(options)
    decoding = options.decoding()
    decoding.build()  # a mistake shows before anything is loaded
    resolved = options.resolve_run()
    experiment = build_experiment(resolved)
    options.make_devices(resolved.params)
    with experiment.runtime.join() as processes:
        if processes.count > 1 and STDIN in options.prompt:
            raise UsageError("--prompt=- is for one process: several cannot share a standard input")
        model = Trained(
            resolved.params,
            RunDirectory(run),
            step=options.step,
            quantize=options.quantize,
        )
        experiment_options.print_later_errors(model.checkpoint)
        progress = _print_progress if processes.is_leader else None
        found = model.decode(prompts, decoding, seed=options.seed, progress=progress)
    if processes.is_leader:
        alone = options.continuation_only or answers(experiment)
        _show(found, prompts, as_json=options.as_json, alone=alone)
    return 0


def _show(
    found: list[list[Continuation]], prompts: list[str], *, as_json: bool, alone: bool
) -> None:
    """Prints the decoded texts of each prompt; `alone` says that prompts are not printed."""
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
        print(f"\n{'-' * 8}\n".join(map(escape_text, texts)))


def _prompts(options: Options) -> list[str]:
    """Returns the prompts of --prompt in order, then the prompts in --prompts_file."""
    if options.prompt.count(STDIN) > 1:
        raise UsageError("--prompt=- reads all of the standard input: give it once")
    prompts = list(options.prompt)
    if STDIN in prompts:
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
        prompts[prompts.index(STDIN)] = text
    if options.prompts_file is not None:
        prompts += _lines(options.prompts_file)
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


def _print_progress(done: int, total: int) -> None:
    """Prints a note after each batch of prompts, except the last."""
    if done < total:
        experiment_options.print_note(f"{done} of {total} prompts are done.")
