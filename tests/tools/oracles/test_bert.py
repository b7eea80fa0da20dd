"""The BERT of transformers that tests read is small, and of the batch that the script makes.

Nothing here needs torch: tools/oracles/bert.py wrote the folder.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tools.oracles.bert import CONFIG, FOLDER, LENGTHS, MASK_ID, MASKED, PAD_ID, make_batch

safetensors = pytest.importorskip(
    "safetensors.numpy", reason="needs pip install 'lingo-tf[safetensors]'"
)
ARRAYS = dict(np.load(FOLDER / "expected.npz"))


def test_the_folder_is_small_and_of_the_configuration():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1e5
    config = json.loads((FOLDER / "config.json").read_text())
    assert config.items() >= CONFIG.items()
    assert config["architectures"] == ["BertForPreTraining"]


def test_no_weight_is_constant_and_each_has_a_gradient():
    weights = safetensors.load_file(FOLDER / "model.safetensors")
    assert {f"gradient:{name}" for name in weights} == {name for name in ARRAYS if ":" in name}
    for name, weight in weights.items():
        assert weight.dtype == np.float32, name
        assert np.ptp(weight) > 0.01, name
        assert ARRAYS[f"gradient:{name}"].shape == weight.shape, name


def test_the_batch_is_that_of_the_script():
    for name, value in make_batch().items():
        np.testing.assert_array_equal(ARRAYS[name], value, err_msg=name)


def test_texts_are_padded_of_two_types_and_masked_where_they_say():
    assert ARRAYS["segments"].sum(1).tolist() == [*LENGTHS]
    np.testing.assert_array_equal(ARRAYS["tokens"] == PAD_ID, ARRAYS["segments"] == 0)
    assert all(set(row) == {0, 1} for row in ARRAYS["types"])
    for row, places in enumerate(MASKED):
        assert np.flatnonzero(ARRAYS["tokens"][row] == MASK_ID).tolist() == [*places]
        assert ARRAYS["masked_positions"][row, : len(places)].tolist() == [*places]
        assert ARRAYS["masked_weights"][row].sum() == len(places)
    assert not ARRAYS["masked_ids"][ARRAYS["masked_weights"] == 0].any()
