"""Decoders of Hugging Face's: the logits and texts of transformers, from its files."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest

import lingo
from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.warm_start import weight_shapes
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.layers import context
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from tasks.lm.hugging_face import decoder, read_config
from tasks.lm.task import LanguageModeling

MODELS = pathlib.Path(__file__).parent / "huggingface"
DECODERS = ("gemma2", "gpt2", "llama2", "llama31", "mixtral", "qwen2", "qwen3")
NEVER = 1_000_000  # an end that no beam has


class Logits(LanguageModeling):
    """A task that returns logits."""

    def logits(self, batch):
        return self.model.logits(self.activations(batch))


class Model:
    """A model of transformers in lingo, and what transformers computes."""

    def __init__(self, name: str, config: str = "config.json") -> None:
        folder = MODELS / name
        read = decoder(json.loads((folder / config).read_text()))
        self.task = Logits.params(model=read.model, vocab_size=read.vocab_size).build()
        warm = read.warm_start(str(folder)).build()
        shapes = weight_shapes(self.task)
        warm.check_weights(list(shapes))
        self.transfer = warm.transfer(shapes)
        self.learner = Learner(self.task, Sgd.params(learning_rate=1.0).build())
        self.state = load_arrays(initial_state(self.learner, self.transfer.value))
        self.expected = np.load(folder / "expected.npz")
        self.lengths = self.expected["lengths"]

    def decode(self, decoding, *, end_id: int) -> np.ndarray:
        """Returns the new tokens of each prompt and text, int32 [B, S, N]."""
        rows = zip(self.expected["tokens"], self.lengths, strict=True)
        prompts = [Prompt(tokens[:length]) for tokens, length in rows]
        batch = prompt_batch(prompts, rows=range(len(prompts)), end_id=end_id)
        program = Local.params().build().start(self.learner, self.state)
        found, common = program.decode(batch, decoding.build())["tokens"], min(self.lengths)
        new = decoding.max_tokens
        starts = [length - common for length in self.lengths]
        return np.stack([row[:, s : s + new] for row, s in zip(found, starts, strict=True)])


@pytest.fixture(scope="module", params=DECODERS)
def model(request) -> Model:
    return Model(request.param)


def logits_of(model: Model) -> np.ndarray:
    tokens = model.expected["tokens"]
    segments = (np.arange(tokens.shape[1]) < model.lengths[:, None]).astype(np.int32)
    batch = {"tokens": tf.constant(tokens), "segments": tf.constant(segments)}
    call = {"state": model.state.state}
    logits, _ = context.apply(model.task, model.state.weights, batch, method="logits", call=call)
    return logits.numpy() * segments[:, :, None]


def test_logits_are_those_of_transformers(model: Model) -> None:
    np.testing.assert_allclose(logits_of(model), model.expected["logits"], rtol=0, atol=1e-4)


def test_greedy_texts_are_those_of_transformers(model: Model) -> None:
    greedy = model.expected["greedy"]
    end_id = min({*range(greedy.max() + 2)} - {*greedy.ravel().tolist()})  # no text has it
    sampling = Sampling.params(temperature=0.0, max_tokens=greedy.shape[1])
    found = model.decode(sampling, end_id=end_id)
    np.testing.assert_array_equal(found[:, 0], greedy)


def test_beams_are_those_of_transformers(model: Model) -> None:
    _, num_beams, num = model.expected["beams"].shape
    beam = Beam.params(
        num_beams=num_beams, num_samples=num_beams, max_tokens=num, length_penalty=0.0
    )
    np.testing.assert_array_equal(model.decode(beam, end_id=NEVER), model.expected["beams"])


@pytest.mark.parametrize("name", [n for n in DECODERS if (MODELS / n / "config_4.json").exists()])
def test_configurations_of_transformers_4_say_the_same(name: str) -> None:
    new, old = (
        decoder(read_config_file(MODELS / name / f)) for f in ("config.json", "config_4.json")
    )
    assert (
        lingo.diff(*(LanguageModeling.params(model=d.model, vocab_size=9) for d in (new, old)))
        == []
    )
    assert new.fields == old.fields


def read_config_file(file: pathlib.Path) -> dict:
    return json.loads(file.read_text())


def test_every_tensor_of_a_model_is_read(model: Model) -> None:
    used = {read.name for read in model.transfer.reads.values()}
    assert used == set(model.transfer.source.tensors)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "lama"}, "model_type='lama' is not one of .*Did you mean 'llama'"),
        ({"hidden_act": "swiglu"}, "the activation 'swiglu', not one of silu"),
        ({"attention_bias": True}, "attention_bias=True; lingo's llama has False only"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "positions of the type 'longrope'"),
        ({"hidden_size": "absent"}, "config.json of llama has no 'hidden_size'"),
    ],
)
def test_what_lingo_does_not_have_is_told(changes: dict, words: str) -> None:
    config = read_config(MODELS / "llama2") | changes
    config = {name: value for name, value in config.items() if value != "absent"}
    with pytest.raises(ParamError, match=words):
        decoder(config)


def test_a_folder_without_a_readable_configuration_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ParamError, match=r"config\.json cannot be read: No such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ParamError, match=r"config\.json is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ParamError, match="it holds no object"):
        read_config(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: pathlib.Path) -> None:
    shutil.copy(MODELS / "llama2" / "model.safetensors", tmp_path)
    config = read_config(MODELS / "llama2") | {"num_hidden_layers": 3}
    read = decoder(config)
    task = LanguageModeling.params(model=read.model, vocab_size=read.vocab_size).build()
    warm = read.warm_start(str(tmp_path)).build()
    with pytest.raises(CheckpointMismatch, match=r"missing model\.layers\.2"):
        warm.transfer(weight_shapes(task))
