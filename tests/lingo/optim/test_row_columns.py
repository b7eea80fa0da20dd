"""Weights in rows: optimizers that add up over a weight compute the same as in its own shape."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.mesh.weight_rows import WeightRows, read_rows
from lingo.optim.adafactor import Adafactor
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.optimizer import Update, Weight, weight_norm
from lingo.optim.row_columns import RowColumns, flatten, unflatten

SHAPE, NAMES = (2, 3, 7, 5), ("l/0/w", "l/1/w")
ROWS = [WeightRows(SHAPE[1:], (1, 1, 1), 4), WeightRows(SHAPE[1:], (1, 2, 2), 4)]
CASES = {
    "Adafactor": Adafactor.params(learning_rate=0.1, beta1=0.5),
    "ByPath": ByPath.params(
        learning_rate=0.1, groups={"l/0/w": Adafactor.params(weight_decay=0.5), "l/1/w": Frozen}
    ),
    "Lamb": Lamb.params(learning_rate=0.1, weight_decay=0.5),
    "Lars": Lars.params(learning_rate=0.1, trust_coefficient=0.1, weight_decay=0.5),
    "Lamb, nothing added to the root": Lamb.params(learning_rate=0.1, epsilon=0.0),
}


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_those_of_numpy_and_back(rows):
    value, every = draw(0), (slice(0, 2), slice(0, rows.num_rows), slice(0, rows.row_size))
    found = flatten(tf.constant(value), rows)
    np.testing.assert_array_equal(found, read_rows(value, every, rows))
    np.testing.assert_array_equal(unflatten(found, rows), value)


@pytest.mark.parametrize("start", [0, 9])
@pytest.mark.parametrize("rows", ROWS)
def test_coordinates_find_each_element_in_the_weight(rows, start):
    columns, value = slice(start, start + 9), draw(0)
    part = RowColumns(rows, 9, first=start)
    indices = tuple(i.numpy() for i in part.coordinates())
    found = part.without_padding(tf.constant(value[0][indices]))
    expected = read_rows(value, (slice(0, 1), slice(0, rows.num_rows), columns), rows)[0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rows", ROWS)
def test_columns_of_devices_make_whole_weights(rows):
    value = draw(0)
    every = flatten(tf.constant(value), rows)
    parts = [RowColumns(rows, rows.row_size // 4, first=i * rows.row_size // 4) for i in range(4)]
    columns = [every[..., p.first : p.first + p.num_columns] for p in parts]
    sums = []  # what each device adds
    for part, own in zip(parts, columns, strict=True):
        part._replace(total=lambda x: sums.append(x) or x).gather(own)
    found = parts[0]._replace(total=lambda x: tf.add_n(sums)).gather(columns[0])
    np.testing.assert_array_equal(found, value)
    for part, own in zip(parts, columns, strict=True):
        np.testing.assert_array_equal(part.cut(tf.constant(value)), own)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CASES)
def test_an_update_in_rows_is_that_of_the_weight(name, rows):
    weight, optimizer = Weight("l/[0:2]/w", NAMES, SHAPE, 1), CASES[name].build()
    in_rows = weight._replace(row_columns=RowColumns(rows, rows.row_size))
    slots = {
        k: tf.fill(slot.shape, np.float32(slot.fill)) for k, slot in optimizer.slots(weight).items()
    }
    is_whole = {k: slot.axes is None for k, slot in optimizer.slots(weight).items()}
    flat_slots = {k: flatten(v, rows) if is_whole[k] else v for k, v in slots.items()}
    value, flat_value = tf.constant(draw(0)), flatten(tf.constant(draw(0)), rows)
    for step in range(3):
        gradient, rates = tf.constant(draw(1 + step)), optimizer.rates(tf.constant(step))
        value, slots = optimizer.update(Update(weight, value, gradient, slots, step, rates))
        flat_gradient = flatten(gradient, rows)
        flat_value, flat_slots = optimizer.update(
            Update(in_rows, flat_value, flat_gradient, flat_slots, step, rates)
        )
        flat_value = in_rows.row_columns.without_padding(flat_value)
    np.testing.assert_allclose(unflatten(flat_value, rows), value, rtol=1e-6, atol=1e-6)
    for k, slot in slots.items():
        found = unflatten(flat_slots[k], rows) if is_whole[k] else flat_slots[k]
        np.testing.assert_allclose(found, slot, rtol=1e-6, atol=1e-6)


def test_a_norm_leaves_out_what_is_no_element():
    rows = ROWS[1]
    weight = Weight("l/[0:2]/w", NAMES, SHAPE, 1, RowColumns(rows, rows.row_size))
    ones = tf.ones([2, rows.num_rows, rows.row_size])
    np.testing.assert_allclose(weight_norm(weight, ones), np.full([2, 1, 1], np.sqrt(105)))


def test_adam_moves_zeros_at_the_ends_nowhere():
    rows = ROWS[0]
    zeros = tf.zeros([2, 1, rows.row_size])
    weight = Weight("l/[0:2]/w", NAMES, SHAPE, 1, RowColumns(rows, rows.row_size))
    adam = Adam.params(learning_rate=0.1).build()
    new = adam.update(Update(weight, zeros, zeros, {"m": zeros, "v": zeros}, 0, adam.rates(0)))
    np.testing.assert_array_equal(new.value, zeros)
