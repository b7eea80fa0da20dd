"""A mistake in a user's own file that would train something else is told, by name, at its start."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.decode.sampling import Sampling
from lingo.learner.step import decode_batch
from lingo.ops import random
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated

SOURCE = (pathlib.Path(__file__).parent / "own_experiment.py").read_text()
CALL = "return x @ self.w"
KEY = random.root_key(0)
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


def test_random_numbers_of_a_method_that_is_a_function_are_refused(tmp_path):
    change = ("def errors(self", "@tf.function\n    def errors(self")
    error = refusal(
        tmp_path, change, ('return batch["w', 'return tf.random.uniform([]) * batch["w')
    )
    assert error.startswith("Fit: RandomUniform draws from a generator")


def test_a_function_that_was_traced_before_is_refused(tmp_path):
    function = "@tf.function\ndef noise():\n    return tf.random.normal([2])\n\n\nnoise()\n\n\n"
    error = refusal(tmp_path, ("class Body", f"{function}class Body"), (CALL, f"{CALL} + noise()"))
    assert re.match(r"a tf.function, __inference_noise_\d+: RandomStandardNormal draws", error)


def test_random_numbers_of_an_evaluation_are_refused(tmp_path):
    change = ('"sum": tf.reduce_sum(self', '"sum": tf.random.uniform([]) + tf.reduce_sum(self')
    assert refusal(tmp_path, change).startswith("Fit, ")


def test_random_numbers_of_a_decode_are_refused(tmp_path):
    source = SOURCE.replace(
        "    def loss(self",
        "    def decode(self, batch, decoding):\n"
        '        return {"tokens": tf.random.uniform([])}\n\n    def loss(self',
    )
    (tmp_path / "mine.py").write_text(source)
    task = lingo.get(f"{tmp_path}/mine.py:mine").build().task
    decoding = Sampling.params().build()
    decode = tf.function(
        lambda rows: decode_batch(task, {}, {}, {"rows": rows}, decoding, KEY), autograph=False
    )
    with pytest.raises(ParamError, match=r"^Fit, .*: RandomUniform draws from a generator"):
        decode(tf.range(2))


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


# ---- declarations


def test_an_init_is_refused_where_its_class_is_defined(tmp_path):
    change = (
        "    def setup(self):\n        self.w = ",
        "    def __init__(self):\n        self.w = ",
    )
    error = refusal(tmp_path, change)
    line = 1 + SOURCE[: SOURCE.index("class Body")].count("\n")
    assert error.startswith(f"{tmp_path}/mine.py:{line}: TypeError: Body.__init__ would never be")
    assert "setup(self)" in error


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_misspelt_axis_is_refused(tmp_path, runtime):
    error = refusal(tmp_path, ('"mlp")', '"mpl")'), runtime=RUNTIMES[runtime])
    assert "body" in error
    assert "the logical axis 'mpl'" in error
    assert "Did you mean 'mlp'?" in error


def test_an_axis_of_ones_own_is_not(tmp_path):
    for number, name in enumerate(("colour", "head", "state")):
        (folder := tmp_path / str(number)).mkdir()
        assert train(folder, ('"mlp")', f'"{name}")'), eval_inputs={}, max_steps=1).step == 1


# ---- gradients


@pytest.mark.parametrize(
    "use", ["x @ self.w", "x @ self.w * tf.stop_gradient(self.b)", "x @ self.w + 0 * round(self.b)"]
)
def test_a_weight_without_gradient_is_refused(tmp_path, use):
    change = (SETUP, f'{SETUP}; self.b = self.weight("b", [2], axes=(None,))')
    use = use.replace("round", "tf.round")
    error = refusal(tmp_path, change, (CALL, f"return {use}"))
    assert ": body (Body): the loss does not depend on the weight 'b'" in error
    assert "Frozen" in error


@pytest.mark.parametrize("use", ["x @ self.w", "x @ self.w * tf.stop_gradient(self.b)"])
def test_a_weight_without_gradient_is_found_in_a_loop_over_layers(tmp_path, use):
    error = refusal(
        tmp_path,
        ("import Layer", "import Layer, Repeat"),
        ("task=Fit", "task=Fit.params(body=Repeat.params(layer=Body, num_layers=2))"),
        (SETUP, f'{SETUP}; self.b = self.weight("b", [2], axes=(None,))'),
        (CALL, f"return {use}"),
    )
    assert ": body/layers/[0:2] (Body): the loss does not depend on the weight 'b'" in error


def test_a_frozen_weight_needs_no_gradient(tmp_path):
    change = (SETUP, f'{SETUP}; self.b = self.weight("b", [2], axes=(None,))')
    optimizer = ByPath.params(
        learning_rate=0.1, groups={"body/w": Sgd.params(), "body/b": Frozen.params()}
    )
    assert train(tmp_path, change, optimizer=optimizer, eval_inputs={}).step == 2


# ---- batches


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('.astype("float32")', ""), "the array 'x' of a batch is float64 [4, 2]"),
        (
            ("np.sin(numbers)]", "np.sin(numbers)] * 2"),
            "the array 'x' of a batch is float32 [4, 4]",
        ),
        (('"x": ((self.p', '"y": ((self.p'), "Points.batch has the array 'x', which specs lacks"),
        (('{"x": np', '{"z": 0, "x": np'), "Points.batch has the array 'z', which specs lacks"),
    ],
)
def test_a_batch_that_does_not_fit_its_specs_is_refused(tmp_path, change, message):
    assert message in refusal(tmp_path, change)


def test_a_later_batch_that_does_not_fit_is_refused_when_it_comes(tmp_path):
    change = ('.astype("float32")', '.astype("float32" if numbers[0] < 12 else "float64")')
    with pytest.raises(ParamError, match=r"Points: the array 'x' of a batch is float64") as caught:
        train(tmp_path, change, max_steps=5, eval_inputs={})
    assert "astype" in str(caught.value)


def test_a_batch_of_an_evaluation_that_does_not_fit_is_refused(tmp_path):
    change = ('.astype("float32")', '.astype("float32" if self.p.repeat else "float64")')
    assert "Points: the array 'x' of a batch is float64" in refusal(tmp_path, change)


def test_a_batch_larger_than_the_data_is_told(tmp_path, capsys):
    change = ("train_input=Points.params(batch_size=4)", "train_input=Points.params(batch_size=32)")
    assert train(tmp_path, change, max_steps=1).step == 1
    warning = "a batch of 32 examples has some of them several times, because there are only 16"
    assert warning in capsys.readouterr().out


# ---- sums

MEAN = "tf.reduce_mean(self.errors(batch))"
LOSS = "tf.reduce_sum(self.errors(batch))}"


@pytest.mark.parametrize("runtime", ["local", "mesh"])
@pytest.mark.parametrize(
    ("loss", "times"),
    [
        ("tf.reduce_mean(self.errors(batch))", "1"),
        ("tf.reduce_sum(self.errors(batch)) / batch['x'].shape[0]", "1"),
        ("tf.reduce_sum(self.errors(batch)) / tf.reduce_sum(batch['weights'])", "1"),
        ("tf.sqrt(tf.reduce_sum(self.errors(batch)))", "1.41"),
        ("tf.reduce_max(self.errors(batch))", "1"),
        ("tf.reduce_sum(self.body.w ** 2)", "1"),
        ("tf.function(lambda e: tf.reduce_mean(e))(self.errors(batch))", "1"),
        ("tf.reduce_sum(tf.reduce_mean(self.body(batch['x']), axis=0))", "1"),
    ],
)
def test_a_loss_that_is_not_a_sum_is_refused(tmp_path, loss, times, runtime):
    error = refusal(tmp_path, (LOSS, loss + "}"), runtime=RUNTIMES[runtime])
    assert "Fit: the loss 'loss' is not a sum over examples: over twice as many" in error
    assert f"it is {times} times as large, not 2 times" in error
    assert "loss_denominators" in error


def test_a_mean_of_keras_is_refused(tmp_path):
    loss = "tf.keras.losses.MeanSquaredError()(batch['x'], self.body(batch['x']))"
    error = refusal(tmp_path, (LOSS, loss + "}"))
    assert "the loss 'loss' is not a sum over examples: over twice as many, it is 1 times" in error


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('"sum": tf.reduce_sum', '"sum": tf.reduce_mean', "'sum' of the metric 'error'"),
        ('"weight": tf.reduce_sum(batch["weights"])', '"weight": 1.0', "'weight' of the metric"),
        (
            "    def loss(self",
            "    def loss_denominators(self, batch):\n"
            '        return {"examples": tf.constant(1.0)}\n\n    def loss(self',
            "the denominator 'examples'",
        ),
        (CALL, f'self.side_loss("small", tf.reduce_mean(x)); {CALL}', "the loss 'small'"),
    ],
)
def test_metrics_denominators_and_side_losses_that_are_not_sums_are_refused(
    tmp_path, old, new, name
):
    assert f"Fit: {name}" in refusal(tmp_path, (old, new))


@pytest.mark.parametrize(
    "loss",
    [
        "tf.reduce_sum(self.errors(batch)) / 8.0",
        "tf.einsum('b,b->', batch['weights'], tf.reduce_mean(self.body(batch['x']) ** 2, -1))",
        "tf.reduce_sum(tf.map_fn(tf.square, self.errors(batch)))",
        "tf.add_n([tf.reduce_sum(e) for e in tf.split(self.errors(batch), 2)])",
        "tf.while_loop(lambda i, _: i < 4, lambda i, s: (i + 1, s + tf.reduce_sum("
        "self.errors(batch))), (0, 0.0))[1]",
    ],
)
def test_sums_of_other_forms_are_not(tmp_path, loss):
    assert train(tmp_path, (LOSS, loss + "}"), eval_inputs={}, max_steps=1).step == 1


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (
            'return batch["weights"] * tf.reduce_sum(y * y, -1)',
            "return tf.reduce_sum(y * y, -1)",
            "the loss 'loss' from ",
        ),
        (LOSS, 'tf.reduce_sum(self.body(batch["x"]) ** 2)}', "the loss 'loss' from "),
        (
            '"weight": tf.reduce_sum(batch["weights"])',
            '"weight": tf.reduce_sum(tf.ones_like(batch["weights"]))',
            "'weight' of the metric 'error' from 4 to 12",
        ),
        (
            "tf.reduce_sum(y * y, -1)",
            "tf.reduce_sum(y * y, -1) / tf.reduce_sum(batch['x'] ** 2, -1)",
            "the loss 'loss' from ",  # to not a number: zeros are padding, too
        ),
    ],
    ids=["both", "loss", "weight", "not finite"],
)
def test_examples_of_weight_0_that_count_are_refused(tmp_path, old, new, name):
    error = refusal(tmp_path, (old, new))
    assert f"Fit: 8 examples of weight 0 after 4 others change {name}" in error
    assert f"{tmp_path}/mine.py:" in error


def test_a_metric_of_a_layer_may_count_examples_of_weight_0(tmp_path):
    count = "tf.cast(tf.shape(x)[0], tf.float32)"
    told = f"self.side_metric('rows', {{'sum': 2.0 * {count}, 'weight': {count}}})"
    assert train(tmp_path, (CALL, f"{told}; {CALL}"), max_steps=1).step == 1


def test_statistics_over_all_examples_may_count_those_of_weight_0(tmp_path):
    changes = (
        ("from lingo.layers import Layer", "from lingo.layers import BatchNorm, Layer"),
        ('"""A matrix."""', '"""A matrix."""\n\n    norm: Layer = BatchNorm'),
        (SETUP, f"self.norm = self.p.norm.build(dim=2); {SETUP}"),
        (CALL, "return self.norm(x) @ self.w"),
    )
    assert train(tmp_path, *changes, max_steps=1).step == 1
    (folder := tmp_path / "other").mkdir()
    assert "change the loss 'loss'" in refusal(
        folder, *changes, (LOSS, 'tf.reduce_sum(self.body(batch["x"]) ** 2)}')
    )


@pytest.mark.parametrize(
    "call", [f"{CALL} + tf.zeros([4, 2])", f"assert x.shape[0] == 4; {CALL}"], ids=["sum", "assert"]
)
def test_a_model_for_batches_of_one_size_is_not_refused(tmp_path, call):
    assert train(tmp_path, (CALL, call), max_steps=1).step == 1


def test_a_loss_that_was_changed_is_checked_again(tmp_path, monkeypatch):
    assert train(tmp_path, max_steps=1, eval_inputs={}).step == 1
    (file := tmp_path / "mine.py").write_text(SOURCE.replace(LOSS, MEAN + "}"))
    for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", "") == str(file)]:
        monkeypatch.delitem(sys.modules, name)  # as in a new process
    params = lingo.get(f"{file}:mine").set(max_steps=2, eval_inputs={})
    with pytest.raises(ParamError, match="the loss 'loss' is not a sum over examples"):
        lingo.train(params, tmp_path / "run", allow_change=True)
