"""First weights that are read: by rule, all or some, from every kind of source; in whole runs."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from lingo.checkpoints import store
from lingo.checkpoints.errors import CheckpointMismatch, DamagedCheckpoint
from lingo.checkpoints.sources.layout import WeightLayout
from lingo.checkpoints.sources.transfer import TensorRead, resize_grid
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.checkpoints.store import Retention
from lingo.config.params import ParamError
from lingo.contract import Guard
from lingo.data.document_input import TextInput
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import EMA, initial_state, load_arrays, named_tensors
from lingo.optim.adafactor import Adafactor
from lingo.optim.sgd import Momentum, Sgd
from lingo.trainer.changes import ChangedConfiguration
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.dry_run import dry_run
from lingo.trainer.request import Request
from lingo.trainer.saver import Rewinder

pytestmark = pytest.mark.usefixtures("once_compiled")


class Halves(WeightLayout):
    """A layout of one tensor `both`, [2 * 2, 3], whose halves are `a`, [3, 2], and `b`, flipped."""

    def reads(self, shapes):
        forms = {"a": TensorRead("both", (3, 2), part=(0, 2), order=(1, 0), form=(3, 2))}
        forms["b"] = forms["a"]._replace(part=(1, 2))
        forms["c"] = TensorRead("c", (2, 3), flip=0, form=(2, 3))
        return {name: forms[name] for name in shapes}

    def is_ignored(self, tensor):
        return tensor == "count"


HALVES = {"a": (3, 2), "b": (3, 2), "c": (2, 3)}


def halves(path, **fields):
    warm = WarmStart.params(path=str(path), layout=Halves, **fields).build()
    warm.check_weights(list(HALVES))
    return warm.transfer(HALVES)


def test_a_layout_says_where_weights_are_and_in_which_form(tmp_path):
    both, c = np.arange(12, dtype="f").reshape(4, 3), np.arange(6, dtype="f").reshape(2, 3)
    path = write(tmp_path / "a.safetensors", {"both": both, "c": c, "count": np.int64([3])})
    found = halves(path)
    np.testing.assert_array_equal(found.value("a"), both[:2].T)
    np.testing.assert_array_equal(found.value("b"), both[2:].T)
    np.testing.assert_array_equal(found.value("c"), c[::-1])
    parts = [found.reads[n].undo(found.value(n), (3, 2)) for n in "ab"]
    np.testing.assert_array_equal(found.reads["a"].join(parts), both, strict=True)
    undone = found.reads["c"].undo(found.value("c"), (2, 3))
    np.testing.assert_array_equal(found.reads["c"].join([undone]), c, strict=True)
    assert "axes in the order [1, 0], part 1 of 2" in found.table()
    assert "axis 0 reversed" in found.table()


def test_with_a_layout_a_source_has_no_other_tensors(tmp_path):
    arrays = {"both": np.zeros([4, 3], "f"), "c": np.zeros([2, 3], "f"), "d": np.zeros(3, "f")}
    path = write(tmp_path / "a.safetensors", arrays)
    with pytest.raises(CheckpointMismatch, match="unknown d: the network has no such tensor"):
        halves(path)
    path = write(tmp_path / "a.safetensors", {"both": np.zeros([3, 4], "f"), "c": arrays["c"]})
    with pytest.raises(
        CheckpointMismatch, match=r"shape a \(both\): \[3, 4\] in the source has no"
    ):
        halves(path)
    assert set(halves(path, only=("c",)).reads) == {"c"}


@pytest.mark.parametrize("field", ["rename", "transpose", "reshape", "parts", "scale", "offset"])
def test_with_a_layout_no_field_says_how_weights_are_read(field):
    value = {"transpose": ("a",), "reshape": True, "parts": {"a": (0, 2)}, "rename": {"a": "b"}}
    with pytest.raises(ParamError, match=rf"{field}=.* with layout=.*: the layout"):
        WarmStart.params(path="x", layout=Halves, **{field: value.get(field, {"a": 2.0})}).build()
    with pytest.raises(ParamError, match=r"slots=true reads slots as they are, and layout="):
        WarmStart.params(path="x", layout=Halves, slots=True).build()


OURS = {
    "model/table": (4, 3),
    "model/layers/0/w": (3, 2, 2),
    "model/layers/1/w": (3, 2, 2),
    "model/b": (3,),
}


def write(path, values):
    save_file(values, path)
    return path


def transfer(path, **fields):
    warm = WarmStart.params(path=str(path), **fields).build()
    warm.check_weights(list(OURS))
    return warm.transfer(OURS)


def read(found):
    return {name: value for name in OURS if (value := found.value(name)) is not None}


def assert_same(mine, yours):
    assert mine.keys() == yours.keys()
    for name, value in mine.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, yours[name], err_msg=name)


# ---- rules -------------------------------------------------------------------------------------


@pytest.fixture
def values():
    draw = np.random.RandomState(1)
    return {name: draw.randn(*shape).astype(np.float32) for name, shape in OURS.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def test_the_first_rule_that_matches_the_whole_name_says_what_a_weight_is_called_there(
    path, values
):
    assert_same(read(transfer(write(path, values))), values)
    theirs = {
        "emb": values["model/table"],
        "h.0.x": values["model/layers/0/w"],
        "h.1.x": values["model/layers/1/w"],
        "model/b": values["model/b"],
    }
    write(path, theirs)
    rename = {"model/table": "emb", r"model/layers/(\d)/(?P<what>w)": r"h.\1.x"}
    assert_same(read(transfer(path, rename=rename)), values)
    rename = {"model/table": "emb", "model/layers/(.*)/w": r"h.\1.x", "model/(.*|no)": r"model/\1"}
    assert_same(read(transfer(path, rename=rename)), values)


def test_only_and_skip_choose_what_is_read(path, values):
    write(path, values)
    found = transfer(path, only=["model/layers/.*", "model/b"], skip=["model/layers/1/w"])
    assert sorted(read(found)) == ["model/b", "model/layers/0/w"]
    assert found.value("model/table") is None
    assert found.other_weights == ["model/table", "model/layers/1/w"]


def test_a_weight_that_is_missing_is_an_error_with_the_nearest_name(path, values):
    values["model/tabel"], values["extra"] = values.pop("model/table"), np.zeros(2, np.float32)
    with pytest.raises(CheckpointMismatch) as caught:
        transfer(write(path, values))
    assert str(caught.value).splitlines() == [
        f"{path} does not fit the model:",
        "  missing model/table Did you mean 'model/tabel'?",
        "2 tensors of the source are not requested: extra, model/tabel.",
        "init_from.partial=true gives missing weights their usual initial values.",
    ]


def test_with_partial_what_is_missing_is_listed_and_drawn(path, values):
    del values["model/b"]
    found = transfer(write(path, values), partial=True)
    assert_same(read(found), values)
    assert found.absent == {"model/b": "model/b"}


def test_transpose_reverses_the_axes_of_what_it_names(path, values):
    write(path, values | {"model/table": values["model/table"].T.copy()})
    assert_same(read(transfer(path, transpose=["model/table"])), values)
    said = r"model/table: \[3, 4\] in the source, \[4, 3\] in the model; transpose could name it"
    with pytest.raises(CheckpointMismatch, match=said):
        transfer(path, partial=True)
    with pytest.raises(CheckpointMismatch, match="transpose names it; it should not"):
        transfer(write(path, values), transpose=["model/table"])


def test_reshape_merges_and_splits_neighbouring_axes(path, values):
    layer = values["model/layers/0/w"]
    write(path, values | {"model/layers/0/w": layer.reshape(3, 4)})
    with pytest.raises(CheckpointMismatch, match=r"\[3, 4\] in the source.*reshape=true would"):
        transfer(path)
    assert_same(read(transfer(path, reshape=True)), values)
    write(path, values | {"model/layers/0/w": layer.reshape(4, 3)})
    with pytest.raises(CheckpointMismatch, match=r"\[4, 3\] in the source, \[3, 2, 2\] in the"):
        transfer(path, reshape=True)


def test_positions_of_another_grid_are_resized_on_request(path, values):
    table = np.random.RandomState(2).randn(6, 3).astype(np.float32)
    write(path, values | {"model/table": table})
    said = r"table: \[6, 3\] in the source, \[4, 3\] .*; if these are positions .* resize would"
    with pytest.raises(CheckpointMismatch, match=said):
        transfer(path)
    found = transfer(path, resize={"model/t.*": ((2, 3), (2, 2))})
    expected = values | {"model/table": resize_grid(table, (2, 3), (2, 2))}
    assert_same(read(found), expected)
    for grids, said in (
        (((2, 2), (2, 2)), r"\[6, 3\] in the source, not a grid of 2 x 2"),
        (((6,), (5,)), r"\[4, 3\] in the model; resize makes a grid of 5$"),
    ):
        with pytest.raises(CheckpointMismatch, match=rf"(?m){said}"):
            transfer(path, resize={"model/table": grids})


def test_several_weights_may_be_read_from_one_tensor(path, values):
    del values["model/layers/1/w"]
    found = transfer(write(path, values), rename={"model/layers/1/w": "model/layers/0/w"})
    np.testing.assert_array_equal(read(found)["model/layers/1/w"], values["model/layers/0/w"])
    assert "2 weights share tensors" in found.summary()


def test_where_nothing_is_found_names_of_both_sides_are_shown(path):
    write(path, {f"theirs{i}": np.zeros(2, np.float32) for i in range(4)})
    with pytest.raises(CheckpointMismatch) as caught:
        transfer(path, partial=True)
    assert str(caught.value) == (
        f"{path} holds none of 4 weights: model/table, model/layers/0/w, model/layers/1/w, ....\n"
        "It holds theirs0, theirs1, theirs2, .... init_from.rename says what a weight is called"
        " there."
    )
    with pytest.raises(CheckpointMismatch, match="It holds no tensor"):
        transfer(write(path, {}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"path": ""}, "path='' names nothing"),
        ({"step": -1}, "step=-1 is negative"),
        ({"rename": {"(": "x"}}, r"rename: '\(' is not a regular expression"),
        ({"only": ["["]}, r"only: '\[' is not a regular expression"),
        ({"rename": {"model/b": ""}}, "='' is not a name"),
        ({"rename": {"model/(b)": "\1"}}, r"='\\x01' is not a name; in quotes .* doubled"),
        ({"rename": {"model/(b)": r"\2"}}, r"\['model/\(b\)'\]='\\\\2': invalid group reference 2"),
        ({"rename": {"other": "x"}}, "init_from.rename: 'other' matches none of 4 weights"),
        ({"rename": {".*": "x", "model/b": "y"}}, "'model/b' matches only weights that earlier"),
        ({"only": ["b"]}, "init_from.only: 'b' matches none of 4 weights; .* whole name"),
        ({"skip": [".*"]}, "leave no weight to read"),
        ({"resize": {"b": ((2,), (3,))}}, "init_from.resize: 'b' matches none of 4 weights"),
        ({"resize": {"b": ((2, 2), (3,))}}, r"resize\['b'\]=\(\(2, 2\), \(3,\)\): .* are the gr"),
        ({"resize": {"b": ((0,), (3,))}}, r"resize\['b'\]=\(\(0,\), \(3,\)\): .* are the gri"),
    ],
)
def test_mistakes_are_found_before_a_file_is_opened(fields, said):
    with pytest.raises(ParamError, match=said):
        WarmStart.params(**({"path": "nowhere"} | fields)).build().check_weights(list(OURS))


# ---- whole runs --------------------------------------------------------------------------------


def warm(params, path, **fields):
    return params.set(init_from=WarmStart.params(path=str(path), **fields))


@pytest.fixture
def source(experiment, text, tmp_path):
    """The directory of a run with checkpoints of two steps, averages among them."""
    learner = experiment(text).set(seed=7).build().learner
    (tmp_path / "source").mkdir()
    for step in (2, 3):
        state = load_arrays(initial_state(learner))
        for where, value in state.weights.items():
            state.weights[where] = value + step
            state.slots[where] |= {EMA: value - step, "m": value * step, "v": value**2}
        store.save(
            tmp_path / "source/checkpoints",
            step=step,
            tensors=named_tensors(learner, state),
            metadata={},
            retention=Retention(9),
        )
    return tmp_path / "source"


def first(params):
    """Returns the weights before the first step, by program path."""
    built = params.build()
    found = built.warm_start()
    return load_arrays(initial_state(built.learner, found.value)).weights


def test_weights_begin_as_those_of_another_run_and_the_rest_as_ever(
    experiment, weights, source, text
):
    trained, built = weights(source), warm(experiment(text), source).build()
    state = load_arrays(initial_state(built.learner, built.warm_start().value))
    for name, value in state.weights.items():
        np.testing.assert_array_equal(value, trained[f"weights/{name}"], err_msg=name)
        np.testing.assert_array_equal(state.slots[name][EMA], value)
        assert not state.slots[name]["m"].any()
    assert state.step == 0


def test_a_run_says_what_it_read_and_goes_on_without_its_source(
    experiment, run, source, text, tmp_path
):
    params = experiment(text, max_steps=1).set(eval_inputs={})
    run(warm(params, source), tmp_path / "run")
    listed = (tmp_path / "run/warm_start.txt").read_text().splitlines()
    assert listed[0] == f"{source}/checkpoints/step_00000003: lingo checkpoint of step 3"
    assert sum(line.startswith("read ") for line in listed) == 18
    with pytest.raises(ChangedConfiguration, match=r"init_from\.skip"):
        run(warm(params, source, skip=["model/embedding/.*"]), tmp_path / "run")
    shutil.rmtree(source)
    assert run(warm(params.set(max_steps=2), source), tmp_path / "run").step == 2
    said = json.loads((tmp_path / "run/environment.json").read_text())["init_from"]
    assert said["path"] == f"{source}/checkpoints/step_00000003"
    assert len(said["sha256"]["MANIFEST.json"]) == 64
    latest = store.latest(tmp_path / "run/checkpoints")
    assert latest.metadata["init_from"] == said


def test_a_source_that_is_not_there_is_named_before_data_is_indexed(
    experiment, run, text, tmp_path, monkeypatch
):
    indexed = []
    monkeypatch.setattr(TextInput, "prepare", lambda self, progress: indexed.append(self))
    params = warm(experiment(text), tmp_path / "nowhere")
    with pytest.raises(UnusableSource, match="nowhere"):
        run(params, tmp_path / "run")
    with pytest.raises(UnusableSource, match="nowhere"):
        dry_run(Request(params, "{}", ""), RunDirectory(tmp_path / "run"))
    assert indexed == []


def test_a_run_never_goes_back_to_other_weights_than_those_it_began_with(
    experiment, run, inject, source, text, tmp_path, monkeypatch
):
    def changed(self, *known):
        store.delete(store.step_path(source / "checkpoints", 3))

    monkeypatch.setattr(Rewinder, "_find", changed)
    inject("batch:nan@0")
    params = warm(experiment(text).set(eval_inputs={}), source)
    params.guard = Guard.params(max_skipped_steps=1, on_non_finite="rewind")
    with pytest.raises(UnusableSource, match="holds other weights than when the run began"):
        run(params, tmp_path / "run")


def test_stacked_layers_read_what_separate_ones_wrote(experiment, weights, source, text):
    params = warm(experiment(text), source)
    params.all(Stack).swap(Repeat)
    found, trained = first(params), weights(source)
    where = next(name for name in found if "layers/[0:2]" in name and name.endswith("w_in"))
    for i in range(2):
        name = f"weights/{where.replace('[0:2]', str(i))}"
        np.testing.assert_array_equal(found[where][i], trained[name])


def test_averages_are_read_on_request(experiment, weights, source, text):
    found, trained = first(warm(experiment(text), source, weights="ema")), weights(source)
    for name, value in found.items():
        np.testing.assert_array_equal(value, trained[f"slots/ema/{name}"])
        assert not np.array_equal(value, trained[f"weights/{name}"])


# ---- slots of the optimizer ----------------------------------------------------------------------


def begin(params):
    """Returns the state before the first step, and what was read."""
    built = params.build()
    found = built.warm_start()
    return load_arrays(initial_state(built.learner, found.value, found.slot)), found


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_slots_are_read_on_request_by_the_name_of_their_weight(
    experiment, weights, source, text, stack
):
    params = warm(experiment(text), source, slots=True)
    params.all(Stack).swap(stack)
    state, found = begin(params)
    trained = weights(source)
    read = dict(named_tensors(params.build().learner, state))
    assert read.keys() == trained.keys()
    for name, value in read.items():
        np.testing.assert_array_equal(value, trained[name], err_msg=name)
    assert any(value.any() for name, value in read.items() if name.startswith("slots/m/"))
    assert state.step == 0
    assert found.summary().endswith("(lingo checkpoint of step 3, with slots ema, m, v)")
    assert "not used" not in found.table()
    row = next(line for line in found.table().splitlines() if "ffn/w_in, slot m " in line)
    assert row.split() == [
        *("read", "model/stack/layers/0/ffn/w_in,", "slot", "m"),
        *("slots/m/model/stack/layers/0/ffn/w_in", "float32", "[8,", "32]"),
    ]


def test_slots_of_weights_that_are_renamed_skipped_or_absent(experiment, weights, source, text):
    trained = weights(source)
    params = warm(
        experiment(text),
        source,
        slots=True,
        partial=True,
        skip=["model/stack/layers/0/ffn/w_in"],
        rename={
            "model/stack/layers/1/(.*)": r"model/stack/layers/0/\1",
            ".*/0/ffn/w_out": "nowhere",
        },
    )
    state, _ = begin(params)
    one, other = (f"model/stack/layers/{i}/ffn/w_in" for i in (0, 1))
    np.testing.assert_array_equal(state.slots[other]["m"], trained[f"slots/m/{one}"])
    absent = "model/stack/layers/0/ffn/w_out"
    for where in (one, absent):
        assert not state.slots[where]["m"].any()
        np.testing.assert_array_equal(state.slots[where][EMA], state.weights[where])


def momentum(params, **fields):
    params.all(TransformerLayer).set(dropout_rate=0.0)
    return params.set(optimizer=Sgd.params(learning_rate=0.1, momentum=0.9, **fields))


def test_with_slots_training_goes_on_as_the_source_would(experiment, text, tmp_path):
    built = momentum(experiment(text)).build()
    batches = [built.train_input.batch(step) for step in range(6)]

    def train(program, steps):
        for step in steps:
            program.train({name: value[None] for name, value in batches[step].items()})
        return dict(named_tensors(built.learner, load_arrays(program.state())))

    program = built.runtime.start(built.learner, initial_state(built.learner))
    half = train(program, range(3))
    store.save(tmp_path / "checkpoints", step=3, tensors=half.items(), metadata={})
    whole = train(program, range(3, 6))
    for with_slots in (True, False):
        other = warm(momentum(experiment(text)), tmp_path, slots=with_slots).build()
        found = other.warm_start()
        state = initial_state(other.learner, found.value, found.slot)
        other = train(built.runtime.start(other.learner, state), range(3, 6))
        same = [np.array_equal(other[name], value) for name, value in whole.items()]
        assert all(same) if with_slots else not any(same)


@pytest.mark.parametrize(
    ("optimizer", "lines"),
    [
        (
            Momentum.params(),
            ["missing slot 'momentum' of model/embedding/table[259, 8] and 17 more weights"],
        ),
        (
            Adafactor.params(beta1=0.9),
            [
                "missing slot 'v_row' of model/embedding/table[259] and 12 more weights",
                "missing slot 'v_column' of model/embedding/table[8] and 12 more weights",
            ],
        ),
    ],
)
def test_slots_of_another_optimizer_are_refused(experiment, source, text, optimizer, lines):
    params = experiment(text).set(optimizer=optimizer)
    params.optimizer.learning_rate = 0.1
    with pytest.raises(CheckpointMismatch) as caught:
        warm(params, source, slots=True, partial=True).build().warm_start()
    assert str(caught.value).splitlines() == [
        f"{source}/checkpoints/step_00000003 does not have the slots of the optimizer:",
        *(f"  {line}" for line in lines),
        "Its slots: ema, m, v. Take the optimizer of that run, or begin all slots anew by"
        " init_from.slots=false.",
    ]


def test_a_slot_of_another_shape_is_refused(tmp_path):
    ones = np.ones((4, 3), np.float32)
    tensors = {"weights/w": ones, "slots/m/w": ones}
    store.save(tmp_path / "checkpoints", step=1, tensors=tensors.items(), metadata={})
    start = WarmStart.params(path=str(tmp_path), slots=True).build()
    assert start.transfer({"w": (4, 3)}, {}).slots == {}
    said = r"other slot 'm' of w\[4\], float32\[4, 3\] in the source\nIts slots: m\. Take the opt"
    with pytest.raises(CheckpointMismatch, match=said):
        start.transfer({"w": (4, 3)}, {"w": {"m": (4,)}})


def test_slots_are_those_of_runs_of_lingo(path, values):
    with pytest.raises(
        ParamError, match=r"init_from\.slots=true is for runs of lingo, and .*a\.saf"
    ):
        transfer(write(path, values), slots=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transpose", ["model/b"]),
        ("reshape", True),
        ("parts", {"model/b": (0, 2)}),
        ("scale", {"model/b": 2.0}),
        ("offset", {"model/b": 2.0}),
        ("resize", {"model/b": ((2,), (3,))}),
    ],
)
def test_weights_that_are_changed_while_they_are_read_have_no_slots(field, value):
    with pytest.raises(
        ParamError, match=rf"slots=true reads slots as they are, and {field}=.* chan"
    ):
        WarmStart.params(path="nowhere", slots=True, **{field: value}).build()


def test_a_damaged_checkpoint_is_passed_over_unless_it_is_the_one_that_was_named(
    experiment, source, text
):
    third = source / "checkpoints/step_00000003"
    data = next(third.glob("*.data-*"))
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)
    found = warm(experiment(text), source).build().warm_start()
    assert "lingo checkpoint of step 2; skipped step_00000003, damaged" in found.summary()
    for fields in ({"path": str(third)}, {"path": str(source), "step": 3}):
        with pytest.raises(DamagedCheckpoint, match="step_00000003 is damaged"):
            first(experiment(text).set(init_from=WarmStart.params(**fields)))
    assert third.is_dir(), "the source is only read"


@pytest.mark.parametrize("damage", ["missing", "truncated", "not finite", "other model"])
def test_a_source_that_cannot_be_used_leaves_nothing_behind(
    experiment, run, text, tmp_path, damage
):
    shapes = weight_shapes(experiment(text).build().task)
    values = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    next(iter(values.values())).flat[3] = np.nan if damage == "not finite" else 1
    path = write(tmp_path / "a.safetensors", {} if damage == "other model" else values)
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    error = CheckpointMismatch if damage == "other model" else UnusableSource
    with pytest.raises(error, match=r"a\.safetensors") as caught:
        run(warm(experiment(text), path), tmp_path / "new/run")
    assert caught.value.exit_code == (4 if damage == "other model" else 3)
    assert not (tmp_path / "new").exists()


def test_a_dry_run_says_what_would_be_read(experiment, source, text, tmp_path):
    params = warm(experiment(text), source, skip=["model/embedding/.*"])
    said = dry_run(Request(params, "", ""), RunDirectory(tmp_path / "run"))
    line = next(line for line in said.splitlines() if line.startswith("first weights"))
    assert "weights from" in line
    assert "not requested: model/embedding/" in line
    assert not (tmp_path / "run").exists()
