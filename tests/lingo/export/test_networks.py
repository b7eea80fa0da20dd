"""Exports of whole networks compute what their runs compute: in 8 bits, and Mask R-CNN."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import lingo
from lingo import Experiment
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.datasets import GlyphSceneInput
from lingo.export import reader
from lingo.export.formats import Format
from lingo.export.lite_int8 import convert_to_int8
from lingo.layers import Attention, BatchNorm, ConvNorm
from lingo.layers.context import apply
from lingo.models import Backbone, MaskRcnn
from lingo.optim import Adam
from lingo.trainer.trained import Trained
from tasks.bert.task import BertPretraining
from tasks.detection.instance_segmentation import InstanceSegmentation

NETWORKS = {
    "image.lenet.digits_int8": ("max_steps=150", "PassiveAsymQDomain.range_decay=0.95"),
    "image.resnet.glyphs_int8": ("max_steps=100", "PassiveAsymQDomain.range_decay=0.9"),
}
"""Experiments and how they are trained here."""

NUM_IMAGES = 334  # those of the held-out digits
BATCH = 4
LOADERS: Mapping[Format, Callable[[pathlib.Path], reader.Signatures]] = {
    "savedmodel": reader.load_saved_model,
    "stablehlo": reader.load_stablehlo,
    "tflite": reader.load_tflite,
}


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*")
@pytest.mark.parametrize(
    "name",
    ["image.lenet.digits_int8", "image.resnet.glyphs_int8"],
)
def test_logits_differ_by_three_levels_at_most(name: str, tmp_path: pathlib.Path) -> None:
    lingo.train(lingo.get(name, *NETWORKS[name]), tmp_path / "run")
    model = lingo.load(tmp_path / "run")
    model.export(tmp_path / "lite", format="tflite", quantize="int8", batch_size=2)
    interpreter = tf.lite.Interpreter(model_path=str(tmp_path / "lite" / "model.tflite"))
    predict = interpreter.get_signature_runner("predict")
    data = model.experiment.eval_inputs["heldout"]
    batches = [data.batch(step) for step in range(data.num_batches())]
    images = np.concatenate([batch["images"][batch["weights"] > 0] for batch in batches])
    images = images[:NUM_IMAGES]
    pairs = [predict(images=images[i : i + 2]) for i in range(0, len(images), 2)]
    found = {part: np.concatenate([pair[part] for pair in pairs]) for part in pairs[0]}
    expected = model.predict({"images": images})
    assert len(images) == NUM_IMAGES
    shape = [2, expected["logits"].shape[1]]
    logits = [t for t in interpreter.get_tensor_details() if [*t["shape"]] == shape]
    scale, zero = next(t["quantization"] for t in logits if t["dtype"] == np.int8)
    # logits outside of the range of the 64 examples get its ends
    low, high = scale * (-128 - zero), scale * (127 - zero)
    levels = np.abs(found["logits"] - np.clip(expected["logits"], low, high)) / scale
    is_same = found["labels"] == expected["labels"]
    assert levels.max() <= 3
    if name == "image.lenet.digits_int8":  # the other hardly knows the letters after so few steps
        assert is_same.mean() >= 0.99


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*")
def test_a_recognizer_reads_the_same_words(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lingo.train(lingo.get("asr.tones.words", "max_steps=120"), tmp_path / "run")
    model = lingo.load(tmp_path / "run")
    model.export(tmp_path / "lite", format="tflite", quantize="int8")
    interpreter = tf.lite.Interpreter(model_path=str(tmp_path / "lite" / "model.tflite"))
    predict = interpreter.get_signature_runner("predict")
    shape = predict.get_input_details()["features"]["shape"]
    data = model.experiment.eval_inputs["heldout"]
    found: dict[str, list[np.ndarray]] = {"labels": [], "num_labels": []}
    for step in range(data.num_batches()):
        batch = data.batch(step)
        for i in np.flatnonzero(batch["weights"] > 0):
            features = np.zeros(shape, np.float32)
            features[0, : batch["features"].shape[1]] = batch["features"][i]
            answer = predict(features=features, num_frames=batch["num_frames"][i : i + 1])
            for name, answers in found.items():
                answers.append(answer[name][0])
    measures, _ = data.score({name: np.stack(answers) for name, answers in found.items()})
    assert measures["wer"] < 0.02


@pytest.mark.filterwarnings("ignore")
def test_a_bert_gives_tokens_before_padding_their_probabilities(draw: Callable) -> None:
    params = BertPretraining.params(vocab_size=30, next_sentence=None)
    params.model.set(dim=32).stack.num_layers = 2
    params.all(Attention).set(num_heads=2)
    task = params.build()
    weights = draw(task)
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 30, size=[1, 12]).astype(np.int32) for _ in range(32)]
    lengths = [np.array([size], np.int32) for size in rng.integers(4, 13, size=32)]

    def log_probs(tokens: Any, length: Any, *, constant_ranges: bool) -> tf.Tensor:
        batch = {"tokens": tokens, "segments": tf.sequence_mask(length, 12, tf.int32)}
        batch |= {"masked_positions": tf.range(12)[None], "masked_ids": tokens}
        call = {"weights_ready": True, "constant_ranges": constant_ranges}
        return apply(task, weights, batch, method="predict", call=call)[0]["target_log_probs"]

    graph: Any = tf.function(lambda x, n: log_probs(x, n, constant_ranges=True), autograph=False)
    specs = tf.TensorSpec([1, 12], tf.int32), tf.TensorSpec([1], tf.int32)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [graph.get_concrete_function(*specs)], graph
    )
    calls = list(zip(texts, lengths, strict=True))
    content = convert_to_int8(converter, lambda: ([x, n] for x, n in calls))
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    tokens, sizes = sorted(interpreter.get_input_details(), key=lambda one: -len(one["shape"]))
    (result,) = interpreter.get_output_details()
    found, expected = [], []
    for x, n in calls:
        interpreter.set_tensor(tokens["index"], x)
        interpreter.set_tensor(sizes["index"], n)
        interpreter.invoke()
        found.append(interpreter.get_tensor(result["index"])[0, : n[0]])
        expected.append(log_probs(x, n, constant_ranges=False)[0, : n[0]])
    exact = np.concatenate(expected)
    error = np.concatenate(found) - exact
    assert np.sqrt(np.mean(error**2)) < 0.1 * exact.std()


def mask_rcnn() -> Params:
    """Returns a Mask R-CNN of three maps for scenes of 32 x 48 pixels, whose step takes no time."""
    layers = [ConvNorm.params(dim=d, output_dim=4, stride=2) for d in (3, 4, 4)]
    model = MaskRcnn.params(trunk=Backbone.params(layers=layers), anchor_scale=3.0, base_side=32.0)
    model.all(BatchNorm).set(statistics_over=BATCH)
    model.pyramid.output_dim = model.region_head.hidden_dim = model.box_head.hidden_dim = 8
    model.box_head.size = 3
    model.mask_head.set(size=4, hidden_dim=4, num_convs=1)
    data = GlyphSceneInput.params(
        size=32,
        width=48,
        min_height=0.3,
        num_classes=3,
        num_scenes=16,
        mask_size=8,
        batch_size=BATCH,
    )
    task = InstanceSegmentation.params(
        model=model,
        num_anchors=16,
        max_per_level=12,
        num_proposals=12,
        eval_max_per_level=12,
        eval_num_proposals=12,
        num_regions=12,
        max_detections=6,
    )
    return Experiment.params(
        task=task,
        train_input=data,
        eval_inputs={"heldout": data.copy().set(repeat=False)},
        optimizer=Adam.params(learning_rate=0.01),
        max_steps=3,
    )


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder: pathlib.Path = tmp_path_factory.mktemp("mask_rcnn") / "run"
    lingo.train(mask_rcnn(), folder)
    return lingo.load(folder)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*")
@pytest.mark.parametrize("form", LOADERS)
def test_mask_rcnn_finds_the_same_objects_with_their_masks(
    form: Format, scenes: Trained, tmp_path: pathlib.Path
) -> None:
    shape = {} if form == "savedmodel" else {"batch_size": BATCH}  # it takes any number of images
    scenes.export(tmp_path / "export", format=form, **shape)
    predict = LOADERS[form](tmp_path / "export")["predict"]
    images = scenes.experiment.eval_inputs["heldout"].batch(1)["images"]
    for size in [BATCH] if shape else [BATCH, 1]:
        found = {k: np.asarray(v) for k, v in predict({"images": images[:size]}).items()}
        expected = scenes.predict({"images": images[:size]})
        assert (expected["box_labels"] > 0).any()
        assert found.keys() == expected.keys()
        np.testing.assert_array_equal(found["box_labels"], expected["box_labels"])
        for name in ("boxes", "box_scores", "masks"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)
