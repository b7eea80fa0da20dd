"""What a layer class owes: one table of duties, and of who is excused from which, and why.

A failure names the file to write in and what to write.
"""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.lazy import tf
from lingo.layers import Chain, Layer, Repeat, Stack, context
from lingo.layers.flops import Record
from lingo.layers.residual import ResidualCall
from lingo.layers.wrap.reweighted import is_matrix
from lingo.learner.state import initial_value
from tasks.bert.model import Bert, TypeEmbedding
from tasks.click.model import Mlp
from tasks.lm.model import LanguageModel
from tasks.mt.gnmt import AttentionDecoder, RecurrentEncoder
from tasks.seq2seq.model import EncoderDecoder
from tests.lingo.layers.test_conformance import CASES, ROOT, Case, layer_classes
from tests.lingo.runtimes.mesh.test_layers import CASES as MODELS
from tests.lingo.runtimes.mesh.test_split_images import LAYERS, VOLUME_LAYERS

IMAGE_DIMS = (4, 5)  # of a batch of images, and of volumes
SPLIT_IMAGES = {params.cls for params in (*LAYERS.values(), *VOLUME_LAYERS.values())}
SPLIT_SEQUENCES = {
    type(layer) for made, mesh in MODELS if "sequence" in mesh for layer in made().build().tree()
}

PARTS = "the layers inside say it all"
LOOKUP = "its table is looked up, not multiplied"
IN_TURN = "positions are computed in turn: a device has all of them"


class Duty(NamedTuple):
    """What some classes owe.

    Attributes:
        owes: whether an example of a class obliges it.
        gives: whether the class does what it owes.
        write: what is to be written, after the file; `{file}` is that of the class.
        excused: classes that do not, and why.
    """

    owes: Callable[[Case], bool]
    gives: Callable[[type[Layer], Case], bool]
    write: str
    excused: dict[type[Layer], str] = {}


def first_shape(case: Case) -> Any:
    """Returns the shape of the first input, or those of its tensors."""
    value = next(iter(case.inputs.values()))
    if isinstance(value, tuple):
        return tuple(one.shape for one in value)
    return getattr(value, "shape", ())


def single_shape(case: Case) -> Any:
    shape = first_shape(case)
    return shape[0] if shape and isinstance(shape[0], tuple) else shape


def takes_images(case: Case) -> bool:
    return len(single_shape(case)) in IMAGE_DIMS


def has_matrix(case: Case) -> bool:
    return any(is_matrix(spec) for spec in case.params.build().declarations())


def is_first_with_images(case: Case) -> bool:
    """Whether it takes images, and no layer inside is tested with split ones."""
    _, *inside = case.params.build().tree()
    return takes_images(case) and not {type(layer) for layer in inside} & SPLIT_IMAGES


def says_residuals(cls: type[Layer], case: Case) -> bool:
    if cls.residuals is Layer.residuals:
        return False
    call = ResidualCall(single_shape(case), Record())
    return case.params.build().residuals(call) is not None


def says_shape(cls: type[Layer], case: Case) -> bool:
    if not hasattr(cls, "output_shape"):
        return False
    layer = case.params.build()
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    state = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.states().items()}
    inputs = tf.nest.map_structure(tf.constant, case.inputs)
    result, _ = context.apply(layer, weights, call={"state": state}, **inputs)
    shapes = tf.nest.map_structure(lambda y: tuple(y.shape), result)
    return shapes == tf.nest.map_structure(lambda n: n, layer.output_shape(first_shape(case)))


DUTIES: dict[str, Duty] = {
    "residuals": Duty(
        owes=lambda case: True,
        gives=says_residuals,
        write="{file}: `residuals`, what the gradient keeps of its forward pass, [] for nothing",
        excused={
            nn.Keras: "the layers of Keras do not say it: plans name it",
            **dict.fromkeys(
                (
                    *(models.AmoebaNetStem, models.AttentionNorm, models.AuxiliaryHead),
                    *(
                        models.ConvNorm3D,
                        models.ExtraMap,
                        models.FactorizedReduction,
                        models.MBConv,
                    ),
                    *(
                        models.NormalCell,
                        models.NormalCellB,
                        models.ReductionCell,
                        models.ReductionCellB,
                    ),
                    *(
                        nn.PatchEmbedding,
                        models.ReluConvNorm,
                        nn.SeparableConv2D,
                        models.SeparableUnit,
                    ),
                    *(models.UNet3D, nn.TransformerLayer),
                    *(models.Backbone, models.FeaturePyramid, models.MaskRcnn),
                    *(Chain, Repeat, Stack, nn.Pipeline, nn.PipelinedChain),
                    *(Bert, LanguageModel, EncoderDecoder, Mlp),
                    *(RecurrentEncoder, AttentionDecoder),
                    nn.BidirectionalRecurrent,
                    *(models.LasEncoder, models.LasDecoder, models.PredictionNetwork),
                    *(models.ConformerEncoder, models.ConformerLayer),
                ),
                PARTS,
            ),
        },
    ),
    "flops": Duty(
        owes=lambda case: bool(case.params.cls.products),
        gives=lambda cls, case: cls.flops is not Layer.flops,
        write="{file}: `flops`, the operations of its products",
    ),
    "products": Duty(
        owes=has_matrix,
        gives=lambda cls, case: bool(cls.products),
        write="{file}: `products`, and `operands` where `__call__` multiplies them",
        excused={
            **dict.fromkeys((nn.Embedding, nn.EmbeddingTables, nn.RelativeBias), LOOKUP),
            **dict.fromkeys((nn.LearnedPositions, nn.LearnedImagePositions, TypeEmbedding), LOOKUP),
            EncoderDecoder: "its matrix is the bias of positions, which is looked up",
            nn.Lora: "it adds to the matrices of the layer inside, which multiplies them",
        },
    ),
    "output_shape": Duty(
        owes=takes_images,
        gives=says_shape,
        write="{file}: `output_shape`, the shape of the result of its example",
    ),
    "split of images": Duty(
        owes=is_first_with_images,
        gives=lambda cls, case: cls in SPLIT_IMAGES,
        write="tests/lingo/runtimes/mesh/test_split_images.py: an example in `LAYERS`",
        excused={
            models.AmoebaNetHead: "its mean is that of ImageHead",
            models.BoxHead: "its regions are whole on each device",
            nn.ImageAttention: "it is in a network of test_images.py, which splits images",
        },
    ),
    "split of sequences": Duty(
        owes=lambda case: case.stackable and not case.params.cls.positionwise,
        gives=lambda cls, case: cls in SPLIT_SEQUENCES,
        write="tests/lingo/runtimes/mesh/test_layers.py: a model in `CASES` with `sequence`",
        excused={
            **dict.fromkeys((nn.Gru, nn.Lstm, nn.RecurrentLayer), IN_TURN),
            nn.MoE: "it splits groups of tokens: `experts` of test_layers.py",
            nn.Keras: "what its layers compute is not known",
        },
    ),
    "decoding": Duty(
        owes=lambda case: case.stackable,
        gives=lambda cls, case: cls.step is not Layer.step or cls.positionwise,
        write="{file}: `positionwise = True`, or `step`",
        excused={nn.Keras: "what its layers compute is not known"},
    ),
}


def missing(duty: Duty, cls: type[Layer]) -> str:
    """Returns what is to be written where, "" if the class gives what it owes."""
    case = CASES[cls]
    if cls in duty.excused or not duty.owes(case) or duty.gives(cls, case):
        return ""
    file = pathlib.Path(inspect.getfile(cls)).relative_to(ROOT)
    return f"{duty.write.format(file=file)} ({cls.__name__})"


def test_every_layer_class_has_an_example() -> None:
    without = sorted(cls.__name__ for cls in layer_classes() ^ set(CASES))
    assert without == [], "tests/lingo/layers/test_conformance.py: an entry of `CASES`"


@pytest.mark.parametrize("name", DUTIES)
def test_every_layer_class_gives_what_it_owes(name: str) -> None:
    assert [text for cls in CASES if (text := missing(DUTIES[name], cls))] == []


def owners(cls: type[Layer]) -> list[type]:
    """Returns the class and its bases, as far as they say what its gradient keeps."""
    own = cls.__mro__[: cls.__mro__.index(Layer)]
    return [base for base in own if "residuals" in vars(base)]


@pytest.mark.parametrize("cls", [cls for cls in CASES if owners(cls)], ids=lambda cls: cls.__name__)
def test_without_its_residuals_a_class_fails_with_the_name_of_its_file(
    cls: type[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in owners(cls):
        monkeypatch.delattr(base, "residuals")
    file = pathlib.Path(inspect.getfile(cls)).relative_to(ROOT)
    assert missing(DUTIES["residuals"], cls).startswith(f"{file}: `residuals`")


@pytest.mark.parametrize("name", DUTIES)
def test_who_gives_is_not_excused(name: str) -> None:
    duty = DUTIES[name]
    assert [cls for cls in duty.excused if duty.gives(cls, CASES[cls])] == []
