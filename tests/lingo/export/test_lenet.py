"""A whole network in 8 bits: LiteRT computes what the network computes as it was trained."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import lingo


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*")
def test_lenet_differs_by_three_levels_at_most_and_says_the_same(tmp_path: pathlib.Path) -> None:
    overrides = ("max_steps=150", "PassiveAsymQDomain.range_decay=0.95")
    params = lingo.get("image.lenet.digits_int8", *overrides)
    lingo.train(params, tmp_path / "run")
    model = lingo.load(tmp_path / "run")
    model.export(tmp_path / "lite", format="tflite", quantize="int8", batch_size=2)
    interpreter = tf.lite.Interpreter(model_path=str(tmp_path / "lite" / "model.tflite"))
    predict = interpreter.get_signature_runner("predict")
    data = model.experiment.eval_inputs["heldout"]
    batches = [data.batch(step) for step in range(data.num_batches())]
    images = np.concatenate([batch["images"][batch["weights"] > 0] for batch in batches])
    pairs = [predict(images=images[i : i + 2]) for i in range(0, len(images), 2)]
    found = {name: np.concatenate([pair[name] for pair in pairs]) for name in pairs[0]}
    expected = model.predict({"images": images})
    assert len(images) == 334
    assert (found["labels"] == expected["labels"]).mean() >= 0.99
    logits = [t for t in interpreter.get_tensor_details() if [*t["shape"]] == [2, 10]]
    scale, zero = next(t["quantization"] for t in logits if t["dtype"] == np.int8)
    # logits outside of the range of the 64 examples get its ends
    low, high = scale * (-128 - zero), scale * (127 - zero)
    difference = np.abs(found["logits"] - np.clip(expected["logits"], low, high))
    assert difference.max() <= 3 * scale
