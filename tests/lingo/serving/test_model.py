"""What is served computes what the export, and its run, compute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.checkpoints.manifest import render, seal_file
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.export.manifest import write_manifest
from lingo.serving.batcher import Batcher, BatchLimits, _Request, compute_batch
from lingo.serving.model import Refusal, ServedModel, load_export, load_run
from tests.lingo.serving.conftest import trace_all

TINY = (
    "lm.source.tiny(model_dim=16, num_layers=1)",
    "eval_inputs={}",
    "evaluate.prompts=[]",
    "evaluate.sampling.max_tokens=4",
    "evaluate.sampling.temperature=0",
    "train_input.length=32",
    "max_steps=1",
)


def test_the_newest_version_of_an_export_is_served(tmp_path: Path) -> None:
    folder = tmp_path
    for version in ("9", "010", "x"):
        tf.saved_model.save(tf.Module(), str(folder / version), signatures=trace_all())
    write_manifest(folder, {"format": "savedmodel"})
    (folder / "11").mkdir()
    (folder / "11" / "saved_model.pb").write_bytes(b"that nobody exported")
    model = load_export(folder, name="mine")
    assert (model.name, model.version) == ("mine", 10)
    assert {*model.signatures} == {"double", "count", "shout", "invert"}
    (spec,) = model.signatures["double"].inputs.values()
    assert str(spec) == "float32 [any, 2]"
    found = model.signatures["double"].compute({"x": np.ones([1, 2], np.float32)})
    assert found["y"].tolist() == [[2.0, 2.0]]
    for name in ("a/b", "a:predict"):
        with pytest.raises(ParamError, match=f"name '{name}' has / or :, which its URL cannot"):
            load_export(folder, name=name)


def test_a_folder_without_a_saved_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"is not an export: it has no export\.json"):
        load_export(tmp_path)
    (tmp_path / "export.json").write_text("{")
    with pytest.raises(ParamError, match=r"export\.json is not what lingo wrote"):
        load_export(tmp_path)
    write_manifest(tmp_path, {"format": "tflite"})
    with pytest.raises(ParamError, match="is a model of tflite: export it with lingo export"):
        load_export(tmp_path)
    write_manifest(tmp_path, {"format": "savedmodel"})
    with pytest.raises(ParamError, match=r"no version that its export\.json names"):
        load_export(tmp_path)


def test_an_export_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "out" / "7").symlink_to(tmp_path / "7")
    write_manifest(tmp_path / "out", {"format": "savedmodel"})
    files = {"7/saved_model.pb": seal_file(tmp_path / "7" / "saved_model.pb")}
    content = render({"format": "savedmodel", "files": files})
    (tmp_path / "out" / "export.json").write_bytes(content)
    with pytest.raises(ParamError, match="out/7 is a link, which may lead to any file"):
        load_export(tmp_path / "out")


def test_texts_are_padded_to_few_lengths_and_what_has_no_texts_is_not(model: ServedModel) -> None:
    def length(size: int) -> int:
        ids = np.ones([1, size], np.int32)
        return model.signatures["count"].pad({"tokens": ids, "segments": ids})["tokens"].shape[1]

    assert [*map(length, (0, 1, 16, 17, 32, 33, 256, 257))] == [16, 16, 16, 32, 32, 64, 256, 512]
    inputs = {"x": np.ones([1, 2], np.float32)}
    assert model.signatures["double"].pad(inputs) is inputs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    lingo.train(lingo.get(*TINY), folder)
    return folder


def test_a_run_is_served_as_it_predicts_and_padding_changes_nothing(run: Path) -> None:
    trained = lingo.load(run)
    model = load_run(trained, run)
    assert (model.name, model.version) == ("tiny", 1)
    assert [*model.signatures] == ["predict", "score", "decode", "score_text", "decode_text"]
    batch = trained.experiment.train_input.batch(0)
    score = model.signatures["score"]
    inputs = {name: batch[name] for name in score.inputs}
    expected = trained.predict(batch)["target_log_probs"] * (batch["segments"] > 0)
    np.testing.assert_allclose(score.compute(inputs)["log_probs"], expected, rtol=1e-5, atol=1e-5)

    async def requests() -> list[_Request]:
        cut = [{name: a[i : i + 1, : 17 + i] for name, a in inputs.items()} for i in range(3)]
        return [_Request(one, score.pad(one)) for one in cut]

    together = asyncio.run(requests())
    for request, found in zip(together, compute_batch(score, together), strict=True):
        alone = score.compute(request.inputs)
        assert {*found} == {*alone}
        for name, value in alone.items():
            assert value.shape == found[name].shape
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


def test_prompts_of_different_lengths_are_continued_as_each_alone(run: Path) -> None:
    decode = load_run(lingo.load(run), run).signatures["decode"]

    def inputs(size: int, length: int) -> dict[str, np.ndarray]:
        prompt = np.arange(3, 3 + size, dtype=np.int32)[None]
        return {"tokens": prompt, "lengths": np.array([length], np.int32)}

    prompts = [inputs(size, size) for size in (2, 7, 5)]

    async def ask() -> list[Any]:
        limits = BatchLimits(4, 600.0)
        batcher = Batcher(decode, limits, observe=sizes.append)
        too_long = [batcher.compute(inputs(2, 3)) for _ in range(4)]
        return await asyncio.gather(
            *map(batcher.compute, [*prompts, prompts[0]]), *too_long, return_exceptions=True
        )

    sizes: list[int] = []
    *found, _, error = asyncio.run(ask())[:5]
    assert sizes[:2] == [4, 4]
    for one, outputs in zip(prompts, found, strict=True):
        assert outputs["tokens"].tolist() == decode.compute(one)["tokens"].tolist()
    assert isinstance(error, Refusal)  # though a padded prompt has so many columns
    assert "lengths must be from 1 to the number of columns of tokens" in str(error)
