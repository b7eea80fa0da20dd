"""The models of transformers that tests read are small, and what they generate fits their logits.

Nothing here needs torch: tools/oracles/hugging_face.py wrote the folders.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tools.oracles.hugging_face import CONFIGS, FOLDER, NEW_TOKENS, NUM_BEAMS, VOCAB_SIZE

safetensors = pytest.importorskip(
    "safetensors.numpy", reason="needs pip install 'lingo-tf[safetensors]'"
)


@pytest.fixture(params=list(CONFIGS))
def folder(request):
    return FOLDER / request.param


@pytest.fixture
def arrays(folder):
    with np.load(folder / "expected.npz") as file:
        return dict(file)


def test_there_is_a_folder_for_each_architecture_and_all_are_small():
    assert {path.name for path in FOLDER.iterdir()} == set(CONFIGS)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < 2e6


def test_weights_are_float32_and_none_is_constant(folder):
    for name, weight in safetensors.load_file(folder / "model.safetensors").items():
        assert weight.dtype == np.float32, name
        assert weight.std() > 0.05, name


def test_the_config_of_transformers_4_has_the_same_numbers(folder):
    new = json.loads((folder / "config.json").read_text())
    if (folder / "config_4.json").exists():
        old = json.loads((folder / "config_4.json").read_text())
        assert new["rope_parameters"] == {
            "rope_theta": old["rope_theta"],
            **(old["rope_scaling"] or {"rope_type": "default"}),
        }
        assert {key: new[key] for key in new.keys() & old.keys()} == {
            key: old[key] for key in new.keys() & old.keys()
        } | {"transformers_version": new["transformers_version"]}
    else:
        assert "rope_parameters" not in new


def test_logits_are_of_the_tokens_of_a_row_and_differ_clearly(arrays):
    rows, length = arrays["tokens"].shape
    assert arrays["logits"].shape == (rows, length, VOCAB_SIZE)
    lengths = arrays.get("lengths", np.full(rows, length))
    has_token = np.arange(length) < lengths[:, None]
    np.testing.assert_array_equal(arrays["logits"].any(-1), has_token)
    assert arrays["logits"][has_token].std(-1).min() > 0.1


def test_a_greedy_text_begins_with_the_most_probable_token(arrays):
    assert arrays["greedy"].shape == (2, NEW_TOKENS)
    if "lengths" in arrays:
        last = arrays["logits"][[0, 1], arrays["lengths"] - 1]
    else:  # the decoder's first token, the same that generated texts follow
        last = arrays["logits"][:, 0]
    np.testing.assert_array_equal(arrays["greedy"][:, 0], last.argmax(-1))


def test_beams_are_different_texts_with_the_best_first(arrays):
    for tokens, log_probs in (("beams", "beam_log_probs"), ("ended_beams", "ended_beam_log_probs")):
        assert arrays[tokens].shape == (2, NUM_BEAMS, NEW_TOKENS)
        assert (np.diff(arrays[log_probs], axis=1) < -1e-3).all()
        for row in arrays[tokens]:
            assert len(np.unique(row, axis=0)) == NUM_BEAMS


def test_some_texts_end_early_and_nothing_follows_their_end(folder, arrays):
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    is_end = arrays["ended_beams"] == end
    np.testing.assert_array_equal(np.maximum.accumulate(is_end, -1), is_end)
    assert is_end[:, 0, -2].any()
