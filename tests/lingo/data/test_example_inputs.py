"""Arrays, sequences and datasets: each example once per epoch, the same whenever it is read."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.array_input import ArrayInput
from lingo.data.dataset_input import DatasetInput
from lingo.data.files import DataError
from lingo.data.sequence_input import SequenceInput
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.learner.task import Task
from lingo.ops import random
from lingo.optim.sgd import Sgd
from lingo.trainer.progress import Progress
from lingo.trainer.start import prepare_data
from tests.lingo.data.documents import assert_starts_anywhere, specs_of

SIZE = 10


def arrays():
    numbers = np.arange(SIZE)
    return {"x": np.stack([numbers, -numbers], 1).astype("f"), "y": numbers.astype("i")}


def rows():
    return [{"x": x, "y": y} for x, y in zip(*arrays().values(), strict=True)]


class Pairs:
    """As a dataset of PyTorch: pairs, by index alone."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        if not 0 <= index < SIZE:
            raise IndexError(index)
        return arrays()["x"][index], arrays()["y"][index]


def pairs():
    return Pairs()


def dataset(epoch):
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(SIZE, seed=epoch + 1)


KINDS = {
    "arrays": ArrayInput.params(function=arrays),
    "rows": SequenceInput.params(function=rows),
    "pairs": SequenceInput.params(function=pairs, names=["x", "y"]),
    "dataset": DatasetInput.params(function=dataset),
}


def build(kind, **fields):
    return KINDS[kind].copy().set(**{"batch_size": 4, "seed": 1} | fields).build()


def jitter(example, key):
    return example | {"noise": random.uniform(key, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_each_example_once_in_an_order_of_its_own(kind):
    data = build(kind, batch_size=5)
    epochs = [[*data.batch(2 * e)["y"], *data.batch(2 * e + 1)["y"]] for e in range(3)]
    assert all(sorted(epoch) == list(range(SIZE)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    batch = data.batch(0)
    np.testing.assert_array_equal(batch["x"], np.stack([batch["y"], -batch["y"]], 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_same_in_any_order_of_asking_and_in_parts(kind):
    assert_starts_anywhere(lambda: build(kind), range(6))
    assert_starts_anywhere(lambda: build(kind, augment=jitter), range(6))


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_pass_fills_its_last_batch_with_zeros_of_no_weight(kind):
    data = build(kind, repeat=False)
    assert data.num_batches() == 3
    batches = [data.batch(step) for step in range(3)]
    weights = np.concatenate([batch["weights"] for batch in batches])
    labels = np.concatenate([batch["y"] for batch in batches])
    assert weights.tolist() == [1] * SIZE + [0, 0]
    assert sorted(labels[:SIZE].tolist()) == list(range(SIZE))
    assert not batches[2]["x"][2:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_specs_are_those_of_a_batch(kind):
    data = build(kind, augment=jitter)
    assert data.declares_late
    assert data.specs() == specs_of(data.batch(0))
    data.prepare()
    data.check_repeatable()
    assert data.fingerprint() == build(kind).fingerprint()
    json.dumps(data.fingerprint())


def test_noise_is_of_the_seed_and_the_number_of_the_example():
    data = build("arrays", augment=jitter, shuffle=False)
    assert (
        data.batch(0)["noise"] != build("arrays", augment=jitter, seed=2).batch(0)["noise"]
    ).all()
    first, again = data.batch(0)["noise"][0], data.batch(SIZE // 2)["noise"][0]  # epoch 0, epoch 2
    assert (first != again).all()
    root = random.fold(random.root_key(1), random.text_hash("augment"))
    np.testing.assert_array_equal(first, random.uniform(random.fold(random.fold(root, 0), 0), 3))


def test_without_shuffling_examples_come_as_they_stand():
    assert build("arrays", shuffle=False).batch(2)["y"].tolist() == [8, 9, 0, 1]


def test_a_dataset_without_epoch_has_one_order():
    data = DatasetInput.params(function=plain, batch_size=SIZE).build()
    assert data.batch(0)["y"].tolist() == data.batch(1)["y"].tolist() == list(range(SIZE))


def plain():
    return tf.data.Dataset.from_tensor_slices(arrays())


def test_the_elements_of_a_dataset_of_unknown_size_are_counted():
    data = DatasetInput.params(function=odd, batch_size=2).build()
    assert data.num_examples() == 5
    assert data.batch(2)["y"].tolist() == [9, 1]


@pytest.mark.parametrize(("seconds", "remarks"), [(0.8, 0), (9.0, 1)])
def test_a_dataset_says_how_long_a_resume_may_take_if_that_is_a_second(
    seconds, remarks, monkeypatch
):
    data = DatasetInput.params(function=plain, batch_size=2).build()
    clock = iter([0.0, seconds])  # before and after the elements that follow the first
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    data.prepare()
    monkeypatch.undo()
    assert len(data.remarks()) == remarks
    assert all("up to 10 examples, about 10 s here" in remark for remark in data.remarks())


def odd():
    return plain().filter(lambda element: element["y"] % 2 == 1)


def test_a_dataset_may_read_files_and_batches_inside_a_function(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("1\n2\n3\n4\n")
    data = DatasetInput.params(function=windows, arguments={"folder": str(tmp_path)}, batch_size=4)
    assert data.build().batch(0)["x"].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]


def windows(folder):
    files = tf.data.Dataset.from_tensor_slices([f"{folder}/a", f"{folder}/b"])
    lines = files.interleave(lambda file: tf.data.TextLineDataset(file).batch(2), cycle_length=2)
    return lines.map(lambda texts: {"x": tf.strings.to_number(texts)})


def test_texts_are_bytes_with_all_of_their_ends():
    batch = SequenceInput.params(function=texts, batch_size=1).build().batch(0)
    assert batch["name"].tolist() == [b"a\0"]
    assert batch["words"].tolist() == [["é".encode(), b"b\0"]]
    batch = ArrayInput.params(function=text_arrays, batch_size=2, shuffle=False).build().batch(0)
    assert batch["name"].tolist() == ["é".encode(), b"b"]


def texts():
    return [{"name": b"a\0", "words": ["é", b"b\0"]}]


def text_arrays():
    return {"name": np.array(["é", "b"], object)}


def test_texts_are_trained_on_once_a_function_encodes_them():
    data = SequenceInput.params(function=texts, augment=count_words, batch_size=1).build()
    data.check_specs()
    assert data.batch(0)["y"].tolist() == [2]


def count_words(example, key):
    return {"y": len(example["words"])}


# ---- mistakes ------------------------------------------------------------------------------------


def ragged():
    return {"x": np.zeros([3, 2]), "y": np.zeros(4)}


def objects():
    return {"x": np.array([[1], [2, 3]], object)}


def uneven():
    return {"x": [[1], [2, 3]]}


def missing():
    return {"x": np.array(["a", None], object)}


def empty():
    return {"x": np.zeros([2, 0], object)}


def reserved():
    return {"weights": np.ones(3)}


def nothing():
    return {"x": np.zeros([0, 3])}


def number():
    return {"x": 3}


def times():
    return {"x": np.array(["2020-01-01"], "datetime64[D]")}


def a_list():
    return [1, 2]


def broken():
    raise KeyError("no such split")


def mixed_rows():
    return [{"x": np.zeros(2)}, {"x": np.zeros(3)}]


def other_names():
    return [{"x": 1.0}, {"y": 1.0}]


def generator():
    yield {"x": 1}


def forgotten_seed():
    return plain().shuffle(SIZE)


def endless():
    return plain().repeat()


def stateful():
    return plain().map(lambda e: e | {"x": e["x"] + tf.random.uniform([2])})


def generated():
    return tf.data.Dataset.from_generator(rows, output_signature=plain().element_spec)


def shuffled_inside():
    return tf.data.Dataset.range(2).flat_map(lambda _: plain().shuffle(SIZE))


def batched():
    return plain().batch(5).prefetch(1)


def unreadable():
    return tf.data.TextLineDataset("nowhere.txt").map(lambda line: {"x": line})


def failing():
    return tf.data.Dataset.from_tensor_slices({"x": ["1", "a"]}).map(
        lambda element: {"x": tf.strings.to_number(element["x"])}
    )


def noisy(example, key):
    return {"x": np.random.random(2)}


def changing():
    return Changing()


class Changing:
    count = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        Changing.count += 1
        return {"x": np.float32(Changing.count)}


def drops(example, key):
    return None


def mutating(example, key):
    return {"x": np.zeros(int(example["y"]) + 1)}


class Squares(Task):
    """Least squares of y by a linear function of x."""

    linear: Layer = Linear.params(dim=2, output_dim=1)

    def setup(self):
        self.linear = self.p.linear.build()

    def loss(self, batch):
        errors = self.linear(batch["x"])[:, 0] - tf.cast(batch["y"], tf.float32)
        return {"error": tf.reduce_sum(batch["weights"] * errors**2)}


def build_experiment(params):
    return Experiment.params(
        task=Squares, train_input=params, optimizer=Sgd.params(learning_rate=1e-3), max_steps=7
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_stops_and_resumes_has_the_same_losses_bit_for_bit(kind, tmp_path):
    params = build_experiment(KINDS[kind].copy().set(batch_size=4, augment=jitter))
    whole = lingo.train(params, tmp_path / "whole")
    lingo.train(params.copy().set(max_steps=4), tmp_path / "parts")
    parts = lingo.train(params, tmp_path / "parts")
    assert parts.scalars["loss/total"] == whole.scalars["loss/total"]
    weights = [
        lingo.load(tmp_path / name, trust=[__file__])._state.weights for name in ("whole", "parts")
    ]
    assert weights[0].keys() == weights[1].keys() != set()
    for path, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][path])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (ArrayInput.params(function=ragged), r"need equally many entries, but have 'x' 3, 'y' 4"),
        (
            ArrayInput.params(function=objects),
            r"objects: 'x' holds a list, neither a number nor a text: cut or pad rows that differ",
        ),
        (ArrayInput.params(function=uneven), "uneven: 'x' has rows that differ in length"),
        (ArrayInput.params(function=missing), "missing: 'x' holds None, neither a number nor"),
        (ArrayInput.params(function=empty), r"py:\d+: 'x' is a text, but a model takes numbers"),
        (ArrayInput.params(function=reserved), "every batch has an array 'weights' already"),
        (ArrayInput.params(function=nothing), "holds no examples"),
        (ArrayInput.params(function=number), "'x' is a single value"),
        (ArrayInput.params(function=times), "dtype datetime64"),
        (ArrayInput.params(function=a_list), "returned a list, not a dict"),
        (
            ArrayInput.params(function=broken),
            r"test_example_inputs.py:\d+: KeyError: 'no such split'",
        ),
        (
            ArrayInput.params(function=arrays, arguments={"n": 1}),
            "do not fit .*arrays: got an unexp",
        ),
        (
            SequenceInput.params(function=mixed_rows),
            r"'x' is float64 \[2\] in one.*\[3\] in another",
        ),
        (SequenceInput.params(function=other_names), "one example has .'x'., another .'y'."),
        (SequenceInput.params(function=generator), "lacks __len__ or __getitem__"),
        (SequenceInput.params(function=arrays), "for a dict of arrays there is ArrayInput"),
        (SequenceInput.params(function=pairs), "has 2 parts, and names=.. has 0"),
        (
            SequenceInput.params(function=rows, names=["x", "y"]),
            "is a dict and has names",
        ),
        (
            SequenceInput.params(function=pairs, names=["x", "x"]),
            "has 2 parts, and names=.'x', 'x'. has 1: give each part a name of its own",
        ),
        (SequenceInput.params(function=a_list), "is a int: it must be a dict"),
        (
            SequenceInput.params(function=changing),
            r"inputs\.py:\d+: SequenceInput: the first batch, made twice, differs in x.*`augment`",
        ),
        (DatasetInput.params(function=forgotten_seed), "has no seed"),
        (DatasetInput.params(function=endless), r"leave out \.repeat\(\)"),
        (DatasetInput.params(function=stateful), "RandomUniform, which keeps state"),
        (DatasetInput.params(function=generated), "Py.*there is SequenceInput"),
        (DatasetInput.params(function=shuffled_inside), "DummySeedGenerator, which keeps state"),
        (DatasetInput.params(function=batched), r"is batched.*leave out \.batch\(\)"),
        (DatasetInput.params(function=unreadable), "unreadable: nowhere.txt; No such file or dir"),
        (DatasetInput.params(function=failing), "failing: .* not correctly convert string: a$"),
        (DatasetInput.params(function=rows), "returned a list, not a tf.data.Dataset"),
        (
            DatasetInput.params(function=plain, num_elements=99),
            "no element 10, but every epoch needs 99",
        ),
        (
            ArrayInput.params(function=arrays, augment=drops),
            "drops returned None, not one ex",
        ),
        (ArrayInput.params(function=arrays, augment=mutating), "'x' is float64 .* in one example"),
        (ArrayInput.params(function=arrays, augment=noisy), r"py:\d+: ArrayInput: .*differs in x"),
    ],
)
def test_a_mistake_is_told_with_its_function_before_training(params, words):
    experiment = build_experiment(params.copy().set(batch_size=SIZE + 1)).build()
    with pytest.raises((ParamError, DataError), match=words) as error:
        prepare_data(experiment, Progress(enabled=False))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (ArrayInput.params(), "need either file or function.*neither is set"),
        (ArrayInput.params(file="a.npz", function=arrays), "both is set"),
        (ArrayInput.params(file="a.npz", arguments={"a": 1}), "arguments.* need a function"),
        (DatasetInput.params(function=plain, arguments={"epoch": 1}), "which lingo passes itself"),
        (DatasetInput.params(function=plain, num_elements=0), "num_elements=0 is not positive"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(params, words):
    with pytest.raises(ParamError, match=words):
        params.copy().set(batch_size=1).build()


def test_a_dataset_has_no_order_but_its_own():
    with pytest.raises(ParamError, match="DatasetInput has no field 'shuffle'"):
        DatasetInput.params(function=plain, shuffle=True)
