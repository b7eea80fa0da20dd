"""A committed checkpoint is sound or not, of a model or not, and gives tensors and digests."""

import contextlib
import hashlib
import os
import shutil

import ml_dtypes
import numpy as np
import pytest

from lingo.checkpoints import checkpoint
from lingo.checkpoints.checkpoint import difference, digest, open_checkpoint, open_sound
from lingo.checkpoints.errors import (
    CheckpointMismatch,
    DamagedCheckpoint,
    DeletedCheckpoint,
    NoUsableCheckpoint,
)
from lingo.config.lazy import tf

DATA = "tensors.data-00000-of-00001"
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_it_says_and_gives_what_was_written(tmp_path, save, tensors):
    found = open_checkpoint(save(tmp_path, 20))
    assert (found.step, found.metadata, found.later_errors) == (20, {"seed": 1}, ())
    assert found.tensors["state/count"] == ((), "int64")
    assert found.num_bytes == sum(f.stat().st_size for f in found.path.glob("tensors*"))
    read = found.read(tensors())
    for name, value in tensors().items():
        np.testing.assert_array_equal(read[name], value)
    (part,) = found.read_slices(["weights/ffn/w"], [slice(1, 3), slice(2, None)])
    np.testing.assert_array_equal(part, tensors()["weights/ffn/w"][1:3, 2:])
    assert found.read_slices(["state/count"], []) == [7]


HARMS = {
    "truncate": lambda file, there: os.truncate(there, there.stat().st_size - 1),
    "grow": lambda file, there: there.write_bytes(file.read_bytes() + b"\0"),
    "delete": lambda file, there: there.unlink(),
    "link": lambda file, there: (there.unlink(), there.symlink_to(file)),
    "pipe": lambda file, there: (there.unlink(), os.mkfifo(there)),
}


@pytest.mark.parametrize("harm", [*HARMS, "flip"])
def test_a_file_that_is_not_what_was_written_is_found(tmp_path, save, flip, harm):
    found = open_checkpoint(save(tmp_path / "c", 2))
    found.verify()
    for name in found.manifest["files"]:
        file = shutil.copy(found.path / name, tmp_path / "copy")
        HARMS.get(harm, lambda file, there: flip(there, -1))(file, found.path / name)
        with pytest.raises(DamagedCheckpoint, match=f"damaged: {name}") as caught:
            found.verify()
        assert (caught.value.path, caught.value.file) == (found.path, name)
        with contextlib.nullcontext() if harm == "flip" else pytest.raises(DamagedCheckpoint):
            found.verify(content=False)
        (found.path / name).unlink(missing_ok=True)
        shutil.copy(file, found.path / name)
    found.verify()


def test_a_link_to_a_checkpoint_is_none(tmp_path, save):
    path = save(tmp_path, 1)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedCheckpoint, match="it is a link to elsewhere"):
        open_checkpoint(path)


def test_another_model_is_refused_whole_with_all_that_differs(tmp_path, save):
    found = open_checkpoint(save(tmp_path, 1))
    model = {
        "weights/ffn/w": ([3, 4], "float32"),
        "slots/m/ffn/w": ((3, 4), "float32"),
        "state/count": ((), "int64"),
    }
    found.require(model)
    with pytest.raises(CheckpointMismatch) as caught:
        found.require(model | {"weights/ffn/w": ([4, 4], "float32"), "weights/b": ((2,), "int8")})
    assert str(caught.value).splitlines() == [
        f"{found.path} is of another model:",
        "  missing b [2] int8",
        "  shape ffn/w: checkpoint [3, 4], model [4, 4]",
        "Nothing was read. `init_from` begins another run with the weights that they share.",
    ]
    assert caught.value.exit_code == 4


def test_reading_what_is_not_there_names_what_is_near(tmp_path, save):
    with pytest.raises(CheckpointMismatch, match="Did you mean 'weights/ffn/w'"):
        open_checkpoint(save(tmp_path, 1)).read(["weights/ffn/v"])


def test_damage_after_verification_is_found_by_the_bundle(tmp_path, save, tensors, flip):
    found = open_checkpoint(save(tmp_path, 1))
    flip(found.path / DATA, 10)
    with pytest.raises(DamagedCheckpoint, match="tensors"):
        found.read(tensors())


@pytest.mark.parametrize("file", [DATA, "tensors.index"])
@pytest.mark.parametrize("content", [b"", b"garbage", bytes(1000)])
def test_garbage_under_right_digests_is_damage_in_plain_words(
    tmp_path, save, tensors, reseal, file, content
):
    path = save(tmp_path, 1)
    (path / file).write_bytes(content)
    reseal(path)
    with pytest.raises(DamagedCheckpoint) as caught:
        open_sound(path).read(tensors())
    assert str(caught.value) == f"{path} is damaged: tensors: no tensors can be read from its bytes"


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_not_damaged(tmp_path, save, tensors):
    found = open_checkpoint(save(tmp_path, 1))
    shutil.rmtree(found.path)
    for read in (found.verify, lambda: found.read(tensors()), lambda: open_checkpoint(found.path)):
        with pytest.raises(DeletedCheckpoint, match="was deleted while it was read") as caught:
            read()
        assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tf.errors.ResourceExhaustedError, "there is no memory for it"),
        (tf.errors.UnknownError, "the disk or its permissions prevent it"),
    ],
)
def test_what_cannot_be_read_now_is_not_damaged(tmp_path, save, tensors, monkeypatch, kind, said):
    found = open_checkpoint(save(tmp_path, 1))

    def fail(*_):
        raise kind(None, None, "OOM when allocating [Op:RestoreV2]\nHint: If you want to see")

    monkeypatch.setattr(checkpoint, "restore", fail)
    with pytest.raises(NoUsableCheckpoint) as caught:
        found.read(tensors())
    message = f"{found.path} cannot be read now: tensors: {said}. Nothing was changed: try again."
    assert str(caught.value) == message


def test_a_shape_that_only_the_manifest_has_is_damage(tmp_path, save, rewrite):
    path = save(tmp_path, 1)
    rewrite(path, tensors={"weights/ffn/w": {"shape": [4, 3], "dtype": "float32"}})
    with pytest.raises(DamagedCheckpoint, match=r"weights/ffn/w has shape \[3, 4\]"):
        open_checkpoint(path).read(["weights/ffn/w"])


# ---- digests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same", [GRID, np.asfortranarray(GRID), GRID.astype(">f4"), GRID[:, ::-1][:, ::-1]]
)
def test_a_digest_is_of_type_shape_and_elements_in_any_order_of_memory(same):
    line = b"float32[2, 3]\n"
    assert digest(same) == hashlib.sha256(line + GRID.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        GRID.reshape(3, 2),
        GRID.astype(np.float64),
        GRID.view(np.int32),
        GRID + 1,
        GRID.astype(ml_dtypes.bfloat16),
        np.float32(0),
    ],
)
def test_another_type_shape_or_number_has_another_digest(other):
    assert digest(other) != digest(GRID)


def test_every_tensor_has_a_digest(tmp_path, save, tensors, monkeypatch):
    monkeypatch.setattr(checkpoint, "_GROUP_ELEMENTS", 12)
    expected = {name: digest(np.asarray(value)) for name, value in tensors().items()}
    assert dict(open_checkpoint(save(tmp_path, 1)).digests()) == expected


def model(*, layers=3, ffn="ffn", w_in="w_in", dim=4, stack="stack", slots=("m",), more=None):
    shapes = {f"{ffn}/{w_in}": (dim, 8), f"{ffn}/w_out": (8, dim), "norm/scale": (dim,)}
    weights = {
        f"model/{stack}/layers/{i}/{name}": (shape, "float32")
        for i in range(layers)
        for name, shape in shapes.items()
    }
    weights["model/table"] = ((256, dim), "float32")
    weights |= more or {}
    kinds = ["weights", *(f"slots/{slot}" for slot in slots)]
    return {f"{kind}/{name}": spec for kind in kinds for name, spec in weights.items()}


BIAS = {"model/head/bias": ((3,), "float32")}


@pytest.mark.parametrize(
    ("own", "its", "lines"),
    [
        (model(), model(), []),
        (
            model(),
            model(ffn="mlp"),
            [
                "missing model/stack/layers/0-2/ffn (w_in, w_out),"
                " unexpected model/stack/layers/0-2/mlp: renamed?"
            ],
        ),
        (
            model(),
            model(stack="body"),
            [
                "missing model/stack (9 tensors, such as layers/0/ffn/w_in),"
                " unexpected model/body: renamed?"
            ],
        ),
        (model(more=BIAS), model(), ["missing model/head (bias)"]),
        (
            model(layers=6),
            model(),
            ["missing model/stack/layers/3-5 (ffn/w_in, ffn/w_out, norm/scale)"],
        ),
        (
            model(dim=6),
            model(),
            [
                "shape model/stack/layers/0-2/ffn/w_in: checkpoint [4, 8], model [6, 8]",
                "shape model/stack/layers/0-2/ffn/w_out: checkpoint [8, 4], model [8, 6]",
                "shape model/stack/layers/0-2/norm/scale: checkpoint [4], model [6]",
                "shape model/table: checkpoint [256, 4], model [256, 6]",
            ],
        ),
        (
            model(slots=()) | {"weights/a": ((1,), "bfloat16")},
            model(slots=()) | {"weights/a": ((1,), "float32")},
            ["dtype a: checkpoint float32, model bfloat16"],
        ),
        (
            model(slots=("m", "v")),
            model(slots=("mean",)),
            [
                "missing slots/m of model/stack/layers/0/ffn/w_in and 9 more weights:"
                " another optimizer?",
                "missing slots/v of model/stack/layers/0/ffn/w_in and 9 more weights:"
                " another optimizer?",
                "unexpected slots/mean of model/stack/layers/0/ffn/w_in and 9 more weights:"
                " another optimizer?",
            ],
        ),
        (
            {"weights/a": ((1,), "float32"), "slots/m/a": ((1,), "float32")},
            {"weights/a": ((1,), "float32"), "slots/m/a": ((2,), "float32")},
            ["other slots/m of a: another optimizer?"],
        ),
        ({"state/moving_mean": ((1,), "float32")}, {}, ["missing state (moving_mean)"]),
        (
            {"weights/a": ((1,), "float32")},
            {"weights/a/b": ((1,), "float32")},
            ["missing a [1] float32", "unexpected a/b [1] float32"],
        ),
    ],
)
def test_a_difference_is_told_by_layer_path(own, its, lines):
    assert difference(model=own, checkpoint=its) == lines


def test_what_is_missing_has_a_near_name_though_its_shape_is_another():
    assert difference(model=model(), checkpoint=model(ffn="mlp", dim=6))[:2] == [
        "missing model/stack/layers/0-2/ffn (w_in, w_out)."
        " Did you mean 'model/stack/layers/*/mlp'?",
        "unexpected model/stack/layers/0-2/mlp (w_in, w_out)",
    ]


def test_tensors_that_only_look_alike_are_not_called_renamed():
    own = {"weights/bias": ((3,), "float32")}
    assert difference(model=own, checkpoint={"weights/scale": ((3,), "float32")}) == [
        "missing bias [3] float32",
        "unexpected scale [3] float32",
    ]


def test_layers_with_gaps_are_named_as_they_are():
    gaps = {f"weights/layers/{i}/w": ((1,), "float32") for i in (0, 1, 2, 5, 7)}
    there = {"weights/layers/norm": ((1,), "float32")}
    assert difference(model=gaps | there, checkpoint=there) == ["missing layers/0-2,5,7 (w)"]


def test_numbers_that_do_not_make_a_grid_have_lines_of_their_own():
    pairs = {f"weights/a/{i}/b/{j}": ((1,), "float32") for i, j in ((0, 0), (1, 1))}
    there = {f"weights/a/{i}/b/9": ((1,), "float32") for i in (0, 1)}
    assert difference(model=pairs | there, checkpoint=there) == [
        "missing a/0/b/0 [1] float32",
        "missing a/1/b/1 [1] float32",
    ]


def test_a_long_difference_is_cut():
    many = {f"weights/w{'x' * i}": ((i,), "float32") for i in range(50)}
    lines = difference(model=many, checkpoint={})
    assert len(lines) == 21
    assert lines[-1] == "... and 30 more"


def test_names_may_hold_braces():
    assert difference(model={"weights/{0}": ((1,), "float32")}, checkpoint={}) == [
        "missing {0} [1] float32"
    ]
