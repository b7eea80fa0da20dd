"""Writes pictures of examples with their predictions: the images of `Task.summaries`, as files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.metrics.class_names import use_class_names
from lingo.metrics.media import Image
from lingo.storage.examples import Add
from lingo.storage.files import new_folder


@contextlib.contextmanager
def write_pictures(folder: Path, experiment: Experiment, input: Input) -> Iterator[Add]:
    """Yields a function that writes pictures into a new folder, which appears when it is complete.

    The function takes the predictions of the input's next batch, {name: [B, ...]}. Each picture
    shows one example of `input`: an image of `Task.summaries`. Its name is the example's index in
    the input, `000012.png`, and the image's name if a task has several.

    Raises:
        ParamError: if the folder exists; by the function, if the task's summaries of an example
            have no image.
        StorageError: if the folder cannot be written.
    """
    task, step = experiment.task.select(input.specs()), 0
    with new_folder(folder) as partial, use_class_names(input.class_names):

        def add(predictions: Mapping[str, np.ndarray]) -> None:
            nonlocal step
            batch = {name: np.asarray(array) for name, array in input.batch(step).items()}
            step += 1
            rows = np.flatnonzero(batch["weights"] > 0)
            for i, row in enumerate(rows):
                one = {name: array[row : row + 1] for name, array in batch.items()}
                found = {name: array[i : i + 1] for name, array in predictions.items()}
                shown = task.summaries(one, found)
                images = {name: image for name, image in shown.items() if isinstance(image, Image)}
                if not images:
                    raise ParamError(
                        f"{type(task).__name__} shows no images of examples (Task.summaries):"
                        " write the predictions into a file"
                    )
                _write(partial, int(predictions["example_id"][i]), images)

        yield add


def _write(folder: Path, number: int, images: Mapping[str, Image]) -> None:
    """Writes the images of one example."""
    for name, image in images.items():
        suffix = f"-{name.replace('/', '-')}" if len(images) > 1 else ""
        content = tf.io.encode_png(np.ascontiguousarray(image.to_rgb())).numpy()
        (folder / f"{number:06}{suffix}.png").write_bytes(content)
