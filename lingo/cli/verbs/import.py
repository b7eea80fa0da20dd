"""Makes a run from another program's model, at step 0 and without training.

    lingo import --from=gpt2 --run=runs/gpt2
    lingo import --from=llama --run=runs/llama --set=exp.length=2048
    lingo import --from=gpt2 --run=runs/mine --exp=mine.py:tuned
    lingo import --from=resnet50.safetensors --run=runs/resnet50
    lingo decode --run=runs/gpt2 --prompt="Once upon a time"
    lingo train --run=runs/gpt2

--from is a folder with config.json, model.safetensors (or the index of several) and, for texts,
tokenizer.json, as `git clone` of a model of Hugging Face's hub makes it. For an image classifier of
timm, torchvision or Keras it may be a file of weights alone; --architecture names the network if
several have the same tensors.
--exp names your own experiment, which must have an argument `path`, the folder or file, and read
its weights by `init_from`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lingo.cli import experiment_options
from lingo.cli.command import RootOptions, UsageError
from lingo.config import registry
from lingo.config.options import option, option_class
from lingo.config.source_files import find_user_files
from lingo.contract import build_experiment
from lingo.export.hugging_face import find_experiment
from lingo.trainer.directory.run_directory import RunDirectory, flags_text
from lingo.trainer.request import Request
from lingo.trainer.run import create


@option_class
class Options(RootOptions):
    """The options of `lingo import`."""

    folder: str | None = option(
        "Folder of the model: config.json and model.safetensors; or a file of weights.",
        flag="from",
    )
    architecture: str | None = option(
        "Network of an image classifier: library.name, such as torchvision.resnet50."
    )
    run: str | None = option("Directory of the new run.")
    exp: str | None = option("Experiment with an argument `path`; by default one of lingo's.")
    set: Sequence[str] = option("Override path=value, applied in order.", default=())


def run(options: Options) -> int:
    """Creates the run, with a checkpoint of the imported weights."""
    folder, run = options.folder, options.run
    if folder is None or run is None:
        name = "from" if folder is None else "run"
        raise UsageError(f"no {name} given: lingo import --from=FOLDER --run=DIR")
    path = os.path.abspath(os.path.expanduser(folder))
    if not os.path.exists(path):
        raise UsageError(f"--from={folder}: there is no such folder or file")
    places = options.roots()
    overrides = [f"exp.path={path!r}", *options.set]
    if options.architecture is not None:
        overrides.insert(1, f"exp.architecture={options.architecture!r}")
    exp = options.exp or find_experiment(
        Path(path), has_architecture=options.architecture is not None
    )
    resolved = registry.get(exp, overrides, places)
    if build_experiment(resolved).init_from is None:
        raise UsageError(f"{exp} sets no init_from: nothing of {folder} would be read")
    directory = RunDirectory(run)
    config = experiment_options.config_json(resolved, places)
    given = flags_text(directory.path.resolve(), config, exp=exp, overrides=overrides)
    source = find_user_files(resolved.params, resolved.origin.file)
    create(Request(resolved.params, config, given, resolved.origin, source=source), directory)
    return 0
