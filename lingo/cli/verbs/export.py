"""Writes the model of a run into a folder that other programs read.

    lingo export --run=runs/tiny --format=savedmodel --output=served
    lingo export --run=runs/tiny --format=savedmodel --output=served --signature=predict,score
    lingo export --run=runs/tiny --format=stablehlo --output=programs --batch_size=8
    lingo export --run=runs/digits --format=tflite --output=phone --quantize=int8 --step=best
    lingo export --verify=served
    lingo export --run=runs/gpt2 --format=huggingface --output=tuned
    lingo export --run=runs/gpt2 --format=huggingface --output=tuned --weights=ema
    lingo export --run=runs/mine --format=huggingface --output=mine --config=llama

An exported program (savedmodel, stablehlo, tflite) is checked: a process without lingo loads it and
computes 64 examples of the first evaluation input. If the results are not the model's, this is an
error, and no folder is written. export.json describes the program, says how much its results
differed, and has the digests of all files, which --verify compares.

--format=huggingface writes config.json, model.safetensors and, if the run has one, tokenizer.json,
like models of Hugging Face's hub. The config.json comes from the folder from which the run was
imported, or from the folder that --config names, and must describe the model. For an image
classifier of timm, torchvision or Keras, the tensors have that library's names. The new folder
appears only when it is complete, and no folder is overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lingo.cli import experiment_options
from lingo.cli.command import UsageError, new_output
from lingo.cli.experiment_options import DeviceOptions, WeightOptions
from lingo.cli.options import StepOptions
from lingo.config.options import option, option_class
from lingo.contract import build_experiment
from lingo.export.manifest import MANIFEST, verify_export
from lingo.export.portable import ExportOptions
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained


@option_class
class Options(ExportOptions, StepOptions, WeightOptions, DeviceOptions):
    """The options of `lingo export`."""

    output: str | None = option("The folder to write; it must not exist.")
    signature: str | None = option(
        "What a program computes: some of predict, score, decode; else all."
    )
    verify: str | None = option("An exported folder: check that its files are as written.")


def run(options: Options) -> int:
    """Writes the folder, and prints its size."""
    if options.verify is not None:
        options.refuse_others(("verify",), "--verify reads nothing but a folder")
        return _verify(Path(options.verify))
    run, output = _check(options)
    resolved = options.resolve_with_weights()
    options.make_devices(resolved.params)
    with build_experiment(resolved).runtime.join() as processes:
        model = Trained(resolved.params, RunDirectory(run), step=options.step)
        experiment_options.print_later_errors(model.checkpoint)
        if processes.is_leader or options.format != "huggingface":  # other formats refuse several
            model.export(
                output,
                format=options.format,
                config=options.config,
                dtype=options.dtype,
                signatures=options.signature.split(",") if options.signature else (),
                batch_size=options.batch_size,
                quantize=options.quantize,
                prompt_length=options.prompt_length,
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


def _check(options: Options) -> tuple[str, Path]:
    """Returns the run and the path of the output; raises UsageError for a mistake in the flags."""
    if options.run is None or options.output is None:
        name = "run" if options.run is None else "output"
        raise UsageError(f"no {name} given: lingo export --run=DIR --output=FOLDER")
    output = new_output(options.output, "folder")
    if options.config is not None and not os.path.isdir(options.config):
        raise UsageError(f"--config={options.config}: there is no such folder")
    return options.run, output


def _print_check(manifest: Mapping[str, Any]) -> None:
    """Prints a line per signature: its inputs, and how much its results differ from the run's."""
    for name, specs in manifest["signatures"].items():
        difference = manifest["check"]["differences"][name]
        print(
            f"  {name}({', '.join(specs['inputs'])}): numbers differ by {difference['floats']:.1g},"
            f" {difference['others']:.2%} of integers and texts"
        )
