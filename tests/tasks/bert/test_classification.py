"""Classification by BERT: rows of one text and of pairs, the loss against NumPy."""

import re

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data import ByteTokenizer, TsvPairs
from lingo.data.files import DataError
from lingo.layers import context
from tasks.bert.classification import ClassificationInput, TextClassification
from tasks.bert.rows import cut_texts

LABELS = ["match", "differ"]
LINES = ["a dog|an animal\tmatch", "blue\tdiffer", "a very long text|short\tdiffer"]


@pytest.fixture
def make(tmp_path):
    def make(lines=LINES, **fields):
        (tmp_path / "data.tsv").write_text("".join(f"{line}\n" for line in lines))
        known = {"labels": LABELS, "separator": "|", "length": 16, "batch_size": 2, "repeat": False}
        return ClassificationInput.params(
            source=TsvPairs.params(pattern=str(tmp_path / "data.tsv")),
            tokenizer=ByteTokenizer,
            shuffle=False,
            **known | fields,
        ).build()

    return make


def read(batch, i, tokenizer):
    """Returns the texts of a row, its class and its number of tokens."""
    size = int(batch["segments"][i].sum())
    tokens, types = batch["tokens"][i, :size], batch["types"][i, :size]
    assert tokens[0] == tokenizer.start_id
    assert (batch["tokens"][i, size:] == tokenizer.pad_id).all()
    texts = []
    for number in range(types.max() + 1):
        own = tokens[1:][types[1:] == number]
        assert own[-1] == tokenizer.end_id
        texts.append(tokenizer.decode(own[:-1]))
    return texts, LABELS[batch["labels"][i]], size


def test_rows_have_one_text_or_two_and_their_class(make):
    data = make(length=32)
    rows = [read(data.batch(n // 2), n % 2, data.tokenizer) for n in range(3)]
    assert rows == [
        (["a dog", "an animal"], "match", 1 + 5 + 1 + 9 + 1),
        (["blue"], "differ", 1 + 4 + 1),
        (["a very long text", "short"], "differ", 1 + 16 + 1 + 5 + 1),
    ]
    assert data.batch(1)["weights"].tolist() == [1, 0]
    assert data.batch(1)["segments"][1].sum() == 0


def test_without_a_separator_a_row_has_one_text(make):
    data = make(length=32, separator=None)
    rows = [read(data.batch(n // 2), n % 2, data.tokenizer)[0] for n in range(3)]
    assert rows == [["a dog|an animal"], ["blue"], ["a very long text|short"]]


def test_the_longer_of_two_texts_is_cut(make):
    data = make(length=16)
    assert read(data.batch(1), 0, data.tokenizer) == (["a very l", "short"], "differ", 16)


@pytest.mark.parametrize(("sizes", "limit"), [((9, 2), 6), ((3, 3), 5), ((2, 9), 1), ((4,), 2)])
def test_a_cut_removes_the_last_token_of_the_longest_again_and_again(sizes, limit):
    slow = [list(range(size)) for size in sizes]
    while sum(map(len, slow)) > limit:
        max(slow, key=len).pop()
    found = cut_texts([np.arange(size) for size in sizes], max_tokens=limit)
    assert [ids.tolist() for ids in found] == slow


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": ["match"]}, "labels=['match'] are not two or more different names"),
        ({"labels": ["match", "match"]}, "are not two or more different names"),
        ({"separator": ""}, "separator is empty"),
        ({"length": 4}, "length=4 leaves no room for text: with separator='|' it is at least 5"),
        ({"length": 2, "separator": None}, "with separator=None it is at least 3"),
    ],
)
def test_settings_of_no_use_are_refused(fields, message, make):
    with pytest.raises(ParamError, match=re.escape(message)):
        make(**fields)


@pytest.mark.parametrize(("length", "separator"), [(3, None), (5, "|")])
def test_the_shortest_rows_have_a_token_of_each_text(length, separator, make):
    data = make(length=length, separator=separator, batch_size=1)
    texts, _, size = read(data.batch(0), 0, data.tokenizer)
    assert (size, [len(text) for text in texts]) == (length, [1] * (1 + bool(separator)))


def test_an_unknown_class_is_named_with_its_line(make):
    data = make(["blue\tmatch", "red\tmach"])
    with pytest.raises(
        DataError, match=r"line 2.*'mach' is not one of labels. Did you mean 'match'"
    ):
        data.batch(0)


def test_an_input_with_other_ids_or_classes_is_refused():
    task = TextClassification.params(vocab_size=300, class_names=("a", "b", "c"))
    task.model.set(dim=8)
    task.model.stack.set(num_layers=1).layer.attention.num_heads = 2
    built = task.build()
    built.check_input({"vocab_size": 300, "class_names": ("a", "b")})
    with pytest.raises(ParamError, match=r"task\.vocab_size=300, but the input has 301 token ids"):
        built.check_input({"vocab_size": 301})
    for labels in (("a", "b", "c", "d"), ("b", "a")):
        with pytest.raises(ParamError, match=r"class_names=.*, but the input's labels are \['"):
            built.check_input({"class_names": labels})


@pytest.fixture
def call(make):
    params = TextClassification.params(vocab_size=300, class_names=tuple(LABELS))
    params.model.set(dim=8)
    params.model.stack.num_layers = 1
    params.model.stack.layer.attention.num_heads = 2
    task, draw = params.build(), np.random.default_rng(1)
    weights = {
        name: tf.constant(draw.normal(size=spec.shape), tf.float32)
        for name, spec in task.weights().items()
    }
    batch = make(length=32, batch_size=4).batch(0)

    def call(method):
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        result = context.apply(task, weights, tensors, method=method)[0]
        return tf.nest.map_structure(lambda x: x.numpy(), result)

    return call


def test_the_loss_is_the_cross_entropy_of_examples_that_count(call):
    logits = call("predict")["logits"][:3].astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -log_probs[[0, 1, 2], [0, 1, 1]].sum()
    np.testing.assert_allclose(call("loss")["cross_entropy"], expected, rtol=1e-5)
    metrics = call("metrics")
    np.testing.assert_allclose(metrics["loss"]["sum"], expected, rtol=1e-5)
    assert metrics["accuracy"]["sum"] == (logits.argmax(-1) == [0, 1, 1]).sum()
    assert metrics["classes"]["confusion"].sum() == 3


def test_lines_without_classes_are_the_same_rows_without_labels(make, tmp_path, monkeypatch):
    data = make(length=32, max_batches=1).p.copy().set(shuffle=True).build()
    texts = [line.partition("\t")[0] for line in LINES]
    (tmp_path / "new.txt").write_text(f"{texts[0]}\n\n{texts[1]}\r\n{texts[2]}")
    monkeypatch.chdir(tmp_path)
    other, labelled = data.unlabeled_params("new.txt").build(), make(length=32)
    assert (other.num_batches(), other.class_names) == (2, ("match", "differ"))
    assert other.example_names(np.arange(3)) == [f"new.txt, line {n}" for n in (1, 3, 4)]
    for step in range(2):
        batch, expected = other.batch(step), labelled.batch(step)
        other.check_batch(batch)
        assert expected.keys() - batch.keys() == {"labels"}
        for name, array in batch.items():
            np.testing.assert_array_equal(array, expected[name])


def test_a_file_that_is_no_text_is_refused(make, tmp_path):
    (tmp_path / "new.txt").write_bytes(b"one\n\xff\n")
    with pytest.raises(DataError, match=r"new\.txt, line 2: not UTF-8"):
        make().unlabeled_params(str(tmp_path / "new.txt")).build().prepare()
