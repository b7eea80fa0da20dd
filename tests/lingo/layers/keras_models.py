"""Layers and models of Keras for tests, each made by a function of no arguments or few."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

WIDTH = 4


def dense(units: int = WIDTH) -> Any:
    return keras.Sequential([keras.Input((3, WIDTH)), layers.Dense(units)])


def feed_forward(width: int = 8) -> Any:
    inputs = keras.Input((None, width))
    hidden = layers.Dense(5, activation="gelu")(layers.LayerNormalization()(inputs))
    return keras.Model(inputs, layers.Dense(width)(hidden))


def normalized() -> Any:
    """Has all kinds of variables: weights, moving statistics, an integer, the state of a seed."""
    inputs = keras.Input((WIDTH,))
    x = layers.Normalization()(inputs)
    x = layers.Dense(WIDTH, activation="gelu")(x)
    x = layers.Dropout(0.5)(layers.BatchNormalization(momentum=0.75)(x))
    return keras.Model(inputs, layers.Dense(2)(x))


def loaded() -> Any:
    model = dense()
    model.set_weights([np.full(v.shape, 3.0, "f") for v in model.weights])
    return model


def frozen() -> Any:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(WIDTH), layers.Dense(2)])
    model.layers[0].trainable = False
    return model


def regularized() -> Any:
    half = keras.regularizers.L2(0.5)
    layer = layers.Dense(2, kernel_regularizer=half, activity_regularizer=half)
    layer.build((None, WIDTH))
    return layer


class Inner(keras.Model):
    """Only the layer inside takes `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = layers.Dropout(0.5)

    def build(self, input_shape: Any) -> None:
        self.inside.build(input_shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.inside(x)


def inner() -> Any:
    model = Inner()
    model.build((None, WIDTH))
    return model


class Careless(layers.Layer):
    """Does `mistake` when it is called."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.seeds = keras.random.SeedGenerator(1)
        self.late = layers.Dense(WIDTH)
        self.built = True

    def call(self, x: Any) -> Any:
        if self.mistake == "integers":
            return keras.ops.cast(x, "int32")
        if self.mistake == "unseeded":
            return x + keras.random.normal([WIDTH])
        if self.mistake == "always random":
            return x + keras.random.normal([WIDTH], seed=self.seeds)
        return self.late(x)


def careless(mistake: str) -> Any:
    return Careless(mistake)


def number() -> Any:
    return 7


def unbuilt() -> Any:
    return layers.Dense(3)


def compiled() -> Any:
    model = dense()
    model.compile("adam", "mse", metrics=["mae"])
    return model


def twins() -> Any:
    return keras.Sequential([keras.Input((WIDTH,)), Twins()])


class Twins(layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.one = self.add_weight(shape=[1], name="same")
        self.two = self.add_weight(shape=[1], name="same")

    def call(self, x: Any) -> Any:
        return x * self.one + self.two


def broken() -> Any:
    raise OSError("no such file")
