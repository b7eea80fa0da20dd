"""One example per class of the reference, written from its required fields."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping

from lingo.config import docs
from lingo.config.params import Configurable, ParamError, interface

WIDTH = 78  # characters of a line that is shown whole at 1280 pixels

VALUES = {
    # sizes of layers
    "dim": "64",
    "model_dim": "512",
    "hidden_dim": "256",
    "output_dim": "128",
    "before_dim": "64",
    "head_dim": "64",
    "label_dim": "320",
    "num_heads": "8",
    "num_experts": "8",
    "channels": "32",
    "num_filters": "32",
    "num_classes": "10",
    "num_stages": "2",
    "num_micro_batches": "4",
    "vocab_size": "32_000",
    "vocab_sizes": "(1000, 50)",
    "max_length": "512",
    "window": "128",
    "image": "(14, 14)",
    "grid": "(14, 14)",
    "size": "(32, 32)",
    "limit": "0.1",
    "factor": "4.0",
    "original_max_position_embeddings": "8192",
    "sizes": "(10, 4)",
    "num_values": "50",
    "layer": "FeedForward.params(dim=64)",
    "layers": "[Linear.params(dim=64, output_dim=64), FeedForward.params(dim=64)]",
    # optimizers and schedules
    "learning_rate": "1e-3",
    # inputs and sources
    "batch_size": "32",
    "length": "128",
    "source_length": "128",
    "target_length": "128",
    "pattern": '"texts/*.txt"',
    "folder": '"photos/train"',
    "file": '"tokenizer.json"',
    "AudioFiles.pattern": '"clips/*.wav"',
    "AudioInput.source": 'JsonlAudio.params(file="clips.jsonl")',
    "Backbone.layers": "[ConvNorm.params(dim=3, output_dim=64, stride=4)]",
    "FeaturePyramid.dims": "(256, 512, 1024, 2048)",
    "CocoInput.annotations": '"instances_train2017.json"',
    "ImageFileInput.source": 'ImageFolder.params(folder="photos/train", num_classes=10)',
    "ImageInput.source": "Digits",
    "ImageRecords.pattern": '"imagenet/train-*"',
    "CsvAudio.file": '"clips.csv"',
    "JsonlAudio.file": '"clips.jsonl"',
    "JsonLines.pattern": '"texts/*.jsonl"',
    "JsonlPairs.pattern": '"pairs/*.jsonl"',
    "LearnedPieces.source": 'TextFiles.params(pattern="texts/*.txt")',
    "LearnedWordPieces.source": 'TextFiles.params(pattern="texts/*.txt")',
    "LibriSpeech.folder": '"LibriSpeech/train-clean-100"',
    "MixedInput.input": "ImageInput.params(source=Digits)",
    "SentencePiece.model": '"pieces.model"',
    "TfRecords.pattern": '"texts/*.tfrecord"',
    "TfdsDirectory.directory": '"tensorflow_datasets/wikipedia/1.0.0"',
    "TfdsImages.directory": '"tensorflow_datasets/mnist/3.0.1"',
    "TsvPairs.pattern": '"pairs/*.tsv"',
    "WordPieces.file": '"vocab.txt"',
}
"""Field, or a class's own field -> the value that examples give it where it is required."""

TEXTS = {
    "ArrayInput": 'ArrayInput.params(file="digits.npz", batch_size=32)',
    "ByPath": """
        groups = {".*/b": Sgd, "(?!.*/b).*": AdamW}
        ByPath.params(groups=groups, learning_rate=1e-3)
        """,
    "ConformerEncoder": """
        encoder = ConformerEncoder.params(dim=80, output_dim=64)
        encoder.all(Attention).set(num_heads=4)
        encoder
        """,
    "ConformerLayer": """
        attention = Attention.params(num_heads=4)
        ConformerLayer.params(dim=64, attention=attention)
        """,
    "CsvInput": """
        columns = {"age": NumberColumn, "city": CategoryColumn.params(num_values=50)}
        CsvInput.params(file="people.csv", columns=columns, batch_size=32)
        """,
    "DatasetInput": """
        import tensorflow as tf

        def squares():
            return tf.data.Dataset.range(100).map(lambda n: {"x": n, "y": n * n})

        DatasetInput.params(function=squares, batch_size=32)
        """,
    "Experiment": """
        from tasks.image.task import ImageClassification

        trunk = ConvNorm.params(dim=1, output_dim=8)
        layers = [trunk, ImageHead.params(dim=8, num_classes=10)]
        Experiment.params(
            task=ImageClassification.params(model=Chain.params(layers=layers)),
            train_input=ImageInput.params(source=Digits, batch_size=64),
            optimizer=Adam.params(learning_rate=1e-3),
            max_steps=200,
        )
        """,
    "Keras": """
        import keras

        def network():
            dense = keras.layers.Dense(64, activation="relu")
            return keras.Sequential([keras.Input((64,)), dense])

        Keras.params(factory=network)
        """,
    "Mesh": "Mesh.params(data=2, model=4)",
    "Mixture": """
        code = TextInput.params(length=128)
        own = code.copy().set(source=TextFiles.params(pattern="texts/*.txt"))
        Mixture.params(inputs={"code": code, "own": own}, batch_size=32)
        """,
    "MultiTask": """
        from tasks.lm.model import LanguageModel
        from tasks.lm.task import LanguageModeling

        one = LanguageModeling.params(
            model=LanguageModel.params(dim=64), vocab_size=259
        )
        one.all(Stack).set(num_layers=2)
        one.all(Attention).set(num_heads=4)
        MultiTask.params(
            tasks={"code": one, "prose": one.copy()},
            shared={"tasks/prose/model/stack": "tasks/code/model/stack"},
        )
        """,
    "MultiTaskInput": """
        code = TextInput.params(length=128)
        prose = code.copy().set(source=TextFiles.params(pattern="texts/*.txt"))
        weights = {"code": 3.0, "prose": 1.0}
        MultiTaskInput.params(
            inputs={"code": code, "prose": prose},
            schedule=ConstantTasks.params(weights=weights),
            batch_size=32,
        )
        """,
    "PairInput": """
        pairs = TsvPairs.params(pattern="pairs/*.tsv")
        PairInput.params(
            source=pairs, source_length=128, target_length=128, batch_size=32
        )
        """,
    "Pipeline": """
        layer = FeedForward.params(dim=64)
        Pipeline.params(layer=layer, num_layers=12, num_stages=4, num_micro_batches=8)
        """,
    "Repeat": "Repeat.params(layer=FeedForward.params(dim=64), num_layers=12)",
    "SampleTable": """
        columns = {"alcohol": NumberColumn, "ash": NumberColumn}
        SampleTable.params(table="wine", columns=columns, batch_size=32)
        """,
    "SequenceInput": """
        def squares():
            return [{"x": n, "y": n * n} for n in range(100)]

        SequenceInput.params(function=squares, batch_size=32)
        """,
    "MaskRcnn": """
        from lingo.models.image.resnet import resnet

        trunk = Backbone.params(layers=resnet(num_layers=50, num_classes=1)[:-1])
        MaskRcnn.params(trunk=trunk, image_shape=(256, 256, 3), num_classes=10)
        """,
    "Ssd": """
        trunk = ConvNorm.params(dim=3, output_dim=64, stride=8)
        extra = ExtraMap.params(dim=64, hidden_dim=64, output_dim=128)
        Ssd.params(
            image_shape=(64, 64, 3),
            num_classes=10,
            trunk=trunk,
            extras=[extra],
            scales=(16.0, 32.0, 48.0),
            ratios=((2.0,), (2.0,)),
        )
        """,
    "Stack": "Stack.params(layer=FeedForward.params(dim=64), num_layers=12)",
    "StagedInput": """
        short = TextInput.params(length=128)
        long = TextInput.params(length=512)
        StagedInput.params(stages=((short, 900), (long, 100)), batch_size=32)
        """,
    "Task": """
        from tasks.image.task import ImageClassification

        trunk = ConvNorm.params(dim=1, output_dim=8)
        layers = [trunk, ImageHead.params(dim=8, num_classes=10)]
        ImageClassification.params(
            model=Chain.params(layers=layers), num_classes=10, image_shape=(8, 8, 1)
        )
        """,
    "TaskInput": """
        heldout = TextInput.params(length=128, batch_size=32, repeat=False)
        TaskInput.params(task="code", input=heldout)
        """,
    "TensorInput": """
        class Inverted(TensorInput):
            def arrays(self):
                return self.input.arrays()

            def map(self, arrays):
                return arrays | {"images": 255 - arrays["images"]}

        Inverted.params(input=ImageInput.params(source=Digits), batch_size=32)
        """,
    "TransformerLayer": """
        attention = Attention.params(num_heads=8, positions=Rotary)
        TransformerLayer.params(dim=64, attention=attention)
        """,
}
"""Class -> its example, where required fields alone do not say enough."""


def example(cls: type[Configurable], public_names: Mapping[type[Configurable], str]) -> str:
    """Returns Python that makes the parameters of a class.

    It is "" for a base class of exported classes, and if the docstring has an example.
    `public_names` has the name from which each exported class is imported. Raises ParamError if a
    required field of the class has no value here.
    """
    if ">>>" in (cls.__doc__ or ""):
        return ""
    if interface(cls) is cls and any(c is not cls and issubclass(c, cls) for c in public_names):
        return ""
    text = textwrap.dedent(TEXTS.get(cls.__name__, "")).strip() or _call(cls)
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    rooms: dict[str, list[str]] = {}
    for name in public_names.values():
        room, _, short = name.rpartition(".")
        if short in used:
            rooms.setdefault(room, []).append(short)
    imports = [f"from {room} import {', '.join(names)}" for room, names in sorted(rooms.items())]
    return "\n".join([*imports, "", text])


def _call(cls: type[Configurable]) -> str:
    required = [field.name for field in docs.describe(cls) if field.default == "required"]
    arguments = [f"{name}={_value(cls, name)}" for name in required]
    line = f"{cls.__name__}.params({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    return f"{cls.__name__}.params(\n" + "".join(f"    {one},\n" for one in arguments) + ")"


def _value(cls: type[Configurable], field: str) -> str:
    try:
        return VALUES.get(f"{cls.__name__}.{field}") or VALUES[field]
    except KeyError:
        raise ParamError(
            f"the example of {cls.__name__} in the reference has no value for the required field"
            f" {field}: add it to VALUES in tools/website/examples.py"
        ) from None
