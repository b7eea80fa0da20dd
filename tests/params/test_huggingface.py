"""Models of Hugging Face's hub: the logits and texts of transformers, from its files."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import lingo
from lingo.checkpoints.errors import CheckpointMismatch
from lingo.checkpoints.sources.transfer import Transfer
from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.layers import MoE, context
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from tasks.hugging_face.read import configure_model, read_config, read_model
from tasks.lm.task import LanguageModeling
from tasks.seq2seq.task import SequenceToSequence

MODELS = pathlib.Path(__file__).parent / "huggingface"
DECODERS = ("gemma2", "gpt2", "llama2", "llama31", "mixtral", "qwen2", "qwen3")
ENCODER_DECODERS = ("switch", "t5", "t5_tied")
WEIGHTS = "model.safetensors"
NEVER = 1_000_000  # an end that no beam has


class DecoderLogits(LanguageModeling):
    """A task that returns logits."""

    def logits(self, batch):
        return self.model.logits(self.activations(batch))


class EncoderDecoderLogits(SequenceToSequence):
    """A task that returns logits."""

    def logits(self, batch):
        return self.model.logits(self.activations(batch))


LOGITS = {LanguageModeling: DecoderLogits, SequenceToSequence: EncoderDecoderLogits}


class Model:
    """A model of transformers in lingo, and what transformers computes."""

    def __init__(self, name: str, folder: pathlib.Path | None = None) -> None:
        folder = folder or MODELS / name
        read = read_model(folder)
        task = LOGITS[read.task.cls]
        self.task = task.params(model=read.task.model, vocab_size=read.task.vocab_size).build()
        warm = read.warm_start(str(folder)).build()
        shapes = weight_shapes(self.task)
        warm.check_weights(list(shapes))
        self.transfer = warm.transfer(shapes)
        self.learner = Learner(self.task, Sgd.params(learning_rate=1.0).build())
        self.state = load_arrays(initial_state(self.learner, self.transfer.value))
        self.expected = dict(np.load(MODELS / name / "expected.npz"))

    @property
    def has_encoder(self) -> bool:
        return "encoder_tokens" in self.expected

    def batch(self) -> dict[str, np.ndarray]:
        """Returns the input of the logits, as a task reads it."""
        tokens = self.expected["tokens"]
        positions = np.zeros_like(tokens) + np.arange(tokens.shape[1], dtype=np.int32)
        if not self.has_encoder:
            lengths = self.expected["lengths"]
            segments = (positions < lengths[:, None]).astype(np.int32)
            return {"tokens": tokens, "segments": segments, "positions": positions}
        source = self.expected["encoder_tokens"]
        lengths = self.expected["encoder_lengths"]
        segments = (np.arange(source.shape[1]) < lengths[:, None]).astype(np.int32)
        return {
            "tokens": tokens,
            "segments": np.ones_like(tokens),
            "positions": positions,
            "source_tokens": source,
            "source_segments": segments,
        }

    def logits(self) -> np.ndarray:
        """Returns the logits of the batch, float32 [B, T, V], 0 at padding."""
        batch = {name: tf.constant(value) for name, value in self.batch().items()}
        call = {"state": self.state.state}
        logits, _ = context.apply(self.task, self.state.weights, batch, method="logits", call=call)
        return logits.numpy() * self.batch()["segments"][:, :, None]

    def decode(self, decoding, *, end_id: int) -> np.ndarray:
        """Returns the new tokens of each prompt and text, int32 [B, S, N]."""
        expected = self.expected
        if self.has_encoder:
            rows = zip(expected["encoder_tokens"], expected["encoder_lengths"], strict=True)
            start = expected["tokens"][0, :1]
            prompts = [Prompt(start, source=tokens[:length]) for tokens, length in rows]
        else:
            rows = zip(expected["tokens"], expected["lengths"], strict=True)
            prompts = [Prompt(tokens[:length]) for tokens, length in rows]
        batch = prompt_batch(prompts, rows=range(len(prompts)), end_id=end_id)
        program = Local.params().build().start(self.learner, self.state)
        found = program.decode(batch, decoding.build())["tokens"]
        new, lengths = decoding.max_tokens, [len(prompt.tokens) for prompt in prompts]
        starts = [length - min(lengths) for length in lengths]
        return np.stack([row[:, s : s + new] for row, s in zip(found, starts, strict=True)])


@pytest.fixture(scope="module", params=[*DECODERS, *ENCODER_DECODERS])
def model(request) -> Model:
    return Model(request.param)


def test_logits_are_those_of_transformers(model: Model) -> None:
    np.testing.assert_allclose(model.logits(), model.expected["logits"], rtol=0, atol=1e-4)


def test_greedy_texts_are_those_of_transformers(model: Model) -> None:
    greedy = model.expected["greedy"]
    end_id = min({*range(greedy.max() + 2)} - {*greedy.ravel().tolist()})  # no text has it
    sampling = Sampling.params(temperature=0.0, max_tokens=greedy.shape[1])
    found = model.decode(sampling, end_id=end_id)
    np.testing.assert_array_equal(found[:, 0], greedy)


@pytest.mark.parametrize("model", [*DECODERS, *ENCODER_DECODERS], indirect=True)
def test_beams_are_those_of_transformers(model: Model) -> None:
    _, num_beams, num = model.expected["beams"].shape
    beam = Beam.params(
        num_beams=num_beams, num_samples=num_beams, max_tokens=num, length_penalty=0.0
    )
    np.testing.assert_array_equal(model.decode(beam, end_id=NEVER), model.expected["beams"])


@pytest.mark.parametrize("name", [n for n in DECODERS if (MODELS / n / "config_4.json").exists()])
def test_configurations_of_transformers_4_say_the_same(name: str) -> None:
    new, old = (
        configure_model(json.loads((MODELS / name / file).read_text()))
        for file in ("config.json", "config_4.json")
    )
    assert lingo.diff(new.task, old.task) == []
    assert new.fields == old.fields


def test_every_tensor_of_a_model_is_read(model: Model) -> None:
    used = {read.name for read in model.transfer.reads.values()}
    assert used == set(model.transfer.source.tensors)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "lama"}, "model_type='lama' is not one of .*Did you mean 'llama'"),
        ({"hidden_act": "swiglu"}, "the activation 'swiglu', not one of silu"),
        ({"attention_bias": True}, "attention_bias=True; lingo's llama supports only False"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "positions of the type 'longrope'"),
        ({"hidden_size": "absent"}, "config.json of llama has no 'hidden_size'"),
    ],
)
def test_what_lingo_does_not_have_is_told(changes: dict, words: str) -> None:
    config = read_config(MODELS / "llama2") | changes
    config = {name: value for name, value in config.items() if value != "absent"}
    with pytest.raises(ParamError, match=words):
        configure_model(config)


def test_a_folder_without_a_readable_configuration_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ParamError, match=r"config\.json cannot be read: No such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ParamError, match=r"config\.json is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ParamError, match="does not hold a JSON object"):
        read_config(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: pathlib.Path) -> None:
    shutil.copy(MODELS / "llama2" / "model.safetensors", tmp_path)
    config = read_config(MODELS / "llama2") | {"num_hidden_layers": 3}
    read = configure_model(config)
    task = read.task.build()
    warm = read.warm_start(str(tmp_path)).build()
    with pytest.raises(CheckpointMismatch, match=r"missing model\.layers\.2"):
        warm.transfer(weight_shapes(task))


# ---- files as others write them ------------------------------------------------------------------


def copy_model(name: str, folder: pathlib.Path, rename: Callable[[str], str], **more) -> None:
    """Writes a tiny model's folder with other names of its tensors, and more of them."""
    tensors = load_file(MODELS / name / "model.safetensors")
    shutil.copy(MODELS / name / "config.json", folder)
    save_file({rename(key): value for key, value in tensors.items()} | more, folder / WEIGHTS)


def read_weights(folder: pathlib.Path) -> tuple[dict[str, np.ndarray], Transfer]:
    """Returns the weights of the model in a folder, and how they are read."""
    model = read_model(folder)
    transfer = model.warm_start(str(folder)).build().transfer(weight_shapes(model.task.build()))
    return {name: transfer.value(name) for name in transfer.reads}, transfer


def assert_same_weights(folder: pathlib.Path, name: str, dtype: type = np.float32) -> None:
    """Asserts that a folder has the weights of a tiny model, rounded to a type."""
    weights, _ = read_weights(folder)
    expected, _ = read_weights(MODELS / name)
    assert {*weights} == {*expected}
    for key, value in expected.items():
        rounded = value.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(weights[key], rounded, err_msg=key)


def test_gpt2_is_read_without_a_prefix_and_without_its_masks(tmp_path: pathlib.Path) -> None:
    """As in the file that is published, which is of 2019."""
    masks = {f"h.{i}.attn.bias": np.ones([1, 1, 32, 32], np.float32) for i in range(2)}
    masks |= {f"h.{i}.attn.masked_bias": np.array(-1e4, np.float32) for i in range(2)}
    copy_model("gpt2", tmp_path, lambda key: key.removeprefix("transformer."), **masks)
    assert_same_weights(tmp_path, "gpt2")
    _, transfer = read_weights(tmp_path)
    used = {read.name for read in transfer.reads.values()}
    assert {*transfer.source.tensors} - used == {*masks}


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_model_is_read_from_several_files(name: str, tmp_path: pathlib.Path) -> None:
    tensors = load_file(MODELS / name / WEIGHTS)
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    weight_map = {key: files[i % 2] for i, key in enumerate(tensors)}
    for file in files:
        save_file({k: v for k, v in tensors.items() if weight_map[k] == file}, tmp_path / file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (tmp_path / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    shutil.copy(MODELS / name / "config.json", tmp_path)
    assert_same_weights(tmp_path, name)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_smaller_types_are_read(dtype: type, tmp_path: pathlib.Path) -> None:
    tensors = load_file(MODELS / "t5" / WEIGHTS)
    shutil.copy(MODELS / "t5" / "config.json", tmp_path)
    save_file({key: value.astype(dtype) for key, value in tensors.items()}, tmp_path / WEIGHTS)
    assert_same_weights(tmp_path, "t5", dtype)


@pytest.mark.parametrize(
    "config", [{}, {"tie_word_embeddings": False, "scale_decoder_outputs": None}]
)
def test_t5_has_a_head_of_its_own_if_the_weights_have(config, tmp_path: pathlib.Path) -> None:
    """Configurations of transformers 5 call every T5 tied."""
    shared = load_file(MODELS / "t5" / WEIGHTS)["shared.weight"]
    copy_model("t5", tmp_path, str, **{"lm_head.weight": 2 * shared})
    values = read_config(tmp_path) | config
    (tmp_path / "config.json").write_text(json.dumps(values))
    weights, _ = read_weights(tmp_path)
    np.testing.assert_array_equal(weights["model/head/w"], 2 * shared.T)
    assert Model("t5", tmp_path).logits() == pytest.approx(2 * Model("t5").logits(), abs=1e-4)


def test_switch_has_experts_where_transformers_has() -> None:
    """Layer 1 and every so many after it: transformers' rule."""
    config = read_config(MODELS / "switch")
    for num_layers, num_sparse, expected in ((4, 2, [1, 3]), (6, 2, [1, 4]), (2, 2, [0, 1])):
        changes = {"num_layers": num_layers, "num_sparse_encoder_layers": num_sparse}
        task = configure_model(config | changes).task.build()
        layers = task.model.encoder.layers
        assert [i for i, layer in enumerate(layers) if isinstance(layer.ffn, MoE)] == expected
    with pytest.raises(ParamError, match="feed_forward_proj='gated-gelu'; lingo's switch_transf"):
        configure_model(config | {"feed_forward_proj": "gated-gelu"})
