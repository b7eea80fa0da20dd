"""A mistake in a user's own file that would train something else is told, by name, at its start."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated

SOURCE = (pathlib.Path(__file__).parent / "own_experiment.py").read_text()
CALL = "return x @ self.w"
SETUP = 'self.w = self.weight("w", [2, 2], axes=("embed", "mlp"))'

RUNTIMES = {
    "local": Local.params(),
    "xla": Local.params(xla=True),
    "replicated": Replicated.params(),
    "mesh": Mesh.params(),
}


def train(folder: pathlib.Path, *changes: tuple[str, str], **values: Any) -> Any:
    """Trains the experiment of a file in which texts are replaced by others."""
    source = SOURCE
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    file = folder / "mine.py"
    file.write_text(source)
    return lingo.train(lingo.get(f"{file}:mine").set(**values), folder / "run")


def refusal(folder: pathlib.Path, *changes: tuple[str, str], **values: Any) -> str:
    """Returns the error, of at most three lines, with which the training ends before a step."""
    with pytest.raises(ParamError) as caught:
        train(folder, *changes, **values)
    assert len(str(caught.value).splitlines()) <= 3
    assert not list((folder / "run").glob("checkpoints/*"))
    return str(caught.value)


def test_the_file_itself_trains(tmp_path):
    assert train(tmp_path).step == 2


# ---- variables


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_variable_of_a_layer_is_refused(tmp_path, runtime):
    change = (SETUP, f"{SETUP}; self.scale = tf.Variable([1.0, 2.0])")
    error = refusal(tmp_path, change, (CALL, f"{CALL} * self.scale"), runtime=RUNTIMES[runtime])
    line = 1 + SOURCE[: SOURCE.index(CALL)].count("\n")
    assert error.startswith(f"body (Body), {tmp_path}/mine.py:{line}: ReadVariableOp uses a")
    assert "neither trained nor saved" in error
    assert "self.weight(...)" in error
    assert "Keras(factory=...)" in error


@pytest.mark.parametrize(
    "expression",
    [
        "tf.Variable([1.0, 2.0])",
        "tf.cond(x[0, 0] > 0, lambda: SCALE + 0, lambda: SCALE + 1)",
        "tf.vectorized_map(lambda r: r * SCALE, x)",
        "tf.function(lambda: SCALE + 0)()",
    ],
)
def test_a_variable_that_is_made_or_captured_is_refused(tmp_path, expression):
    change = ("class Body", "SCALE = tf.Variable([1.0, 2.0])\n\n\nclass Body")
    error = refusal(tmp_path, change, (CALL, f"{CALL} * {expression}"))
    assert "body (Body)" in error
    assert "uses a tf.Variable" in error


@pytest.mark.parametrize("place", ["setup", "call"])
def test_a_keras_layer_is_refused(tmp_path, place):
    changes = {
        "setup": [
            (SETUP, f"import keras; self.dense = keras.layers.Dense(2); {SETUP}"),
            (CALL, "return self.dense(x @ self.w)"),
        ],
        "call": [(CALL, "import keras; return keras.layers.Dense(2)(x @ self.w)")],
    }
    error = refusal(tmp_path, *changes[place])
    assert error.startswith("body (Body), ")
    assert "Keras(factory=...)" in error


def test_a_keras_model_with_statistics_and_dropout_is_refused(tmp_path):
    model = (
        "keras.Sequential([keras.Input((2,)), keras.layers.Dense(2),"
        " keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])"
    )
    error = refusal(
        tmp_path,
        (SETUP, f"import keras; self.model = {model}; {SETUP}"),
        (CALL, "return self.model(x @ self.w, training=True)"),
    )
    assert error.startswith("body (Body), ")
    assert "neither trained nor saved" in error


def test_a_variable_of_an_optimizer_is_refused(tmp_path):
    own = (
        "class Mine(Sgd):\n"
        "    def setup(self):\n"
        "        super().setup()\n"
        "        self.count = tf.Variable(0.0)\n\n"
        "    def move(self, update):\n"
        "        self.count.assign_add(1.0)\n"
        "        return super().move(update)\n\n\n"
        "@experiment"
    )
    error = refusal(tmp_path, ("@experiment", own), ("optimizer=Sgd", "optimizer=Mine"))
    assert error.startswith(f"Mine, {tmp_path}/mine.py:")
    assert "AssignAddVariableOp uses a tf.Variable" in error


# ---- random numbers


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_dropout_of_tensorflow_is_refused(tmp_path, runtime):
    error = refusal(
        tmp_path, (CALL, "return tf.nn.dropout(x @ self.w, 0.5)"), runtime=RUNTIMES[runtime]
    )
    assert error.startswith("body (Body), ")
    assert "RandomUniform draws from a generator of TensorFlow" in error
    assert "self.random_key()" in error
    assert "the layer Dropout" in error


@pytest.mark.parametrize(
    ("expression", "operation"),
    [
        ("tf.random.normal([2])", "RandomStandardNormal"),
        ("tf.random.truncated_normal([2])", "TruncatedNormal"),
        ("tf.cast(tf.random.shuffle([0, 1]), tf.float32)", "RandomShuffle"),
        ("tf.cast(tf.random.categorical([[0.0, 0.0]], 2), tf.float32)", "Multinomial"),
        ("tf.random.gamma([2], 1.0)", "RandomGamma"),
        ("tf.random.Generator.from_seed(1).normal([2])", "RngReadAndSkip"),
        ("tf.random.get_global_generator().normal([2])", "RngReadAndSkip"),
        (
            "tf.cond(x[0, 0] > 0, lambda: tf.random.normal([2]), lambda: x[0])",
            "RandomStandardNormal",
        ),
        (
            "tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + tf.random.normal([2])),"
            " (0, x[0]))[1]",
            "RandomStandardNormal",
        ),
        ("tf.vectorized_map(lambda r: r + tf.random.normal([2]), x)", "RandomStandardNormal"),
        ("tf.function(lambda: tf.random.normal([2]))()", "RandomStandardNormal"),
    ],
)
def test_random_numbers_of_tensorflow_are_refused(tmp_path, expression, operation):
    error = refusal(tmp_path, (CALL, f"{CALL} + {expression}"))
    assert error.startswith("body (Body), ")
    assert f"{operation} draws from a generator" in error


def test_a_function_that_was_traced_before_is_refused(tmp_path):
    function = "@tf.function\ndef noise():\n    return tf.random.normal([2])\n\n\nnoise()\n\n\n"
    error = refusal(tmp_path, ("class Body", f"{function}class Body"), (CALL, f"{CALL} + noise()"))
    assert re.match(r"a tf.function, __inference_noise_\d+: RandomStandardNormal draws", error)


# ---- what else is not a function of its arguments


@pytest.mark.parametrize(
    ("expression", "operation"),
    [
        ("tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), [4, 2])", "EagerPyFunc"),
        ("tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), [4, 2])", "PyFunc"),
        ("tf.cast(tf.timestamp(), tf.float32)", "Timestamp"),
    ],
)
def test_python_and_the_clock_are_refused(tmp_path, expression, operation):
    error = refusal(tmp_path, (CALL, f"{CALL} + {expression}"))
    assert f"{operation} may compute from more than its inputs" in error


@pytest.mark.parametrize(
    "statement",
    [
        "tf.print(x)",
        "tf.debugging.assert_less(x, 10.0)",
        "x = tf.debugging.check_numerics(x, 'x')",
        "x = x + tf.random.stateless_uniform([2], (1, 2))",
        "x = x + 0 * tf.ensure_shape("
        "tf.numpy_function(lambda x: x, [x], tf.float32, stateful=False), [4, 2])",
    ],
)
def test_what_only_reports_or_depends_on_its_arguments_alone_is_not(tmp_path, statement):
    assert train(tmp_path, (CALL, f"{statement}; {CALL}"), eval_inputs={}).step == 2
