"""What a model and a checkpoint do not share reads as few lines, by layer path."""

import pytest

from lingo.checkpoints.difference import difference


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
