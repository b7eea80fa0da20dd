"""Examples made in TensorFlow are functions of (seed, step), or refused before anything runs."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.bucketed_input import BucketedInput
from lingo.data.derived_input import RepeatedInput
from lingo.data.files import DataError
from lingo.data.input import Input
from lingo.data.mixture import Mixture
from lingo.data.prefetch import Prefetch
from lingo.data.record_source import TextFiles
from lingo.data.tensor_input import TensorInput
from lingo.ops import random
from tests.lingo.data.documents import assert_equal, assert_starts_anywhere, specs_of


class Counting(Input):
    """Example n is [n, n + 1, n + 2], and its name."""

    size: int = 10

    def prepare(self, *, progress: Any = None) -> None:
        del progress

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        names = np.array([f"{n}".encode() for n in numbers], object)
        return {"x": (numbers[:, None] + np.arange(3)).astype(np.float32), "name": names}

    def specs(self) -> dict[str, ArraySpec]:
        mine = {"x": ((self.p.batch_size, 3), "float32"), "name": ((self.p.batch_size,), "string")}
        return super().specs() | mine

    def num_examples(self) -> int:
        return self.p.size

    def fingerprint(self) -> dict[str, Any]:
        return {"size": self.p.size}


class Noisy(TensorInput):
    """Adds noise of each example's own key, and parses its name."""

    def arrays(self) -> dict[str, ArraySpec]:
        return {"noisy": ((3,), "float32"), "number": ((), "int32")}

    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        number = tf.strings.to_number(arrays["name"], tf.int32)
        return {"noisy": arrays["x"] + random.uniform(key, 3), "number": number}


def noisy(kind=Noisy, **fields):
    return kind.params(**{"input": Counting, "batch_size": 4, "seed": 3} | fields).build()


def test_an_example_is_what_map_makes_of_it_and_its_key():
    batch = noisy().batch(2)
    np.testing.assert_array_equal(batch["number"], [8, 9, 10, 11])
    root = random.fold(random.root_key(3), random.text_hash("map"))
    for i, number in enumerate(batch["example_id"]):
        key = random.fold(random.fold(root, 0), int(number))
        expected = np.arange(number, number + 3, dtype=np.float32) + random.uniform(key, 3)
        np.testing.assert_array_equal(batch["noisy"][i], expected)


def test_a_batch_is_the_same_in_any_order_of_asking_and_in_parts():
    assert_starts_anywhere(noisy, range(6))
    assert (noisy(seed=4).batch(5)["noisy"] != noisy().batch(5)["noisy"]).any()


def test_numbers_beyond_32_bits_have_keys_of_their_own():
    low, high = (noisy()._key(np.array([n])) for n in (7, 7 + 2**32))
    assert low != high


def test_batches_made_ahead_in_a_thread_are_those_made_here():
    input = noisy()
    with Prefetch(noisy(), spans=[range(0, 2), range(2, 4)]) as items:
        for steps, batches in items:
            for i, step in enumerate(steps):
                assert_equal({k: v[i] for k, v in batches.items()}, input.batch(step))


def test_shapes_are_known_before_anything_is_traced():
    input = noisy()
    assert input.specs()["noisy"] == ((4, 3), "float32")
    assert input._program.cache_info().currsize == 0
    assert input.specs() == specs_of(input.batch(0))


def test_it_stands_where_other_inputs_stand():
    mixed = Mixture.params(
        batch_size=4, inputs={"a": Noisy.params(input=Counting), "b": Noisy.params(input=Counting)}
    ).build()
    assert mixed.batch(0)["number"].tolist() == [0, 0, 1, 1]
    over = RepeatedInput.params(input=Noisy.params(input=Counting, batch_size=2), batches=2).build()
    assert_equal(over.batch(3), over.batch(1))
    once = noisy(repeat=False)
    assert (once.num_batches(), once.batch(2)["weights"].tolist()) == (3, [1, 1, 0, 0])


def test_it_is_identified_by_its_data_and_its_class():
    assert noisy().fingerprint() == {"size": 10, "map": f"{__name__}:Noisy"}


# ---- what is refused ---------------------------------------------------------------------------


class Maps(Noisy):
    """Noisy, by another function."""

    def arrays(self) -> dict[str, ArraySpec]:
        return {"x": ((3,), "float32")}


class Changed(Maps):
    CHANGE: ClassVar[Any] = None

    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        return self.CHANGE(arrays["x"])


class Remembering(Maps):
    def setup(self) -> None:
        super().setup()
        self.total = tf.Variable(0.0)

    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        return {"x": arrays["x"] + self.total}


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda x: x + tf.random.uniform([3], seed=1), "RandomUniform"),
        (lambda x: tf.map_fn(tf.random.shuffle, x), "RandomShuffle"),  # in a loop
        (
            lambda x: tf.cond(x[0, 0] > 0, lambda: x + tf.random.normal([3]), lambda: x),
            "RandomStandardNormal",
        ),
        (lambda x: x + tf.cast(tf.timestamp(), tf.float32), "Timestamp"),
        (lambda x: tf.numpy_function(lambda x: x + np.random.rand(), [x], tf.float32), "PyFunc"),
    ],
)
def test_an_operation_that_keeps_state_is_refused_by_name_when_data_is_opened(
    change, operation, monkeypatch
):
    monkeypatch.setattr(Changed, "CHANGE", staticmethod(lambda x: {"x": change(x)}))
    with pytest.raises(ParamError, match=rf"Changed\.map uses {operation}, .*") as caught:
        noisy(Changed).prepare()
    assert re.search(r"test_tensor_input\.py:\d+: .*lambda x: ", str(caught.value))
    assert "lingo.ops.random or tf.random.stateless_*" in str(caught.value)


def test_a_variable_is_refused():
    with pytest.raises(ParamError, match=r"Remembering\.map uses ReadVariableOp"):
        noisy(Remembering).prepare()


class Stateless(Maps):
    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        tf.debugging.assert_less(arrays["x"], 1e9)
        tf.print("", end="")
        seeds = tf.bitcast(tf.stack(key, -1), tf.int32)
        draw = tf.map_fn(
            lambda seed: tf.random.stateless_uniform([3], seed), seeds, fn_output_signature="float"
        )
        return {"x": tf.cond(arrays["x"][0, 0] > 0, lambda: arrays["x"] + draw, lambda: draw)}


def test_stateless_draws_checks_prints_loops_and_branches_are_allowed():
    input = noisy(Stateless)
    input.check_repeatable()
    assert (input.batch(1)["x"] != input.batch(2)["x"]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {"y": x}, r"map returns \['y'\], but arrays says \['x'\]"),
        (
            lambda x: {"x": x[:, :2]},
            r"map returns 'x' as float32 \(None, 2\), but .* float32 \(None, 3\)",
        ),
        (lambda x: {"x": tf.cast(x, tf.int32)}, r"map returns 'x' as int32"),
        (lambda x: {"x": x[1:]}, "must return as many examples as it gets"),
    ],
)
def test_what_is_not_declared_is_refused(change, message, monkeypatch):
    monkeypatch.setattr(Changed, "CHANGE", staticmethod(change))
    with pytest.raises(ParamError, match=message):
        noisy(Changed).batch(0)


class Failing(Maps):
    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        image = tf.io.decode_jpeg(arrays["name"][0])
        return {"x": arrays["x"] + tf.cast(tf.size(image), tf.float32)}


def test_an_example_that_the_program_cannot_read_is_bad_data():
    with pytest.raises(DataError, match=r"Failing\.map of examples 4 to 7: .*JPEG"):
        noisy(Failing).batch(1)


def test_an_input_that_does_not_fit_is_refused_at_build(tmp_path):
    source = TextFiles.params(pattern=str(tmp_path / "*"))
    with pytest.raises(ParamError, match="BucketedInput makes whole batches"):
        noisy(input=BucketedInput.params(source=source))
    for fields in ({"batch_size": 3}, {"repeat": False, "max_batches": 3}):
        with pytest.raises(ParamError, match="leave out batch_size, repeat and max_batches"):
            noisy(input=Counting.params(**fields))


class Pixels(Counting):
    """Images of 3 x 1 pixels."""

    def offers(self) -> dict[str, Any]:
        return {"image_shape": (3, 1, 1), "num_classes": 2}


class Doubled(TensorInput):
    """Each pixel twice."""

    def arrays(self) -> dict[str, ArraySpec]:
        return {"images": ((6, 1, 1), "float32")}

    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        del key
        return {"images": tf.repeat(arrays["x"], 2, axis=1)[:, :, None, None]}


def test_it_offers_the_shape_of_the_images_that_it_makes():
    data = Doubled.params(input=Pixels, batch_size=2).build()
    assert data.offers() == {"image_shape": (6, 1, 1), "num_classes": 2}
    assert data.batch(0)["images"].shape == (2, 6, 1, 1)
    assert "image_shape" not in noisy().offers()
