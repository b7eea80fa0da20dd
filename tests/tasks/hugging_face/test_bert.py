"""BERT of Hugging Face's hub: results and gradients of transformers, from its files and back.

`tools/oracles/bert.py` wrote the folder, a BertForPreTraining.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers
from safetensors.numpy import load_file, save_file

import lingo
from lingo.checkpoints.sources.warm_start import weight_shapes
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data import HuggingFaceTokenizer, LearnedWordPieces, TextFiles
from lingo.export.hugging_face import convert_weights, export_hugging_face
from lingo.layers import Linear, context
from lingo.learner.state import initial_state
from lingo.learner.task import Task
from tasks.bert.model import Bert
from tasks.bert.task import BertPretraining
from tasks.hugging_face.read import configure_model, read_config, read_encoder, read_model

FOLDER = pathlib.Path(__file__).parent / "bert"
WEIGHTS = "model.safetensors"
EXPECTED = dict(np.load(FOLDER / "expected.npz"))


class Imported:
    """A model of a folder in lingo, and its weights."""

    def __init__(self, task: Params, warm_start: Params) -> None:
        self.task, self.warm = task.build(), warm_start.build()
        shapes = weight_shapes(self.task)
        self.warm.check_weights(list(shapes))
        self.transfer = self.warm.transfer(shapes)
        self.weights = {name: self.transfer.value(name) for name in self.transfer.reads}


def batch() -> dict[str, Any]:
    """Returns what the model read, as a batch."""
    arrays = {name: tf.constant(value) for name, value in EXPECTED.items() if ":" not in name}
    return arrays | {"weights": tf.ones(len(EXPECTED["tokens"]))}


def imported(folder: pathlib.Path = FOLDER) -> Imported:
    model = read_model(folder)
    return Imported(model.task, model.warm_start(str(folder)))


def test_results_are_those_of_transformers() -> None:
    model, read = imported(), batch()
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    with context.enter_call(context.Call(weights=weights)):
        task: Any = model.task
        x = task.model(read["tokens"], types=read["types"], segments=read["segments"])
        logits = task.head(x, task.model.embedding.vectors())
        pooled = task.model.pool(x)
        pairs = task.next_sentence(pooled)
    at_text = EXPECTED["segments"][:, :, None]
    np.testing.assert_allclose(logits * at_text, EXPECTED["logits"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pooled, EXPECTED["pooled"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pairs, EXPECTED["pair_logits"], rtol=0, atol=1e-4)


def test_the_loss_and_all_gradients_are_those_of_transformers() -> None:
    model = imported()
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        sums, _ = context.apply(model.task, weights, batch(), method="loss")
        denominators = model.task.loss_denominators(batch())
        loss = tf.add_n([value / denominators[term] for term, value in sums.items()])
    gradients: Any = tape.gradient(loss, weights)
    np.testing.assert_allclose(loss, EXPECTED["loss"], rtol=1e-5)
    found = convert_weights(
        model.warm, {k: v.numpy() for k, v in gradients.items()}, model.task.weights()
    )
    expected = {k.partition(":")[2]: v for k, v in EXPECTED.items() if ":" in k}
    assert {*found} == {*expected}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)
    # gradients are not all small: the comparison says something
    assert (
        min(np.abs(value).max() for name, value in expected.items() if "key.bias" not in name)
        > 0.01
    )


def test_every_tensor_of_the_file_is_read_and_every_weight() -> None:
    model = imported()
    assert {read.name for read in model.transfer.reads.values()} == {*load_file(FOLDER / WEIGHTS)}
    assert {*model.weights} == {*weight_shapes(model.task)}
    config = read_config(FOLDER)
    assert lingo.diff(configure_model(config).task, read_model(FOLDER).task) == []


# ---- files of other architectures ----------------------------------------------------------------


def write(
    folder: pathlib.Path,
    rename: Callable[[str], str | None] = str,
    *,
    more: dict[str, np.ndarray] | None = None,
    **changes: Any,
) -> pathlib.Path:
    """Writes the model's folder with other names of tensors (None: left out), and more of them."""
    folder.mkdir(exist_ok=True)
    tensors = {rename(key): value for key, value in load_file(FOLDER / WEIGHTS).items()}
    tensors.pop(None, None)
    save_file(tensors | (more or {}), folder / WEIGHTS)  # type: ignore[arg-type]
    (folder / "config.json").write_text(json.dumps(read_config(FOLDER) | changes))
    return folder


def without(*starts: str, prefix: str = "bert.") -> Callable[[str], str | None]:
    """Leaves out tensors whose names begin so, and writes another prefix."""

    def rename(name: str) -> str | None:
        if name.startswith(starts):
            return None
        return prefix + name.removeprefix("bert.") if name.startswith("bert.") else name

    return rename


def old_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")


FILES: dict[str, tuple[Callable[[str], str | None], set[str]]] = {
    "BertForPreTraining": (str, set()),
    "BertForMaskedLM": (without("bert.pooler", "cls.seq"), {"model/pooler", "next_sentence"}),
    "BertModel": (without("cls.", prefix=""), {"head", "next_sentence"}),
    "BertForSequenceClassification": (without("cls."), {"head", "next_sentence"}),
    "BertForQuestionAnswering": (
        without("cls.", "bert.pooler"),
        {"head", "model/pooler", "next_sentence"},
    ),
    "BertForNextSentencePrediction": (without("cls.predictions"), {"head"}),
}
HEADS = {
    "BertForSequenceClassification": {"classifier.weight": (2, 16), "classifier.bias": (2,)},
    "BertForQuestionAnswering": {"qa_outputs.weight": (2, 16), "qa_outputs.bias": (2,)},
}


@pytest.mark.parametrize("names", ["new", "old"])
@pytest.mark.parametrize("architecture", FILES)
def test_a_file_is_read_with_the_parts_that_it_has(
    architecture: str, names: str, tmp_path: pathlib.Path
) -> None:
    select, missing = FILES[architecture]

    def rename(name: str) -> str | None:
        selected = select(name)
        return selected if names == "new" or selected is None else old_name(selected)

    more = {k: np.ones(shape, "f") for k, shape in HEADS.get(architecture, {}).items()}
    folder = write(tmp_path / "model", rename, more=more, architectures=[architecture])
    found, expected = imported(folder), imported().weights
    wanted = {k for k in expected if not k.startswith(tuple(missing))}
    assert {*found.weights} == wanted
    for name, value in found.weights.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    heads = {name.split("/")[0] for name in weight_shapes(found.task)} - {"model"}
    has_pooler = "model/pooler" not in missing
    assert heads == ({"head", "next_sentence"} if has_pooler else {"head"})


@pytest.mark.parametrize("architecture", FILES)
def test_without_files_the_architecture_tells_the_names(
    architecture: str, tmp_path: pathlib.Path
) -> None:
    folder = write(tmp_path / "model", FILES[architecture][0], architectures=[architecture])
    read, configured = read_model(folder), configure_model(read_config(folder))
    assert lingo.diff(configured.task, read.task) == []
    assert configured.fields == read.fields


def test_the_bias_of_the_logits_may_have_the_name_of_the_decoder(tmp_path: pathlib.Path) -> None:
    names = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
    folder = write(tmp_path / "model", lambda name: names.get(name, name))
    np.testing.assert_array_equal(
        imported(folder).weights["head/bias"], imported().weights["head/bias"]
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_embedding_type": "relative_key"}, "supports only 'absolute'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"hidden_act": "mish"}, "the activation 'mish'"),
        ({"hidden_act": ["gelu"]}, r"the activation \['gelu'\], not one of"),
        ({"architectures": 5}, "architectures=5, not a list of names"),
        ({"hidden_dropout_prob": "x"}, "hidden_dropout_prob='x', which is not a number"),
        ({"layer_norm_eps": True}, "layer_norm_eps=True, which is not a number"),
        ({"hidden_size": "x"}, "hidden_size='x', which is not a positive integer"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0, which is not a positive int"),
        ({"model_type": ["bert"]}, r"model_type=\['bert'\] is not one of"),
    ],
)
def test_what_lingo_does_not_have_is_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParamError, match=words):
        configure_model(read_config(FOLDER) | changes)


def test_sizes_dropout_and_activation_are_those_of_the_configuration() -> None:
    changes = {
        "type_vocab_size": 3,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "layer_norm_eps": 1e-5,
    }
    task = configure_model(read_config(FOLDER) | changes).task.build()
    layer = task.model.stack.layers[0]
    assert task.model.types.p.num_types == 3
    assert (task.head.p.activation, layer.ffn.p.activation) == ("relu", "relu")
    assert (task.model.p.dropout_rate, layer.p.dropout_rate) == (0.2, 0.2)
    assert layer.attention.p.dropout_rate == 0.3
    norms = (task.model.norm, layer.ffn_norm, layer.attention_norm, task.head.norm)
    assert {norm.p.epsilon for norm in norms} == {1e-5}


def test_absent_settings_have_the_defaults_of_transformers() -> None:
    """transformers' BertConfig: the sizes of BERT-Base, and dropout of 0.1."""
    task = configure_model({"model_type": "bert", "architectures": ["BertForPreTraining"]}).task
    built = task.build()
    assert sum(spec.size for spec in built.weights().values()) == 110_106_428
    layer = built.model.stack.layers[11]
    assert (layer.ffn.p.activation, layer.attention.p.num_heads) == ("gelu", 12)
    rates = (built.model.p, layer.p, layer.attention.p)
    assert {p.dropout_rate for p in rates} == {0.1}
    assert built.model.norm.p.epsilon == built.head.norm.p.epsilon == 1e-12


# ---- the encoder for other tasks -----------------------------------------------------------------


class Classes(Task):
    """A task with an encoder and a head of its own."""

    model: Bert = Bert
    classifier: Linear = Linear.params(dim=16, output_dim=3)

    def setup(self) -> None:
        self.model = self.p.model.build(vocab_size=40)
        self.classifier = self.p.classifier.build()


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("architecture", FILES)
def test_an_encoder_is_read_for_a_task_of_another_kind(
    architecture: str, pooler: bool, tmp_path: pathlib.Path
) -> None:
    folder = write(tmp_path / "model", FILES[architecture][0], architectures=[architecture])
    encoder = read_encoder(folder, pooler=pooler)
    assert (encoder.vocab_size, encoder.max_length) == (40, 12)
    found = Imported(Classes.params(model=encoder.model), encoder.warm_start(str(folder)))
    has_pooler = pooler and "model/pooler" not in FILES[architecture][1]
    expected = {
        name: value
        for name, value in imported().weights.items()
        if name.startswith("model/") and (has_pooler or "pooler" not in name)
    }
    assert {*found.weights} == {*expected}
    for name, value in expected.items():
        np.testing.assert_array_equal(found.weights[name], value, err_msg=name)
    assert ("model/pooler/w" in weight_shapes(found.task)) == pooler


HEAD_OF = {"huggingface.bert_questions": "qa_outputs", "huggingface.bert_labels": "classifier"}


@pytest.mark.parametrize("name", HEAD_OF)
@pytest.mark.parametrize("labels", [("no", "yes"), ("cold", "warm")])
def test_a_head_goes_on_in_the_task_that_has_it(
    name: str, labels: tuple[str, str], tmp_path: pathlib.Path
) -> None:
    """Rows and columns differ, so that a head that is not transposed would be seen."""
    head = HEAD_OF[name]
    weight, bias = np.arange(32, dtype="f").reshape(2, 16), np.float32([7, 8])
    more = {f"{head}.weight": weight, f"{head}.bias": bias}
    names = {str(i): label for i, label in enumerate(labels)}
    folder = write(tmp_path / "model", without("cls."), more=more, id2label=names)
    params = lingo.get(f"{name}(path={str(folder)!r})")
    transfer = params.build().warm_start()
    assert transfer is not None
    read = {key: transfer.value(key) for key in transfer.reads if key.startswith("head")}
    if name == "huggingface.bert_labels" and labels != ("no", "yes"):
        assert read == {}
    else:
        np.testing.assert_array_equal(read["head/w"], weight.T)
        np.testing.assert_array_equal(read["head/b"], bias)
    without_head = write(tmp_path / "model", without("cls."), id2label=names)
    transfer = lingo.get(f"{name}(path={str(without_head)!r})").build().warm_start()
    assert transfer is not None
    assert not any(key.startswith("head") for key in transfer.reads)


def test_a_folder_with_vocab_txt_alone_has_a_tokenizer(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "model")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *(chr(97 + i) for i in range(26))]))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    for name in (
        "huggingface.pretrained_model(length=12, path={})",
        "huggingface.bert_labels(path={})",
    ):
        params = lingo.get(name.format(repr(str(folder)))).train_input.tokenizer
        assert params.lowercase is False
        tokenizer = params.build()
        assert tokenizer.encode("a B b").tolist() == [5, 1, 6]
    write_tokenizer(folder)
    params = lingo.get(f"huggingface.bert_labels(path={str(folder)!r})").train_input.tokenizer
    assert params.file == str(folder / "tokenizer.json")


@pytest.mark.parametrize("name", HEAD_OF)
def test_rows_are_no_longer_than_the_model_allows(name: str, tmp_path: pathlib.Path) -> None:
    """The model has 12 positions; longer rows would fail in the first step."""
    folder = write(tmp_path / "model")
    params = lingo.get(f"{name}(path={str(folder)!r})")
    inputs = (params.train_input, params.eval_inputs["heldout"])
    assert [data.length for data in inputs] == [12, 12]
    params.build()
    default = lingo.get(name).train_input
    if name == "huggingface.bert_questions":
        assert (default.length, default.stride, default.max_question) == (384, 128, 64)


def test_a_decoder_is_no_encoder() -> None:
    decoder = pathlib.Path(__file__).parents[2] / "params" / "huggingface" / "gpt2"
    with pytest.raises(ParamError, match="model_type='gpt2' is no encoder: bert is wanted"):
        read_encoder(decoder, pooler=True)


# ---- export --------------------------------------------------------------------------------------


def experiment(folder: pathlib.Path) -> Experiment:
    params = lingo.get(f"huggingface.pretrained_model(path={str(folder)!r}, length=12)")
    tokenizer = HuggingFaceTokenizer.params(file="none.json", vocab_size=40, end="[SEP]")
    params.train_input.tokenizer = tokenizer
    return params.build()


def test_a_pretrained_model_goes_on_with_pre_training() -> None:
    one = experiment(FOLDER)
    assert isinstance(one.task, BertPretraining)
    assert one.p.train_input.pairs
    transfer = one.warm_start()
    assert transfer is not None
    assert {*transfer.reads} == {*imported().weights}


@pytest.mark.parametrize("names", ["new", "old"])
def test_an_imported_model_is_exported_bit_for_bit(names: str, tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "model", old_name if names == "old" else str)
    one = experiment(folder)
    export_hugging_face(one, imported(folder).weights, tmp_path / "out")
    old, new = (load_file(f / WEIGHTS) for f in (folder, tmp_path / "out"))
    assert {*old} == {*new}
    for name, value in old.items():
        assert (value.tobytes(), value.shape) == (new[name].tobytes(), new[name].shape), name
    assert read_config(folder) == read_config(tmp_path / "out")


def test_a_model_is_exported_under_another_architecture(tmp_path: pathlib.Path) -> None:
    """A pre-trained BertModel has a head for masked tokens, which its own file has no place for."""
    folder = write(tmp_path / "model", FILES["BertModel"][0], architectures=["BertModel"])
    weights = imported().weights
    with pytest.raises(ParamError, match="no tensor for the weight head/"):
        export_hugging_face(experiment(folder), weights, tmp_path / "out")
    full = tmp_path / "full"
    full.mkdir()
    shutil.copy(FOLDER / "config.json", full)
    export_hugging_face(experiment(folder), weights, tmp_path / "out", config=full)
    old, new = (load_file(f / WEIGHTS) for f in (FOLDER, tmp_path / "out"))
    assert {k: v.tobytes() for k, v in old.items()} == {k: v.tobytes() for k, v in new.items()}


# ---- training ------------------------------------------------------------------------------------


def write_tokenizer(folder: pathlib.Path) -> None:
    """Writes the tokenizer of a BERT of 40 pieces: special tokens, then letters and what follows.

    [MASK] is 4, as in `tools/oracles/bert.py`.
    """
    letters = "abcdefghijklmnopq"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    pieces += ["."]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(pieces[:5])
    tokenizer.save(str(folder / "tokenizer.json"))


def test_its_tokenizer_makes_rows_that_train_it(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "model")
    write_tokenizer(folder)
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("abc de fg. hij klm nop. " * (5 + i))
    params = lingo.get(f"huggingface.pretrained_model(path={str(folder)!r}, length=12)")
    params.train_input.source = TextFiles.params(pattern=str(tmp_path / "*.txt"))
    one = params.build()
    batch = one.train_input.batch(0)
    ends = np.where(batch["segments"] > 0, np.arange(12), 0).max(1)
    assert (batch["tokens"][:, 0] == 2).all()  # [CLS]
    assert (np.take_along_axis(batch["tokens"], ends[:, None], 1) == 3).all()  # [SEP]
    assert (batch["tokens"] == 4).any()  # [MASK]
    program = one.runtime.start(one.learner, initial_state(one.learner))
    scalars = program.train({name: array[None] for name, array in batch.items()})["scalars"]
    assert np.isfinite(scalars["loss/total"]).all()


def test_an_export_has_the_pieces_that_its_run_has_learned(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.txt").write_text("abc abd abe bcd cde dea. " * 4)
    params = experiment(FOLDER).p.copy()
    params.train_input.tokenizer = LearnedWordPieces.params(
        source=TextFiles.params(pattern=str(tmp_path / "text.txt")), vocab_size=21
    )
    one = params.set(init_from=None).build()
    export_hugging_face(one, imported().weights, tmp_path / "out", config=FOLDER)
    read = lingo.get(
        f"huggingface.bert_labels(path={str(tmp_path / 'out')!r})"
    ).train_input.tokenizer
    assert read.build().encode("abcd.").tolist() == (
        params.train_input.tokenizer.build().encode("abcd.").tolist()
    )


def test_a_missing_tokenizer_is_named(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "model", vocab_size=30_522)
    tokenizer = lingo.get(
        f"huggingface.pretrained_model(path={str(folder)!r}, length=12)"
    ).train_input.tokenizer
    assert tokenizer.file == str(folder / "tokenizer.json")
    assert (tokenizer.start, tokenizer.end, tokenizer.pad) == ("[CLS]", "[SEP]", "[PAD]")
