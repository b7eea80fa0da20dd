"""Mistakes in a user's own file: each is told in at most three lines, with the line of the file."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import pytest

from lingo.cli.main import main

MINE = '''"""Fits points."""

from __future__ import annotations

import numpy as np

from lingo import Experiment, experiment
from lingo.config.lazy import tf
from lingo.contract import Evaluation
from lingo.data.input import Input
from lingo.layers import Layer
from lingo.learner.task import Task
from lingo.metrics import weighted_mean
from lingo.optim import Sgd


class Scale(Layer):
    """Multiplies features by weights."""

    dim: int  # number of features

    def setup(self):
        self.w = self.weight("w", [self.p.dim], axes=("embed",))

    def __call__(self, x):
        return x * self.w


class Points(Input):
    """Points and their sums."""

    def prepare(self, *, progress=None):
        pass

    def specs(self):
        size = self.p.batch_size
        own = {"x": ((size, 3), "float32"), "y": ((size,), "float32")}
        return super().specs() | own

    def examples(self, numbers):
        x = np.sin(numbers[:, None] + np.arange(3)).astype(np.float32)
        return {"x": x, "y": x.sum(-1)}

    def num_examples(self):
        return 8

    def fingerprint(self):
        return {"points": 8}


class Fit(Task):
    """Fits the sums."""

    layer: Layer = Scale  # scales the features

    def setup(self):
        self.layer = self.p.layer.build(dim=3)

    def errors(self, batch):
        return tf.reduce_sum(self.layer(batch["x"]), -1) - batch["y"]

    def loss(self, batch):
        return {"squares": tf.reduce_sum(batch["weights"] * self.errors(batch) ** 2)}

    def metrics(self, batch):
        return {"error": weighted_mean(tf.abs(self.errors(batch)), batch["weights"])}


@experiment
def mine(learning_rate: float = 0.1):
    """One step."""
    data = Points.params(batch_size=4)
    evaluate = Evaluation.params(every_steps=1)
    return Experiment.params(
        task=Fit,
        train_input=data,
        eval_inputs={"all": data.copy().set(repeat=False)},
        optimizer=Sgd.params(learning_rate=learning_rate),
        evaluate=evaluate,
        max_steps=1,
    )
'''


class Mistake(NamedTuple):
    """A change of `MINE`, and what comes of it."""

    what: str  # is wrong
    old: str  # is replaced
    new: str  # replaces it
    message: str  # a regular expression of what follows the line
    line: str = ""  # text of the line that is named; "": the first line of `new`
    code: int = 2
    at_step: bool = False  # whether only a step shows it, so that there is a run, which has failed
    where: tuple[str, str] = ("", "")  # a second change: what uses the first


FAILS = '    def setup(self):\n        int("x")\n        self.w'
CALL = "    def __call__(self, x):\n        return x * self.w"
EXAMPLES = "    def examples(self, numbers):\n"
NUM_EXAMPLES = "    def num_examples(self):\n        return 8"
RETURN_EXAMPLES = 'return {"x": x, "y": x.sum(-1)}'
SUM = 'tf.reduce_sum(batch["weights"] * self.errors(batch) ** 2)'
RETURN_LOSS = f'return {{"squares": {SUM}}}'
STATE = 'weighted_mean(tf.abs(self.errors(batch)), batch["weights"])'
RETURN_METRICS = f'return {{"error": {STATE}}}'
LOSS, METRICS, POINTS = "def loss(", "def metrics(", "class Points"
MADE = "    return Experiment.params("
FINGERPRINT = "def fingerprint("
SGD = "Sgd.params(learning_rate=learning_rate)"


def own_schedule(what, factor, message):
    """A schedule of the user's whose `factor` is wrong."""
    code = (
        "from lingo.optim.schedule import Schedule\n\n\nclass Mine(Schedule):\n"
        f"    def factor(self, step, xp):\n        {factor}\n\n\nclass Scale("
    )
    use = (SGD, "Sgd.params(learning_rate=learning_rate, schedule=Mine)")
    return Mistake(f"{what} as schedule", "class Scale(", code, message, "def factor", where=use)


SCHEDULES = [
    ("nothing", "pass", "Mine.factor returned None: it returns a number for each step"),
    ("a text", "return '1'", "Mine.factor returned '1': it returns a number for each step"),
    ("a vector", "return xp.ones_like(step) * np.ones(3)", "Mine.factor returned .*shape=.3,"),
]


def own_optimizer(what, move, message, slots="return {'m': Slot(weight.shape, 0.0, weight.names)}"):
    """An optimizer of the user's whose `move` or `slots` is wrong."""
    code = (
        "from lingo.optim.optimizer import Move, Optimizer, Slot\n\n\nclass Own(Optimizer):\n"
        "    learning_rate: float = 0.1\n\n"
        f"    def slots(self, weight):\n        {slots}\n\n"
        f"    def move(self, update):\n        step = update.gradient\n        {move}\n\n\n"
        "class Scale("
    )
    line = "def slots" if "slots returned" in message else "def move"
    return Mistake(
        f"{what} of an optimizer", "class Scale(", code, message, line, where=(SGD, "Own")
    )


OPTIMIZERS = [
    ("nothing", "pass", "Own.move returned None: it returns Move"),
    (
        "a tensor",
        "return step",
        r"Own.move returned a float32 tensor of shape \(3,\): it returns Move",
    ),
    ("a lost slot", "return Move(step, {})", "Own.move lacks the slot 'm'"),
    ("a new slot", "return Move(step, {'m': step, 'v': step})", "Own.move returned the slot 'v'"),
    (
        "a slot of another shape",
        "return Move(step, {'m': tf.zeros([7])})",
        r"returned a float32 tensor of shape \(7,\) as the slot 'm' of layer/w, which is .* \(3,\)",
    ),
    (
        "one number for all",
        "return Move(tf.reduce_sum(step), {'m': step})",
        r"returned a float32 tensor of shape \(\) as the decrement of layer/w, which is .* \(3,\)",
    ),
    (
        "float64",
        "return Move(tf.cast(step, 'float64'), {'m': step})",
        "float64 .* as the decrement",
    ),
    ("a list of slots", "return Move(step, {})", "Own.slots returned .'m'.: it", "return ['m']"),
]


def own_initializer(what, values, message):
    """An initializer of the user's whose `values` are wrong."""
    layer = 'class Scale(Layer):\n    """Multiplies features by weights."""\n'
    code = (
        "from lingo.layers import Initializer\n\n\nclass Mine(Initializer):\n"
        f"    def values(self, u, fan_in):\n        {values}\n\n\n"
        f"{layer}\n    init: Initializer = Mine\n"
    )
    use = ('("embed",))', '("embed",), init=self.p.init.build())')
    return Mistake(f"{what} at first", layer, code, message, "def values", where=use)


INITIALIZERS = [
    ("nothing", "pass", "Mine.values returned .*NoneType: it has to return an array"),
    ("another shape", "return np.ones(7)", r"Mine.values returned \(7,\) ndarray: it has to"),
    ("NaN", "return u * np.nan", "Mine.values returned values that are not finite"),
    ("random numbers", "return np.random.rand(*u.shape)", "Mine.values returned other values when"),
]

MISTAKES = [
    # ---- the file
    Mistake("a colon", "def loss(self, batch):", "def loss(self, batch)", "not Python: expected"),
    Mistake("an indent", CALL, f"{CALL}\n         x", "not Python: unexpected", "         x"),
    Mistake("a module", "import numpy as np", "import torchx", "ModuleNotFoundError: .*'torchx'"),
    Mistake("a layer of Keras", "import Layer", "import Dense", "ImportError: cannot import name"),
    Mistake("a name", "class Fit(Task)", "class Fit(Tasks)", "NameError: name 'Tasks' is not"),
    Mistake("no mark", "@experiment\ndef mine(", "def mine(", "mine is not marked @experiment"),
    # ---- fields
    Mistake(
        "a type that is not imported",
        "    dim: int",
        "    size: Optional[int] = None\n    dim: int",
        r"Scale.size: name 'Optional' is not defined, in its type 'Optional\[int\]'",
        "class Scale",
    ),
    Mistake(
        "a type of no parameter",
        "    dim: int",
        "    table: np.ndarray = None\n    dim: int",
        "Scale.table: <class 'numpy.ndarray'> is not a parameter type: write bool, int",
        "class Scale",
    ),
    Mistake(
        "a default",
        "    dim: int",
        '    size: int = "3"\n    dim: int',
        r"Scale.size takes int, got '3' \(str\)",
        "class Scale",
    ),
    Mistake(
        "a reserved name",
        "    dim: int",
        "    build: int = 3\n    dim: int",
        "Scale.build: the name is taken by Params",
        "class Scale",
    ),
    # ---- the experiment
    Mistake("a field", "max_steps=1", "max_step=1", "Did you mean 'max_steps'", MADE),
    Mistake("no return", MADE, "    Experiment.params(", "mine returned None; an exp", "def mine"),
    Mistake("built", "max_steps=1,\n    )", "max_steps=1,\n    ).build()", "returned", "def mine"),
    Mistake("a task", "task=Fit", "task=Scale", "Experiment.task takes a Task, got", MADE),
    Mistake("called", "Sgd.params(", "Sgd(", r"Sgd is built from parameters: Sgd.params\("),
    Mistake("no input", "        train_input=data,\n", "", "Experiment needs train_input", MADE),
    Mistake("no size", "Points.params(batch_size=4)", "Points.params()", "needs batch_size", MADE),
    Mistake("a rate", "=learning_rate)", "=-1.0)", "optimizer: learning_rate=-1.0 is negative"),
    Mistake("steps", "max_steps=1", "max_steps=0", "max_steps=0 is not positive", MADE),
    Mistake("the end", "    data =", "    raise SystemExit(0)\n    data =", "SystemExit"),
    Mistake(
        "a metric",
        "every_steps=1",
        'metric="all/errors"',
        "evaluating 'all' gives no 'errors'. Did you mean 'error'",
    ),
    # ---- setup
    Mistake("a parameter", "[self.p.dim]", "[self.p.dims]", "Did you mean 'dim'"),
    Mistake("not self.p", "[self.p.dim]", "[self.dim]", "task.layer: .*: read self.p.dim", code=1),
    Mistake("axes", 'axes=("embed",)', "axes=()", r"task.layer: w: 0 axes \(\) for"),
    Mistake("no axes", ', axes=("embed",)', "", "argument: 'axes'", 'self.weight("w"', 1),
    Mistake("an error", "    def setup(self):\n        self.w", FAILS, "ValueError", "int(", 1),
    Mistake("an attribute", "self.w =", "self.kernel =", "'w' is declared, but assigned to self.k"),
    Mistake("no dim", "build(dim=3)", "build()", "task.layer: Scale needs dim: it is not set"),
    Mistake("a set p", "self.w = self.w", "self.p.dim = 5; self.w = self.w", "cannot change"),
    Mistake("add_weight", "self.weight(", "self.add_weight(", "no attribute 'add_", code=1),
    Mistake(
        "setup with arguments",
        "    def setup(self):\n        self.w",
        "    def setup(self, shape):\n        self.w",
        r"task.layer: TypeError: Scale.setup\(\) missing",
        code=1,
    ),
    # ---- calls
    Mistake(
        "not built",
        "self.layer(batch",
        "self.p.layer(batch",
        "task.layer is the parameters of Scale, .* cannot be called: build them in `setup`",
    ),
    Mistake(
        "not built at all",
        "self.layer(batch",
        "Scale.params(dim=3)(batch",
        "these are the parameters of Scale, .* cannot be called: build them in `setup`",
    ),
    Mistake("a shape", "x * self.w", "tf.matmul(x, self.w)", "task.layer: ValueError", code=1),
    Mistake("a dtype", "x * self.w", "x * tf.cast(self.w, tf.float64)", "float64", code=1),
    Mistake("no such name", "x * self.w", "x * w", "task.layer: NameError: name 'w'", code=1),
    Mistake("a tensor kept", "return x * self.w", "self.last = x", "task.layer: .*nothing", code=1),
    Mistake("x.numpy()", "x * self.w", "x.numpy()", "task.layer: .*no attribute 'numpy'", code=1),
    Mistake("NumPy", "x * self.w", "np.sin(x)", "task.layer: .*Cannot convert a symb", code=1),
    Mistake("no result", CALL, CALL.replace("return", ""), "task.layer: .* returned None: is a"),
    Mistake("training", '(batch["x"])', '(batch["x"], training=True)', ".*unexpected key", code=1),
    Mistake(
        "a wrong shape",
        CALL,
        CALL.replace("x * self.w", "tf.concat([x, x * self.w], 0)"),
        r"task: Dimensions must be equal, .* \(before it, Scale \(task.layer, .*py:\d+\) returned"
        r" \[8, 3\] for an input of \[4, 3\]\)$",
        "tf.reduce_sum(self.layer",
    ),
    Mistake(
        "call of Keras",
        "__call__",
        "call",
        r"TypeError: Scale.call would never be called. Rename it: `__call__\(self, x\)` computes",
        "class Scale",
    ),
    Mistake(
        "build of Keras",
        "setup(self)",
        "build(self, input_shape)",
        r"TypeError: Scale.build would never be called. Rename it: `setup\(self\)` declares",
        "class Scale",
    ),
    Mistake("a key", 'batch["x"]', 'batch["images"]', "the batch has no 'images', but .*x"),
    Mistake(
        "a Python if",
        "return x * self.w",
        "if x[0, 0] > 0:\n            return x\n        return x * self.w",
        "task.layer: .*Using a symbolic `tf.Tensor` as a Python `bool` is not allowed",
        code=1,
    ),
    Mistake(
        "AutoGraph",
        CALL,
        "    @tf.function\n    def scaled(self, x):\n        return tf.matmul(x, self.w)\n\n"
        "    def __call__(self, x):\n        return self.scaled(x)",
        "task.layer: ValueError: Shape must be rank 2 but is rank 1",
        "tf.matmul",
        1,
    ),
    Mistake(
        "an index",
        "x * self.w",
        "x * tf.gather(self.w, tf.cast(x, tf.int32) + 7)",
        r"step 1: .*indices\[0,0\] = 7 is not in \[0, 3\), in local/layer/GatherV2",
        code=1,
        at_step=True,
    ),
    Mistake(
        "an array as initial value",
        'axes=("embed",))',
        'axes=("embed",), init=[1.0, 1.0, 1.0])',
        r"task.layer: w: init=\[1.0, 1.0, 1.0\] does not draw values: give an Initializer",
    ),
    # ---- loss
    Mistake("no loss", LOSS, "def compute_loss(", "Fit has no `loss`: it returns", "class Fit"),
    Mistake("y_true", "loss(self, batch)", "loss(self, y_true, y_pred)", "missing 1 req", code=1),
    Mistake("no dict", RETURN_LOSS, f"return {SUM}", "Fit.loss returned a float32 tensor", LOSS),
    Mistake("a tuple", RETURN_LOSS, f"return {SUM}, 4", "Fit.loss returned a tuple", LOSS),
    Mistake("no losses", RETURN_LOSS, SUM, "Fit.loss returned None: it returns {term", LOSS),
    Mistake(
        "a vector",
        "tf.reduce_sum(batch[",
        "(batch[",
        r"Fit.loss returned a float32 tensor of shape \(4,\) as 'squares': a term is a",
        LOSS,
    ),
    Mistake("a number", SUM, "1.0", "Fit.loss returned a float as 'squares': a term is", LOSS),
    Mistake("float64", SUM, f"tf.cast({SUM}, tf.float64)", "Fit.loss returned a float64", LOSS),
    Mistake("a total", "squares", "total", "'total' is the name of the sum", LOSS),
    Mistake("an empty dict", RETURN_LOSS, "return {}", "Fit.loss returned nothing: it", LOSS),
    Mistake(
        "a denominator",
        "    def loss(",
        "    def loss_denominators(self, batch):\n        return 4.0\n\n    def loss(",
        "Fit.loss_denominators returned a float: it returns {term: weight of the batch}",
    ),
    Mistake(
        "no denominator of all",
        "    def loss(",
        "    def loss_denominators(self, batch):\n        return {'a': 4.0}\n\n    def loss(",
        r"Fit.loss_denominators has no 'examples', .*: return super\(\)",
    ),
    # ---- metrics
    Mistake("a mean", STATE, "tf.reduce_mean(batch['y'])", "Fit.metrics returned a float", METRICS),
    Mistake("no name", RETURN_METRICS, f"return {STATE}", "Fit.metrics returned .*'sum'", METRICS),
    Mistake("no metrics", RETURN_METRICS, STATE, "Fit.metrics returned None: it", METRICS),
    Mistake("count", STATE, "{'total': 1.0, 'count': 2.0}", r"\['count', 'total'\]", METRICS),
    Mistake("a vector sum", STATE, "{'sum': batch['y'], 'weight': 4.0}", "as the 'sum'", METRICS),
    Mistake("a label", "tf.abs(self.errors(batch))", 'batch["labels"]', "has no 'labels', but"),
    Mistake(
        "no values",
        "    def metrics(",
        "    def results(self, means):\n        means['a'] = 1\n\n    def metrics(",
        "Fit.results returned None: it returns {metric: number}",
    ),
    Mistake(
        "a text as a result",
        "    def metrics(",
        "    def results(self, means):\n        return {'a': 'b'}\n\n    def metrics(",
        "Fit.results returned a str as 'a': a number is wanted",
        "def results",
    ),
    Mistake(
        "a metric that is read as none",
        "    def metrics(",
        "    def read_metric(self, name, state):\n        state['a'] = 1\n\n    def metrics(",
        "Fit.read_metric returned None: it returns {metric: number}",
    ),
    Mistake(
        "no prediction",
        "    def metrics(",
        "    def predict(self, batch):\n        self.layer(batch['x'])\n\n    def metrics(",
        "Fit.predict returned None: it returns {name:",
    ),
    Mistake(
        "a prediction of all examples",
        "    def metrics(",
        "    def predict(self, batch):\n"
        "        return {'y': tf.reduce_sum(self.layer(batch['x']))}\n\n    def metrics(",
        "Fit.predict returned a float32 tensor of shape",
    ),
    # ---- data
    Mistake(
        "no examples at all", "return 8", "return 0", "returned 0: the examples", "def num_exam"
    ),
    Mistake(
        "half an example", "return 8", "return 8.5", "returned 8.5: the examples", "def num_exam"
    ),
    Mistake("no number", "num_examples", "__len__", "Points has no `num_examples`", POINTS),
    Mistake("no fingerprint", "fingerprint", "digest", "Points has no `fingerprint`: it", POINTS),
    Mistake("no prepare", "prepare", "open", "Points has no `prepare`: it opens", POINTS),
    Mistake("__getitem__", "examples(self, n", "__getitem__(self, n", "Points has no `ex", POINTS),
    Mistake("no super()", "super().specs() | own", "own", "Points.specs lacks ex", "def specs"),
    Mistake("no specs", "return super().specs() | own", "own", "specs returned None", "def specs"),
    Mistake("no dtype", '((size, 3), "float32")', "(size, 3)", "Points.specs: 'x' is", "def specs"),
    Mistake("a list", RETURN_EXAMPLES, "return [x]", "returned a list", "def examples"),
    Mistake("random", "np.sin(numb", "np.random.rand() * np.sin(numb", "twice", "def examples"),
    Mistake("no file", "        pass", '        open("points.csv")', ".*'points.csv'", code=1),
    Mistake("an index of data", EXAMPLES, f"{EXAMPLES}        [][9]\n", "Index", "[][9]", 1),
    # ---- what checks before the first step find
    Mistake(
        "a number as rate",
        "Sgd.params(learning_rate=learning_rate)",
        "0.1",
        "an Optimizer, got",
        MADE,
    ),
    Mistake(
        "a list of inputs", "train_input=data", "train_input=[data]", "takes an Input, got", MADE
    ),
    Mistake(
        "a path as name", '{"all": data', '{"a/b": data', "the name becomes part of a path", MADE
    ),
    Mistake("text as steps", "max_steps=1", 'max_steps="1"', "takes int or None, got '1'", MADE),
    Mistake("two results", "return x * self.w", "return x, self.w", "", "self.layer(batch", 1),
    Mistake("a weight in a call", "x * self.w", 'x * self.weight("v", [3], axes=())', ""),
    Mistake("no size", "[self.p.dim]", "[None]", "has a size that is not an int from 1"),
    Mistake("a negative size", "[self.p.dim]", "[-3]", "has a size that is not an int from 1"),
    Mistake(
        "a rounded loss",
        SUM,
        f"tf.round({SUM})",
        "the loss does not depend on the weight",
        "class Scale",
    ),
    Mistake(
        "a mean as loss",
        "tf.reduce_sum(batch[",
        "tf.reduce_mean(batch[",
        "Fit: .*is not a sum over examples",
        LOSS,
    ),
    Mistake("no weights", 'batch["weights"] * self', "self", "Fit: 8 examples of weight 0", LOSS),
    Mistake("a random layer", "x * self.w", "x * self.w + tf.random.uniform([])", "Random.* draws"),
    Mistake("a variable", "x * self.w", "x * tf.Variable([1.0, 2.0, 3.0])", ""),
    Mistake(
        "no float32",
        ".astype(np.float32)",
        "",
        "Points: the array 'x' of .* float64",
        "def examples",
    ),
    Mistake(
        "a column",
        "x.sum(-1)}",
        "x.sum(-1, keepdims=True)}",
        "'y' .* float32 .4, 1.",
        "def examples",
    ),
    Mistake(
        "no labels",
        ', "y": x.sum(-1)}',
        "}",
        "specs has the array 'y', which batch",
        "def examples",
    ),
    Mistake("more", '"y": x.sum', '"z": x, "y": x.sum', "'z', which specs lacks", "def examples"),
    Mistake(
        "objects", '"x": x,', '"x": x.astype(object),', "'x' of a batch is object", "def examples"
    ),
    Mistake(
        "no number",
        RETURN_EXAMPLES,
        'return {"x": x * np.nan, "y": x.sum(-1)}',
        "Fit: the loss 'squares' of the first 4 examples is nan before .*; so is 'x'",
        LOSS,
    ),
    Mistake("by zero", SUM, f"{SUM} / 0.0", "of the first 4 examples is inf before", LOSS),
    Mistake("no JSON", '{"points": 8}', '{"points": object()}', ".* JSON cannot hold", FINGERPRINT),
    Mistake(
        "a text", 'return {"points": 8}', 'return "8"', "fingerprint returned a str", FINGERPRINT
    ),
    Mistake("another", '{"points": 8}', '{"points": np.random.rand()}', ".* and then", FINGERPRINT),
    Mistake("a nameless metric", '{"error": w', '{"": w', "the name of a metric is a str", METRICS),
    Mistake("a number as name", '{"error": w', "{3: w", "the name of a metric is a str", METRICS),
    *(
        Mistake(what, "    def metrics(", f"{code}\n\n    def metrics(", message, line)
        for what, code, message, line in [
            (
                "a coefficient of nothing",
                "    def coefficients(self):\n        return {'sqares': 2.0}",
                "Fit.coefficients has 'sqares', .* Did you mean 'squares'",
                "def coefficients",
            ),
            (
                "a coefficient of all",
                "    def coefficients(self):\n        return 2.0",
                "Fit.coefficients returned a float",
                "def coefficients",
            ),
            (
                "a coefficient that is no number",
                "    def coefficients(self):\n        return {'squares': float('nan')}",
                "Fit.coefficients returned nan as 'squares'",
                "def coefficients",
            ),
            (
                "a denominator for each example",
                "    def loss_denominators(self, batch):\n"
                "        return {'examples': batch['weights']}",
                "Fit.loss_denominators returned a float32 tensor of shape",
                "def loss_denominators",
            ),
            (
                "a number as name of a prediction",
                "    def predict(self, batch):\n        return {1: self.layer(batch['x'])}",
                "the name of a prediction is a str, not 1",
                "def predict",
            ),
        ]
    ),
    *(own_schedule(*given) for given in SCHEDULES),
    *(own_optimizer(*given) for given in OPTIMIZERS),
    *(own_initializer(*given) for given in INITIALIZERS),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.what for mistake in MISTAKES])
def test_a_mistake_in_own_code_is_told_with_its_line(mistake, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert mistake.old in MINE
    text = MINE.replace(mistake.old, mistake.new, 1).replace(*mistake.where, 1)
    (file := tmp_path / f"mine_{abs(hash(tmp_path))}.py").write_text(text)
    marked = mistake.line or mistake.new.partition("\n")[0]
    line = next(n for n, code in enumerate(text.splitlines(), start=1) if marked in code)

    assert main(["train", f"--exp={file.name}:mine", "--logdir=run"]) == mistake.code

    _, err = capfd.readouterr()
    assert re.match(
        rf"lingo train: ([\w ()]+[:,] )?{re.escape(f'{file}:{line}')}\b.*{mistake.message}", err
    )
    assert len(err.splitlines()) <= 3
    assert "Traceback" not in err
    run = tmp_path / "run"
    assert run.exists() == mistake.at_step
    assert not list(run.glob("checkpoints/*"))
