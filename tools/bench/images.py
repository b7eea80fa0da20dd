"""Images: what is read and decoded a second, and a training step of ResNet-50, against rivals.

The input reads JPEGs in TFRecord files, cuts random rectangles out, mirrors half of them and
resizes them. A `tf.data` pipeline does the same with TensorFlow's own functions; it cannot resume
at a step without what came before it. The rectangles of both have as many pixels on average. The
step is that of images of 64 pixels, without an input. Both rivals compute convolutions of 1x1 by
TensorFlow's operation, where lingo multiplies matrices: that is part of the ratio.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data.images.image_file_input import ImageFileInput
from lingo.data.images.image_input import ImageInput
from lingo.data.images.image_records import IMAGE, LABEL, ImageRecords
from lingo.data.images.view import RandomView
from lingo.data.prefetch import Prefetch
from lingo.datasets.photographs import NAMES, Photographs, read_photograph
from lingo.layers.stacks.stack import Chain
from lingo.learner.state import initial_state
from lingo.models.image.resnet import resnet
from lingo.ops.image.box import random_boxes
from lingo.ops.random import fold, key_array, root_key
from lingo.optim.sgd import Momentum
from tasks.image.task import ImageClassification
from tools.harness import Bound, Report, Turns, at_least, at_most, choose, measure

NUM_IMAGES, QUALITY = choose(2000, small=8), 90
SIZE, BATCH_SIZE = choose((224, 64), small=(32, 4))
# batches of a turn: those made ahead, outside of it, are few
BATCHES, ROUNDS = choose((60, 8), small=(2, 1))
NUM_RECTANGLES = choose(4000, small=10)
PHOTOGRAPH = (350, 364)  # height and width: the mean of those written
MIN_AREA = 0.17  # of the pipeline: TensorFlow draws heights evenly, lingo areas, from 0.08 on
STEP_SIZE = 64  # pixels of a side, as of `Photographs`
STEP_BATCH_SIZE, STEP_ROUNDS = choose((16, 24), small=(2, 1))
NUM_CLASSES, LEARNING_RATE = 1000, 0.01


def write_photographs(folder: Path) -> Path:
    """Writes parts of two photographs, about 300 x 400 pixels each, as JPEGs in a TFRecord file."""
    photographs, file = [read_photograph(name) for name in NAMES], folder / "photographs.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        for i in range(NUM_IMAGES):
            photograph = photographs[i % len(NAMES)]
            keys = key_array([fold(root_key(0), i)])
            size = (photograph.shape[0], photograph.shape[1])
            (box,) = random_boxes(
                [size], keys, name="bench", min_area=0.35, max_area=0.6, max_aspect=1.5
            )
            part = photograph if box is None else photograph[box.slices]
            stream = io.BytesIO()
            Image.fromarray(part).save(stream, "JPEG", quality=QUALITY)
            data = tf.train.BytesList(value=[stream.getvalue()])
            label = tf.train.Int64List(value=[1 + i % len(NAMES)])
            feature = {
                IMAGE: tf.train.Feature(bytes_list=data),
                LABEL: tf.train.Feature(int64_list=label),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return file


# ---- input ---------------------------------------------------------------------------------------


def image_input(file: Path) -> Params:
    """Returns lingo's input of a file."""
    source = ImageRecords.params(pattern=str(file), num_classes=len(NAMES))
    return ImageFileInput.params(source=source, view=RandomView, size=SIZE, batch_size=BATCH_SIZE)


def lingo_batches(turns: Turns, *, file: Path) -> None:
    """A turn is some batches, made ahead of time in lingo's threads, as training does."""
    input = image_input(file).build()
    input.prepare()
    with Prefetch(input, spans=(range(i, i + 1) for i in itertools.count())) as items:
        while True:
            with turns.turn():
                for _ in range(BATCHES):
                    next(items)


def plain_batches(turns: Turns, *, file: Path, antialias: bool) -> None:
    """A turn is some batches of a pipeline by hand."""
    batches = iter(pipeline(file, antialias=antialias))
    while True:
        with turns.turn():
            for _ in range(BATCHES):
                next(batches)[0].numpy()


def pipeline(file: Path, *, antialias: bool) -> Any:
    """Returns a `tf.data` pipeline of uint8 images [B, H, W, C] and labels [B]."""
    spec = {
        IMAGE: tf.io.FixedLenFeature([], tf.string),
        LABEL: tf.io.FixedLenFeature([], tf.int64),
    }

    def read(record: tf.Tensor) -> Any:
        example = tf.io.parse_single_example(record, spec)
        window = plain_window(tf.io.extract_jpeg_shape(example[IMAGE]))
        image = tf.io.decode_and_crop_jpeg(example[IMAGE], window, channels=3)
        image = tf.image.random_flip_left_right(image)
        image = tf.image.resize(image, [SIZE, SIZE], antialias=antialias)
        return tf.cast(image + 0.5, tf.uint8), example[LABEL]

    records = tf.data.TFRecordDataset(str(file)).shuffle(NUM_IMAGES).repeat()
    return records.map(read, tf.data.AUTOTUNE, deterministic=True).batch(BATCH_SIZE).prefetch(2)


def plain_window(shape: Any) -> tf.Tensor:
    """Returns a random rectangle of an image of a shape (H, W, C): int32 [4], as a Box."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(MIN_AREA, 1.0),
        max_attempts=10,
    )
    return tf.concat([begin[:2], size[:2]], 0)


def compare_rectangles(report: Report) -> None:
    """Compares the sizes of rectangles: a pipeline with smaller ones would decode less."""
    keys = key_array(fold(root_key(0), i) for i in range(NUM_RECTANGLES))
    windows = RandomView.params().build().windows([PHOTOGRAPH] * NUM_RECTANGLES, keys)
    ours = np.mean([window.box.height * window.box.width for window in windows])
    shapes = tf.data.Dataset.from_tensors([*PHOTOGRAPH, 3]).repeat(NUM_RECTANGLES)
    theirs = np.mean([h * w for _, _, h, w in shapes.map(plain_window).as_numpy_iterator()])
    report.table("pixels of a rectangle, on average")
    report.line("lingo / tf.data", float(ours / theirs), Bound(0.97, 1.03))


def compare_inputs(report: Report) -> None:
    """Compares the input with pipelines, which resize as it does, and antialiased."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the index is made anew
        file = write_photographs(Path(folder))
        sides = {
            "lingo": functools.partial(lingo_batches, file=file),
            "tf.data": functools.partial(plain_batches, file=file, antialias=False),
            "tf.data, antialiased": functools.partial(plain_batches, file=file, antialias=True),
        }
        measured = measure(sides, num=ROUNDS)
    report.times(f"{BATCHES} batches of {BATCH_SIZE}", measured)
    costs = measured.rounds
    report.table("images a second / tf.data", "of a processor second")
    for rival, wanted in (("tf.data", at_least(1.0)), ("tf.data, antialiased", None)):
        report.ratio(f"lingo / {rival}", costs[rival], costs["lingo"], wanted)


# ---- the step ------------------------------------------------------------------------------------


def experiment() -> Params:
    """Returns ResNet-50 as Keras has it, for a thousand classes."""
    layers = resnet(num_layers=50, num_classes=NUM_CLASSES, version="v1")
    return Experiment.params(
        task=ImageClassification.params(model=Chain.params(layers=layers), num_classes=NUM_CLASSES),
        train_input=ImageInput.params(source=Photographs, batch_size=STEP_BATCH_SIZE),
        optimizer=Momentum.params(learning_rate=LEARNING_RATE),
        max_steps=1_000_000,
    )


def batch() -> dict[str, np.ndarray]:
    """Returns random images and labels."""
    draw, size = np.random.default_rng(0), STEP_BATCH_SIZE
    return {
        "images": draw.random([size, STEP_SIZE, STEP_SIZE, 3], np.float32),
        "labels": draw.integers(0, NUM_CLASSES, size).astype(np.int32),
        "weights": np.ones(size, np.float32),
        "rows": np.arange(size, dtype=np.int32),
    }


def lingo_steps(turns: Turns) -> None:
    """A turn is a step of the compiled program, nothing else."""
    built = experiment().build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    batches = {name: value[None] for name, value in batch().items()}
    while True:
        with turns.turn():
            float(program.train(batches)["scalars"]["loss/total"][0])


def plain_steps(turns: Turns) -> None:
    """A turn is a step of the network written by hand."""
    from tools.rivals.plain_resnet import PlainResNet

    network = PlainResNet(num_classes=NUM_CLASSES, learning_rate=LEARNING_RATE)
    tensors = [tf.constant(batch()[name]) for name in ("images", "labels")]
    while True:
        with turns.turn():
            float(network.step(*tensors))


def keras_steps(turns: Turns) -> None:
    """A turn is a step of Keras' own ResNet-50 in `fit`, without the reading of its data."""
    arrays = batch()
    tf.constant(0)  # imports TensorFlow first, which lingo does quietly
    import keras

    class EachStep(keras.callbacks.Callback):
        """Takes turns."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            turns.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            turns.end()

    shape = (STEP_SIZE, STEP_SIZE, 3)
    none: Any = None
    without_xla: Any = False
    model = keras.applications.ResNet50(
        weights=none, classes=NUM_CLASSES, input_shape=shape, classifier_activation=none
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=without_xla)
    data = tf.data.Dataset.from_tensors((arrays["images"], arrays["labels"])).repeat()
    silent: Any = 0
    model.fit(
        data,
        steps_per_epoch=1_000_000,
        callbacks=[EachStep()],
        shuffle=False,
        verbose=silent,
    )


def compare_steps(report: Report) -> None:
    """Compares a step of ResNet-50 with that by hand, and with Keras."""
    sides = {"lingo": lingo_steps, "by hand": plain_steps, "Keras fit": keras_steps}
    measured = measure(sides, num=STEP_ROUNDS)
    report.times(f"a step of {STEP_BATCH_SIZE} images of {STEP_SIZE} pixels", measured)
    costs = measured.rounds
    report.table("ratio of steps", "of processor seconds")
    report.ratio("lingo / by hand", costs["lingo"], costs["by hand"], at_most(1.02))
    report.ratio("lingo / Keras fit", costs["lingo"], costs["Keras fit"], at_most(1.0))


def run(report: Report) -> None:
    """Compares everything."""
    compare_rectangles(report)
    compare_inputs(report)
    compare_steps(report)
