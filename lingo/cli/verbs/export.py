"""Writes the model of a run into a folder that other programs read.

    lingo export --run=runs/tiny --format=savedmodel --output=served
    lingo export --run=runs/tiny --format=savedmodel --output=served --signature=predict,score
    lingo export --run=runs/tiny --format=stablehlo --output=programs --batch_size=8
    lingo export --run=runs/digits --format=tflite --output=phone --quantize=int8 --step=best
    lingo export --verify=served
    lingo export --run=runs/gpt2 --format=huggingface --output=tuned
    lingo export --run=runs/gpt2 --format=huggingface --output=tuned --weights=ema
    lingo export --run=runs/mine --format=huggingface --output=mine --config=llama

A program (savedmodel, stablehlo, tflite) is loaded in a process without lingo and computes 64
examples of the first evaluation input; if that is not what the run computes, there is an error and
no folder. export.json says what the program is, how much it differed, and has the digests of all
files: --verify compares them.

--format=huggingface writes config.json, model.safetensors and, if the run has one, tokenizer.json,
as models of Hugging Face's hub have them. Its config.json is that of the folder from which the run
was imported, or of the folder that --config names, and must describe the model. The new folder
appears only when it is complete, and no folder is overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.contract import build_experiment
from lingo.export.formats import Format, Quantize
from lingo.export.manifest import MANIFEST, verify_export
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

WORD = ""  # it takes no word beside its flags


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define_run(values)
    experiment_flags.define_devices(values)
    experiment_flags.define_step(values)
    formats = ["huggingface", *get_args(Format)]
    command.choice("format", formats, "The layout of the folder.", values)
    command.string("output", "The folder to write; it must not exist.", values)
    experiment_flags.define_weights(values)
    command.string(
        "signature",
        "What a program computes: of predict, score, decode; all, if not given.",
        values,
    )
    command.integer(
        "batch_size",
        "Examples of a call of stablehlo and tflite (default: 1).",
        values,
        lower_bound=1,
    )
    command.integer(
        "prompt_length",
        "Most tokens of a prompt of stablehlo and tflite (default: 64, or those of sources).",
        values,
        lower_bound=1,
    )
    command.string("verify", "An exported folder: check that its files are as written.", values)
    command.choice(
        "quantize",
        get_args(Quantize),
        "The numbers of a tflite, or of the weights of a savedmodel.",
        values,
    )
    command.string(
        "config",
        "Folder whose config.json describes the model; the one imported, if not given.",
        values,
    )
    command.choice("dtype", ["float32", "bfloat16"], "The type of the weights.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Writes the folder, and prints its size."""
    del word
    if values.verify is not None:
        alone = ("verify", "traceback", "flagfile")
        if others := [name for name in values if values[name].present and name not in alone]:
            raise UsageError(f"--verify reads nothing but a folder: leave out --{others[0]}")
        return _verify(Path(values.verify))
    output = _check(values)
    step = experiment_flags.read_step(values.step)
    resolved = experiment_flags.resolve_run_with_weights(values)
    experiment_flags.make_devices(values, resolved.params)
    with build_experiment(resolved).runtime.join() as processes:
        model = Trained(resolved.params, RunDirectory(values.run), step=step)
        experiment_flags.print_later_errors(model.checkpoint)
        if processes.is_leader or values.format != "huggingface":  # which refuse several processes
            model.export(
                output,
                format=values.format,
                config=values.config,
                dtype=values.dtype,
                signatures=values.signature.split(",") if values.signature else (),
                batch_size=values.batch_size or 1,
                quantize=values.quantize,
                prompt_length=values.prompt_length or 0,
                progress=lambda text: print(text, flush=True),
            )
            size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
            print(f"{output}: {len(model.weights)} weights of step {model.step}, {size:,} bytes")
            if (manifest := output / MANIFEST).exists():
                _print_check(json.loads(manifest.read_text()))
    return 0


def _verify(folder: Path) -> int:
    manifest = verify_export(folder)
    number, step = len(manifest["files"]), manifest["step"]
    print(f"{folder}: {number} files of step {step}, as they were written")
    return 0


def _check(values: flags.FlagValues) -> Path:
    """Returns the path of the output; raises UsageError for a mistake in the flags."""
    for name in ("run", "output"):
        if values[name].value is None:
            raise UsageError(f"no {name} given: lingo export --run=DIR --output=FOLDER")
    output = Path(values.output)
    if os.path.lexists(output):
        raise UsageError(f"--output={output} exists: name another folder, or remove it")
    if not output.parent.is_dir():
        raise UsageError(f"--output={output}: there is no directory {output.parent}")
    if values.config is not None and not os.path.isdir(values.config):
        raise UsageError(f"--config={values.config}: there is no such folder")
    return output


def _print_check(manifest: Mapping[str, Any]) -> None:
    """Prints a line for each signature: its inputs and how much it differs from the run."""
    for name, specs in manifest["signatures"].items():
        difference = manifest["check"]["differences"][name]
        print(
            f"  {name}({', '.join(specs['inputs'])}): numbers differ by {difference['floats']:.1g},"
            f" {difference['others']:.2%} of integers and texts"
        )
