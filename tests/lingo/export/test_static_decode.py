"""Decoding in static shapes computes, in a process without lingo, what the run decodes."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from lingo.config.params import ParamError, Params
from lingo.decode import Beam, Sampling
from lingo.export.formats import Format
from lingo.export.manifest import verify_export
from lingo.trainer.trained import Trained

Train = Callable[[str], Trained]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated.*"),
    pytest.mark.xdist_group("static_exports"),  # a process of their own, for the memory
]

GREEDY = Sampling.params(max_tokens=6, temperature=0)
DRAW = Sampling.params(max_tokens=6, num_samples=2, top_k=5, top_p=0.9)
BEAM = Beam.params(max_tokens=6, num_beams=3, num_samples=2, length_penalty=0.6)


@pytest.mark.parametrize(
    ("name", "format", "sampling", "inputs"),
    [
        ("tiny", "stablehlo", DRAW, {"tokens": [16, 12], "lengths": [16], "seeds": [16]}),
        ("tiny_moe", "tflite", BEAM, {"tokens": [16, 12], "lengths": [16]}),
        ("pairs", "tflite", GREEDY, {"tokens": [16, 12], "lengths": [16]}),
        ("prefix", "stablehlo", GREEDY, {"tokens": [16, 12]}),  # a prefix is read as a whole
    ],
)
def test_decoding_is_that_of_the_run(
    name: str,
    format: Format,
    sampling: Params,
    inputs: dict[str, list[int]],
    trained: Train,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = trained(name)
    monkeypatch.setattr(model.experiment.evaluate, "sampling", sampling.build())
    model.export(
        tmp_path / "out", format=format, signatures=["decode"], batch_size=16, prompt_length=12
    )
    manifest = verify_export(tmp_path / "out")
    specs = manifest["signatures"]["decode"]
    assert specs["inputs"] == {name: [shape, "int32"] for name, shape in inputs.items()}
    texts = [16, sampling.num_samples, 6]
    assert specs["outputs"] == {
        "tokens": [texts, "int32"],
        "lengths": [texts[:2], "int32"],
        "log_probs": [texts, "float32"],
    }
    difference = manifest["check"]["differences"]["decode"]
    assert (difference["floats"] < 1e-5, difference["others"]) == (True, 0)


def test_prompts_for_which_a_model_has_no_positions_are_refused(
    trained: Train, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, length: int) -> None:
        raise ParamError(f"{length} positions")

    model = trained("tiny")
    monkeypatch.setattr(type(model.experiment.task), "check_positions", refuse)
    with pytest.raises(ParamError, match=r"prompt_length=9 and .*max_tokens=6: 14 positions"):
        model.export(tmp_path / "out", format="tflite", signatures=["decode"], prompt_length=9)
