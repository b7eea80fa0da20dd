"""Writes the model of a run into a folder that other programs read.

    lingo export --run=runs/gpt2 --format=huggingface --output=tuned
    lingo export --run=runs/gpt2 --format=huggingface --output=tuned --step=best
    lingo export --run=runs/gpt2 --format=huggingface --output=tuned --set=evaluate.weights=ema
    lingo export --run=runs/mine --format=huggingface --output=mine --config=llama

--format=huggingface writes config.json, model.safetensors and, if the run has one, tokenizer.json,
as models of Hugging Face's hub have them. Its config.json is that of the folder from which the run
was imported, or of the folder that --config names, and must describe the model. The new folder
appears only when it is complete, and no folder is overwritten.
"""

from __future__ import annotations

import os
from pathlib import Path

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.contract import build_experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

WORD = ""  # it takes no word beside its flags


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define_run(values)
    experiment_flags.define_devices(values)
    experiment_flags.define_step(values)
    command.choice("format", ["huggingface"], "The layout of the folder.", values)
    command.string("output", "The folder to write; it must not exist.", values)
    command.string(
        "config",
        "Folder whose config.json describes the model; the one imported, if not given.",
        values,
    )
    command.choice("dtype", ["float32", "bfloat16"], "The type of the weights.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Writes the folder, and prints its size."""
    del word
    output = _check(values)
    step = experiment_flags.read_step(values.step)
    resolved = experiment_flags.resolve_run(values, values.set)
    experiment_flags.make_devices(values, resolved.params)
    with build_experiment(resolved).runtime.join() as processes:
        model = Trained(resolved.params, RunDirectory(values.run), step=step)
        experiment_flags.print_later_errors(model.checkpoint)
        if processes.is_leader:
            model.export(output, format=values.format, config=values.config, dtype=values.dtype)
            size = sum(file.stat().st_size for file in output.iterdir())
            print(f"{output}: {len(model.weights)} weights of step {model.step}, {size:,} bytes")
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
