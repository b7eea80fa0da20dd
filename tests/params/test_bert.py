"""BERT's experiments: counts, the two stages, LAMB's recipe, and weights of published files."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.data.word_pieces import learn_word_pieces


def count(experiment: Experiment) -> int:
    return sum(spec.size for spec in experiment.task.weights().values())


def published(dim: int, layers: int, vocab: int, positions: int = 512) -> int:
    """The weights with the pooler and without heads."""
    encoder = layers * (12 * dim * dim + 13 * dim)
    return vocab * dim + positions * dim + 2 * dim + 2 * dim + encoder + dim * dim + dim


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("lm.bert.base", 110_106_428),
        ("lm.bert.large", 336_226_108),
        ("lm.bert.large_lamb", 336_226_108),
        ("mlperf.bert.v07", 336_226_108),
        ("mlperf.bert.v10", 336_226_108),
        ("mlperf.bert.numbers", 216_278),
        ("lm.bert.tiny_bert", published(64, 4, 1000, 128) + 64 * 65 + 128 + 1000 + 2 * 65),
        ("lm.bert.tiny_questions", published(64, 4, 1000, 128) - 64 * 65 + 2 * 65),
        ("lm.bert.tiny_labels", published(64, 4, 1000, 128) + 2 * 65),
        ("huggingface.bert_questions", 109_482_240 - 768 * 769 + 2 * 769),
        ("huggingface.bert_labels", 109_482_240 + 2 * 769),
    ],
)
def test_counts_are_those_of_the_formula(name, weights):
    assert count(lingo.get(name).build()) == weights


def test_the_small_bert_has_at_most_300_000_weights():
    assert count(lingo.get("lm.bert.tiny_bert").build()) <= 300_000


def test_your_own_texts_have_padding_and_no_special_tokens_inside(tmp_path):
    """tokenizer.json as it is published, without tokenizer_config.json."""
    data = learn_word_pieces([b"the mask sep house [MASK]"], vocab_size=36, lowercase=True)
    (tmp_path / "tokenizer.json").write_bytes(data)
    train = lingo.get(f"lm.bert.base(folder={str(tmp_path)!r})").train_input
    tokenizer = train.stages[0][0].tokenizer.set(vocab_size=40).build()
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (0, 2, 3)
    assert not {0, 2, 3, 4} & {*tokenizer.encode("the [MASK] [SEP] house").tolist()}


def test_only_a_task_with_pairs_splits_its_texts():
    separators = {
        task: lingo.get(f"lm.bert.tiny_labels(task={task!r})").train_input.separator
        for task in ("brackets", "docstring", "exception", "kind")
    }
    assert separators == {"brackets": None, "docstring": "\n", "exception": None, "kind": None}
    assert lingo.get("huggingface.bert_labels").train_input.separator is None
    pairs = lingo.get("huggingface.bert_labels(separator='|')")
    assert pairs.eval_inputs["heldout"].separator == "|"


def test_held_out_questions_are_about_held_out_docstrings():
    params = lingo.get("lm.bert.tiny_questions")
    inputs = (params.train_input, params.eval_inputs["heldout"])
    assert [data.source.source.split for data in inputs] == ["train", "heldout"]


def test_the_published_recipe_has_two_lengths_and_jumps():
    experiment = lingo.get("lm.bert.base").build()
    stages = [(one.p.length, one.p.max_predictions) for one in experiment.train_input.inputs]
    assert stages == [(128, 20), (512, 76)]
    rates = experiment.optimizer.rates(np.array([0, 9999, 10_000, 1_000_000]))["learning_rate"]
    np.testing.assert_allclose(rates, [0.0, 9.999e-5, 9.9e-5, 0.0], rtol=1e-4, atol=1e-9)


def test_lambs_mixed_batches_take_8599_steps_and_warm_up_twice():
    experiment = lingo.get("lm.bert.large_lamb").build()
    train, p = experiment.train_input, experiment.p
    sizes = [(one.p.length, one.p.batch_size) for one in train.inputs]
    assert sizes == [(128, 65_536), (512, 32_768)]
    assert p.max_steps == 8599
    first = next(step for step in range(8599) if train.num_rows(step) == 32_768)
    rows = train.examples_before(first)
    assert rows == pytest.approx(0.9 * 15_625 * 32_768, rel=1e-3), "nine tenths of the rows"
    steps = np.array([0, first // 5, first - 1, first, first + (8599 - first) // 5, 8599])
    rates = np.asarray(experiment.optimizer.rates(steps)["learning_rate"], np.float64)
    assert rates[[0, 3, 5]] == pytest.approx(0.0, abs=1e-9)
    assert rates[[1, 4]] == pytest.approx([0.005 * math.sqrt(2), 0.005], rel=1e-5)
    assert rates[2] == pytest.approx(0.0, abs=5e-6)


def test_biases_of_heads_neither_decay_nor_have_ratios():
    experiment = lingo.get("lm.bert.tiny_bert").build()
    for field in ("no_decay", "no_ratio"):
        (pattern,) = getattr(experiment.p.optimizer, field)
        names = [name for name in experiment.task.weights() if name.endswith(("b_key", "b_query"))]
        assert len(names) == 8
        assert all(tf.strings.regex_full_match(name, pattern) for name in names)


def test_the_rate_grows_with_the_root_of_the_batch():
    rates = [
        lingo.get(f"lm.bert.tiny_bert(batch_size={size})").optimizer.learning_rate
        for size in (32, 128, 512)
    ]
    assert rates == pytest.approx([0.005, 0.01, 0.02])


def their_name(name: str) -> str:
    """Returns the name that Devlin et al.'s program gives a weight."""
    *where, leaf = name.split("/")
    leaf = {"w": "kernel", "b": "bias", "scale": "gamma", "bias": "beta"}.get(leaf, leaf)
    match where:
        case ["model", "embedding"]:
            return "bert/embeddings/word_embeddings"
        case ["model", "positions"]:
            return "bert/embeddings/position_embeddings"
        case ["model", "types"]:
            return "bert/embeddings/token_type_embeddings"
        case ["model", "norm"]:
            return f"bert/embeddings/LayerNorm/{leaf}"
        case ["model", "pooler"]:
            return f"bert/pooler/dense/{leaf}"
        case ["head"]:
            return "cls/predictions/output_bias"
        case ["head", part]:
            part = {"dense": "dense", "norm": "LayerNorm"}[part]
            return f"cls/predictions/transform/{part}/{leaf}"
        case ["next_sentence"]:
            return f"cls/seq_relationship/output_{'weights' if leaf == 'kernel' else 'bias'}"
        case ["model", "stack", "layers", number, part]:
            block = f"bert/encoder/layer_{number}"
            if part.endswith("_norm"):
                part = "attention/output" if part == "attention_norm" else "output"
                return f"{block}/{part}/LayerNorm/{leaf}"
            kind, _, which = leaf.partition("_")
            kind = {"w": "kernel", "b": "bias"}[kind]
            part = {
                "in": "intermediate/dense",
                "out": "output/dense",
                "output": "attention/output/dense",
            }.get(which, f"attention/self/{which}")
            return f"{block}/{part}/{kind}"
    raise AssertionError(name)


def to_theirs(name: str, value: np.ndarray) -> np.ndarray:
    """Returns a weight as that program keeps it: heads in one axis, the last head transposed."""
    if name.endswith("_output") and value.ndim == 3:
        return value.reshape(-1, value.shape[-1])
    if "/attention/" in name:
        return value.reshape(value.shape[0], -1) if value.ndim == 3 else value.reshape(-1)
    return value.T if name == "next_sentence/w" else value


def test_a_checkpoint_of_the_published_program_is_read(tmp_path):
    """A small BERT is written under the names of Devlin et al.'s program, and read back."""
    task = lingo.get("lm.bert.tiny_bert").build().task
    draw = np.random.default_rng(0)
    shapes = {name: tuple(spec.shape) for name, spec in task.weights().items()}
    values = {name: draw.normal(size=shape).astype("f") for name, shape in shapes.items()}
    written = {their_name(name): to_theirs(name, value) for name, value in values.items()}
    assert len(written) == len(values)
    assert written["bert/encoder/layer_3/attention/self/key/kernel"].shape == (64, 64)
    assert written["cls/seq_relationship/output_weights"].shape == (2, 64)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt-1"),
        tensor_names=[*written],
        shape_and_slices=[""] * len(written),
        tensors=[tf.constant(value) for value in written.values()],
    )
    path = str(tmp_path / "model.ckpt-1")
    warm = lingo.get(f"mlperf.bert.v07(checkpoint={path!r})").init_from.build()
    warm.check_weights([*shapes])
    found = warm.transfer(shapes)
    for name, value in values.items():
        np.testing.assert_array_equal(found.value(name), value, err_msg=name)
