"""What every layer class promises, tested on every layer class there is.

A new layer class makes `test_owes.py` fail until it has an example here.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.inspection.conformance import layer_call
from lingo.layers import Chain, Layer, Linear, Lora, MoE, Remat, Repeat, Stack, context
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.learner.state import initial_value
from lingo.mesh.rules import RECIPES, Table, parts, split
from lingo.mesh.topology import AXES, topology
from lingo.ops import random
from tasks.asr.attention import AttentionRecognition
from tasks.asr.ctc import CtcRecognition
from tasks.asr.transducer import TransducerRecognition
from tasks.bert.classification import TextClassification
from tasks.bert.model import Bert, MaskedHead, TypeEmbedding
from tasks.bert.question_task import QuestionAnswering
from tasks.bert.task import BertPretraining
from tasks.click.model import Dlrm, Mlp
from tasks.click.task import ClickPrediction
from tasks.detection.instance_segmentation import InstanceSegmentation
from tasks.detection.task import ObjectDetection
from tasks.gan.task import Discriminator, Generator, ImageGan
from tasks.image.segmentation import Segmentation
from tasks.image.task import ImageClassification
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tasks.mt.gnmt import AttentionDecoder, RecurrentEncoder
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import Distillation, SequenceToSequence
from tasks.table.task import TableModel, TablePrediction
from tests.lingo.layers.keras_models import feed_forward
from tests.processor import HAS_AVX512

ROOT = pathlib.Path(__file__).parents[3]
B, T, D = 2, 3, 8
FLOAT32_ROUNDING = 2.0**-24
BFLOAT16_ROUNDING = 2.0**-8  # relative, of one rounding to 8 bits
DEPTH = 4  # layers one after the other in the deepest example: embedding, two of a stack, head


class Case(NamedTuple):
    """An example of a layer class.

    Attributes:
        params: small parameters.
        inputs: the inputs of a call, as NumPy arrays.
        method: the method that computes.
        stackable: whether it maps [B, T, D] to [B, T, D], so that it can stand in a stack.
        num_terms: how many terms a gradient adds up, where their rounding is more than 1e-5.
        frozen: what begins the names of all weights that no gradient reaches; () for none.
    """

    params: Params
    inputs: dict[str, Any]
    method: str = "__call__"
    stackable: bool = False
    num_terms: int = 0
    frozen: tuple[str, ...] = ()


def floats(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randn(*shape).astype("f")


def integers(limit: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(1, limit, shape).astype("i")


def routed(router: type[nn.Router], **fields: Any) -> Case:
    """Returns a mixture with a router, which gives no tensor of floats by itself."""
    mixture = MoE.params(dim=D, num_experts=4, min_capacity=1, router=router.params(**fields))
    return Case(mixture, {"x": floats(B, T, D), "token_ids": integers(7, B, T)})


def stacked(params: Params) -> Case:
    return Case(params, {"x": floats(B, T, D)}, stackable=True)


def smooth(params: Params) -> Params:
    """Returns a network whose batch norms enlarge no rounding of small variances."""
    params.all(nn.BatchNorm).set(epsilon=0.1)
    return params


POSITIONS = np.tile(np.arange(T, dtype="i"), (B, 1))
ATTENTION = nn.Attention.params(num_heads=2, dropout_rate=0.2, positions=nn.Rotary)
TRANSFORMER = nn.TransformerLayer.params(dim=D, dropout_rate=0.2, attention=ATTENTION)
MODEL = LanguageModel.params(dim=D, stack=Stack.params(layer=TRANSFORMER.copy(), num_layers=2))
TOKENS = {
    "tokens": integers(7, B, T),
    "targets": integers(7, B, T),
    "segments": np.array([[1, 1, 2], [1, 1, 0]], "i"),
    "positions": np.array([[0, 1, 0], [0, 1, 0]], "i"),
    "weights": np.ones(B, "f"),
}
SOURCE = {
    "source_tokens": integers(7, B, 4),
    "source_segments": np.array([[1, 1, 2, 2], [1, 1, 1, 0]], "i"),
    "source_positions": np.array([[0, 1, 0, 1], [0, 1, 2, 0]], "i"),
}
DOCUMENTS = {
    "tokens": TOKENS["tokens"],
    "segments": TOKENS["segments"],
    "position_ids": TOKENS["positions"],
}
BERT = Bert.params(dim=D)
BERT.all(nn.Attention).set(num_heads=2)
BERT.all(nn.LearnedPositions).set(max_length=T)
BERT.all(nn.LayerNorm).set(epsilon=0.1)  # at first the sum of embeddings is as small as 0.03
MASKED = {
    "types": np.array([[0, 1, 1], [0, 0, 1]], "i"),
    "masked_positions": np.array([[2, 0], [1, 0]], "i"),
    "masked_ids": integers(7, B, 2),
    "masked_weights": np.array([[1, 1], [1, 0]], "f"),
    "is_random": np.array([0, 1], "i"),
}
SHARED_BIAS = nn.RelativeBias.params(num_buckets=4, max_distance=3, shared=True)
PAIRS = EncoderDecoder.params(dim=D, dropout_rate=0.2)
PAIRS.all(DotProductAttention).set(num_heads=2)
PAIRS.all(nn.Attention).set(positions=SHARED_BIAS)
EXPERT = nn.FeedForward.params(hidden_dim=5, gated=True, use_bias=True, dropout_rate=0.2)
MIXTURE = MoE.params(expert=EXPERT, num_experts=4, min_capacity=1)
TABLES = nn.EmbeddingTables.params(vocab_sizes=(4, 3), dim=D)
CLICKS = {"numbers": floats(B, T), "categories": integers(3, B, 2)}
DLRM = Dlrm.params(bottom=Mlp.params(output_dims=(5, D)), top=Mlp.params(output_dims=(5, 1)))
IMAGES = {"x": floats(B, 6, 5, D)}
VOLUMES = {"x": floats(B, 4, 3, 2, D)}
PAIR = {"pair": (floats(B, 6, 5, D), floats(B, 12, 10, 4))}
STATE = {"state": PAIR["pair"]}
SAME_SIZE = {"pair": (floats(B, 6, 5, D), floats(B, 6, 5, 4))}
CELL = {"dim": D, "before_dim": 4, "num_filters": 4}
NETWORK = [
    models.AmoebaNetStem.params(dim=1, output_dim=4),
    models.AmoebaNetHead.params(dim=4, num_classes=3),
]
PICTURES = {"images": floats(B, 6, 5, 1), "labels": integers(3, B), "weights": np.ones(B, "f")}
VOXELS = {"images": 0.1 * VOLUMES["x"], "labels": integers(3, B, 4, 3, 2)}
DETECTOR = models.Ssd.params(
    trunk=smooth(nn.ConvNorm.params(dim=1, output_dim=4, stride=2)),
    extras=[models.ExtraMap.params(dim=4, hidden_dim=5, output_dim=4)],
    scales=(2.0, 3.0, 5.0),
    ratios=((2.0,), ()),
)
SCENES = {
    "images": floats(B, 6, 5, 1),
    "boxes": np.array([[[0, 0, 0.5, 0.4], [0.2, 0.3, 1, 1]], [[0.4, 0.5, 0.7, 0.9]] * 2], "f"),
    "box_labels": np.array([[1, 2], [3, 0]], "i"),
    "weights": np.ones(B, "f"),
}
PYRAMID = {"maps": (floats(B, 5, 4, 3), floats(B, 3, 2, D))}
BACKBONE = models.Backbone.params(
    layers=[
        smooth(nn.ConvNorm.params(dim=1, output_dim=3)),
        smooth(nn.ConvNorm.params(dim=3, output_dim=D, stride=2)),
    ],
    first_level=0,
)
MASK_RCNN = models.MaskRcnn.params(
    trunk=BACKBONE,
    pyramid=models.FeaturePyramid.params(output_dim=4, num_extra=0),
    region_head=models.RegionHead.params(hidden_dim=4),
    box_head=models.BoxHead.params(size=2, hidden_dim=4),
    mask_head=models.MaskHead.params(size=2, hidden_dim=4, num_convs=1),
    anchor_scale=3.0,
)
MASKS = (floats(B, 2, 3, 3) > 0).astype(np.uint8)
MASKED_SCENES = {**SCENES, "masks": MASKS, "rows": np.arange(B, dtype="i")}
FINGERPRINTS = np.array([[[3, 5], [-1, -1]], [[-1, -1], [4, 2]]], "i")
ROWS = {"numbers": floats(B, T), "categories": FINGERPRINTS}
CAUSAL_CONV = smooth(
    models.ConformerConv.params(
        kernel=2, is_causal=True, norm=nn.BatchNorm.params(statistics_over=1)
    )
)
CONFORMER = models.ConformerLayer.params(
    attention=ATTENTION.copy().set(positions=nn.TransformerXl),
    conv=CAUSAL_CONV,
    norm=nn.LayerNorm.params(epsilon=0.1),
    dropout_rate=0.2,
)
SPEECH = {
    "x": floats(B, 9, 6),
    "segments": np.array([[1] * 9, [1] * 6 + [0] * 3], "i"),
}
UTTERANCES = {
    "features": SPEECH["x"],
    "num_frames": np.array([9, 6], "i"),
    "labels": np.array([[1, 2], [3, 0]], "i"),
    "num_labels": np.array([2, 1], "i"),
    "weights": np.ones(B, "f"),
}
HEAD_INPUTS = {"x": floats(B, T, D), "embedding": floats(7, D)}


def recognizer(task: Params) -> Params:
    """Returns a task that recognizes `UTTERANCES`."""
    stack = Stack.params(layer=CONFORMER.copy())
    encoder = models.ConformerEncoder.params(output_dim=D, stack=stack)
    return task.set(encoder=encoder, feature_dim=6, vocab_size=4, max_labels=2)


CASES: dict[type[Layer], Case] = {
    nn.Alibi: Case(
        nn.Alibi.params(num_heads=2),
        {"query_positions": POSITIONS, "key_positions": POSITIONS},
        method="bias",
    ),
    models.AmoebaNetHead: Case(models.AmoebaNetHead.params(dim=D, num_classes=3), PAIR),
    models.AmoebaNetStem: Case(models.AmoebaNetStem.params(dim=D, output_dim=4), IMAGES),
    nn.Attention: stacked(ATTENTION.copy().set(dim=D)),
    models.AttentionBlock: Case(
        smooth(models.AttentionBlock.params(dim=D, output_dim=16, stride=2, image=(6, 5))), IMAGES
    ),
    models.AuxiliaryHead: Case(
        smooth(models.AuxiliaryHead.params(dim=D, image=(6, 5), num_classes=3, widths=(8, 16))),
        STATE,
    ),
    models.AttentionNorm: Case(
        smooth(models.AttentionNorm.params(dim=D, output_dim=4, stride=2, image=(6, 5))), IMAGES
    ),
    nn.AveragePool: Case(nn.AveragePool.params(window=(3, 2)), IMAGES),
    models.Backbone: Case(BACKBONE, {"x": floats(B, 6, 5, 1)}),
    models.BasicBlock: Case(models.BasicBlock.params(dim=D, output_dim=4, stride=2), IMAGES),
    nn.BatchNorm: stacked(nn.BatchNorm.params(dim=D, statistics_over=1)),
    nn.BidirectionalRecurrent: Case(
        nn.BidirectionalRecurrent.params(dim=D, hidden_dim=5),
        {"x": floats(B, T, D), "segments": np.array([[1, 1, 2], [1, 1, 0]], "i")},
    ),
    Bert: Case(
        BERT.copy().set(vocab_size=7, pooler=None),
        DOCUMENTS | {"types": MASKED["types"]},
    ),
    models.BoxHead: Case(
        models.BoxHead.params(dim=D, num_classes=3, size=2, hidden_dim=5),
        {"x": floats(B, 3, 2, 2, D)},
    ),
    models.BottleneckBlock: Case(models.BottleneckBlock.params(dim=D, output_dim=D), IMAGES),
    Chain: Case(smooth(Chain.params(layers=NETWORK)), {"x": PICTURES["images"]}),
    nn.Bucketize: Case(nn.Bucketize.params(dim=T, num_buckets=3), {"x": floats(B, T)}),
    nn.ClassToken: Case(nn.ClassToken.params(dim=D), {"x": floats(B, T, D)}),
    nn.Conv2D: Case(nn.Conv2D.params(dim=D, output_dim=4, stride=2, use_bias=True), IMAGES),
    nn.Conv3D: Case(
        nn.Conv3D.params(dim=D, output_dim=4, kernel=(3, 2, 1), stride=2, use_bias=True), VOLUMES
    ),
    models.ConformerConv: stacked(CAUSAL_CONV.copy().set(dim=D)),
    models.ConformerEncoder: Case(
        models.ConformerEncoder.params(
            dim=6, output_dim=D, stack=Stack.params(layer=CONFORMER), dropout_rate=0.2
        ),
        SPEECH,
    ),
    models.ConformerLayer: stacked(CONFORMER.copy().set(dim=D)),
    models.ConvSubsampling: Case(
        models.ConvSubsampling.params(
            dim=6, channels=4, output_dim=5, norm=smooth(nn.BatchNorm.params(statistics_over=1))
        ),
        SPEECH,
    ),
    models.ConvNorm3D: Case(models.ConvNorm3D.params(dim=D, output_dim=4), VOLUMES),
    nn.UpConv3D: Case(nn.UpConv3D.params(dim=D, output_dim=4), VOLUMES),
    nn.MaxPool3D: Case(nn.MaxPool3D.params(), VOLUMES),
    nn.Resize: Case(nn.Resize.params(size=(3, 7)), IMAGES),
    models.UNet3D: Case(
        smooth(models.UNet3D.params(dim=D, num_classes=3, width=2, num_levels=2)),
        VOLUMES,
        num_terms=B * 4 * 3 * 2,  # voxels
    ),
    nn.AdditiveAttention: Case(
        nn.AdditiveAttention.params(dim=D, memory_dim=5, hidden_dim=4),
        {"x": floats(B, T, D), "memory": floats(B, 4, 5)},
    ),
    AttentionDecoder: Case(
        AttentionDecoder.params(dim=D, num_layers=3, dropout_rate=0.2),
        {"x": floats(B, T, D), "memory": floats(B, 4, D)},
    ),
    RecurrentEncoder: Case(
        RecurrentEncoder.params(dim=D, num_layers=3, dropout_rate=0.2), {"x": floats(B, T, D)}
    ),
    BertPretraining: Case(
        BertPretraining.params(model=BERT, vocab_size=7), {"batch": TOKENS | MASKED}, method="loss"
    ),
    QuestionAnswering: Case(
        QuestionAnswering.params(model=BERT.copy().set(pooler=None), vocab_size=7),
        {"batch": TOKENS | MASKED | {"starts": integers(T, B), "ends": integers(T, B)}},
        method="loss",
    ),
    TextClassification: Case(
        TextClassification.params(model=BERT, vocab_size=7, class_names=("a", "b", "c")),
        {"batch": TOKENS | MASKED | {"labels": integers(3, B)}},
        method="loss",
    ),
    nn.Conv1D: Case(
        nn.Conv1D.params(dim=D, output_dim=4, dilation=2, use_bias=True), {"x": floats(B, 5, D)}
    ),
    nn.ConvNorm: Case(nn.ConvNorm.params(dim=D, output_dim=4), IMAGES),
    models.ConvPool: Case(models.ConvPool.params(dim=D, output_dim=4, dropout_rate=0.2), IMAGES),
    nn.CrossAttention: Case(
        nn.CrossAttention.params(dim=D, num_heads=2, memory_dim=5),
        {"x": floats(B, T, D), "memory": floats(B, 4, 5)},
    ),
    nn.DepthwiseConv1D: stacked(
        nn.DepthwiseConv1D.params(dim=D, kernel=2, is_causal=True, use_bias=True)
    ),
    nn.DepthwiseConv2D: Case(
        nn.DepthwiseConv2D.params(dim=D, multiplier=2, stride=2, use_bias=True), IMAGES
    ),
    ClickPrediction: Case(
        ClickPrediction.params(model=DLRM, num_numbers=T, vocab_sizes=(4, 3)),
        {"batch": {**CLICKS, "labels": np.array([1, 0], "i"), "weights": np.ones(B, "f")}},
        method="loss",
    ),
    Dlrm: Case(DLRM.copy().set(num_numbers=T, vocab_sizes=(4, 3)), CLICKS),
    nn.Dropout: stacked(nn.Dropout.params(rate=0.5)),
    nn.Embedding: Case(nn.Embedding.params(vocab_size=7, dim=D), {"ids": integers(7, B, T)}),
    nn.EmbeddingTables: Case(TABLES, {"ids": integers(3, B, 2)}),
    EncoderDecoder: Case(
        PAIRS.copy().set(vocab_size=7), DOCUMENTS | {"source_tokens": SOURCE["source_tokens"]}
    ),
    models.ExtraMap: Case(models.ExtraMap.params(dim=D, hidden_dim=5, output_dim=4), IMAGES),
    nn.ExpertChoiceRouter: routed(nn.ExpertChoiceRouter, z_loss=0.1),
    models.FactorizedReduction: Case(
        models.FactorizedReduction.params(dim=D, output_dim=4), IMAGES
    ),
    models.FeaturePyramid: Case(
        smooth(
            models.FeaturePyramid.params(
                dims=(3, D), output_dim=4, norm=nn.BatchNorm.params(statistics_over=1)
            )
        ),
        PYRAMID,
    ),
    nn.FeedForward: stacked(nn.FeedForward.params(dim=D, hidden_dim=5, gated=True, use_bias=True)),
    nn.GShardRouter: routed(nn.GShardRouter),
    nn.GroupNorm: Case(nn.GroupNorm.params(dim=D, num_groups=2), IMAGES),
    nn.Gru: stacked(nn.Gru.params(dim=D)),
    nn.HashRouter: routed(nn.HashRouter),
    nn.ImageAttention: Case(
        nn.ImageAttention.params(dim=D, output_dim=6, num_heads=2, image=(6, 5)), IMAGES
    ),
    nn.ImageHead: Case(nn.ImageHead.params(dim=D, num_classes=3, dropout_rate=0.2), IMAGES),
    ImageClassification: Case(
        ImageClassification.params(
            model=smooth(Chain.params(layers=NETWORK)),
            num_classes=3,
            image_shape=(6, 5, 1),
            label_smoothing=0.1,
            flip_rate=0.5,
        ),
        {"batch": PICTURES},
        method="loss",
    ),
    Generator: Case(
        Generator.params(latent_dim=T, image_shape=(4, 4, 1), num_filters=8),
        {"latents": floats(B, T)},
    ),
    Discriminator: Case(
        Discriminator.params(image_shape=(4, 4, 1), num_filters=2), {"x": floats(B, 4, 4, 1)}
    ),
    ImageGan: Case(
        ImageGan.params(
            generator=Generator.params(num_filters=2),
            discriminator=Discriminator.params(num_filters=2),
            image_shape=(4, 4, 1),
            latent_dim=T,
        ),
        {"batch": {"images": floats(B, 4, 4, 1), "weights": np.ones(B, "f")}},
        method="loss",
    ),
    LanguageModel: Case(MODEL.copy().set(vocab_size=7), DOCUMENTS),
    LanguageModeling: Case(
        LanguageModeling.params(model=MODEL, vocab_size=7, z_loss=1e-3, chunk_size=2),
        {"batch": TOKENS},
        method="loss",
        num_terms=B * T * D * DEPTH,
    ),
    nn.Normalize: stacked(nn.Normalize.params(dim=D)),
    nn.OneHot: Case(nn.OneHot.params(sizes=(4, 3)), {"ids": integers(3, B, 2)}),
    nn.Vocabulary: Case(nn.Vocabulary.params(sizes=(2, 3)), {"x": FINGERPRINTS}),
    TableModel: Case(
        TableModel.params(
            num_numbers=T, category_sizes=(2, 3), output_dim=4, hidden=Mlp.params(output_dims=(5,))
        ),
        ROWS,
    ),
    CtcRecognition: Case(
        recognizer(CtcRecognition.params()),
        {"batch": UTTERANCES},
        method="loss",
    ),
    AttentionRecognition: Case(
        recognizer(
            AttentionRecognition.params(decoder=models.LasDecoder.params(dim=D, hidden_dim=4))
        ),
        {"batch": UTTERANCES},
        method="loss",
    ),
    TransducerRecognition: Case(
        recognizer(
            TransducerRecognition.params(
                prediction=models.PredictionNetwork.params(dim=5, hidden_dim=4),
                joint=models.FramewiseJoint.params(hidden_dim=4),
            )
        ),
        {"batch": UTTERANCES},
        method="loss",
    ),
    TablePrediction: Case(
        TablePrediction.params(
            model=TableModel.params(hidden=Mlp.params(output_dims=(5,))),
            num_numbers=T,
            category_sizes=(2, 3),
        ),
        {"batch": ROWS | {"targets": floats(B), "weights": np.ones(B, "f")}},
        method="loss",
    ),
    models.FramewiseJoint: Case(
        models.FramewiseJoint.params(dim=D, label_dim=5, hidden_dim=4, vocab_size=7),
        {"x": floats(B, T, D), "texts": floats(B, 4, 5), "labels": integers(6, B, 3)},
        method="score_labels",
    ),
    models.JointNetwork: Case(
        models.JointNetwork.params(dim=D, label_dim=5, hidden_dim=4, vocab_size=7),
        {"x": floats(B, T, D), "labels": floats(B, 4, 5)},
    ),
    models.LasDecoder: Case(
        models.LasDecoder.params(vocab_size=7, dim=D, memory_dim=5, hidden_dim=4),
        {
            "tokens": TOKENS["tokens"],
            "memory": floats(B, 4, 5),
            "memory_segments": SOURCE["source_segments"],
        },
    ),
    models.LasEncoder: Case(
        smooth(
            models.LasEncoder.params(
                dim=6,
                hidden_dim=4,
                num_layers=2,
                subsampling=models.ConvSubsampling.params(channels=4, use_bias=False),
            )
        ),
        SPEECH,
    ),
    models.PredictionNetwork: Case(
        models.PredictionNetwork.params(vocab_size=7, dim=5, hidden_dim=4, num_layers=2),
        {"tokens": TOKENS["tokens"]},
    ),
    InstanceSegmentation: Case(
        InstanceSegmentation.params(
            model=MASK_RCNN,
            num_classes=3,
            image_shape=(6, 5, 1),
            num_anchors=12,
            max_per_level=9,
            num_proposals=9,
            num_regions=8,
        ),
        {"batch": MASKED_SCENES},
        method="loss",
    ),
    nn.LayerNorm: stacked(nn.LayerNorm.params(dim=D)),
    nn.LearnedImagePositions: Case(
        nn.LearnedImagePositions.params(dim=D, grid=(1, T)), {"x": floats(B, T, D)}
    ),
    nn.LearnedPositions: Case(
        nn.LearnedPositions.params(max_length=T, dim=D), {"position_ids": POSITIONS}
    ),
    nn.LingvoRouter: routed(nn.LingvoRouter, policy="sampling"),
    nn.Keras: stacked(nn.Keras.params(factory=feed_forward)),
    Linear: stacked(Linear.params(dim=D, output_dim=D, use_bias=True)),
    Lora: stacked(Lora.params(layer=EXPERT.copy().set(dim=D), rank=1)),
    nn.Lstm: stacked(nn.Lstm.params(dim=D)),
    models.MBConv: Case(
        smooth(models.MBConv.params(dim=D, output_dim=D, expansion=2, drop_path_rate=0.5)), IMAGES
    ),
    MaskedHead: Case(
        MaskedHead.params(dim=D, vocab_size=7),
        HEAD_INPUTS,
        num_terms=B * T * D,
    ),
    models.MaskHead: Case(
        models.MaskHead.params(dim=D, num_classes=3, size=2, hidden_dim=5, num_convs=1),
        {"x": floats(B, 3, 2, 2, D)},
    ),
    models.MaskRcnn: Case(
        MASK_RCNN.copy().set(num_classes=3, image_shape=(6, 5, 1)),
        {"x": SCENES["images"]},
        frozen=("box_head/", "mask_head/"),  # of `classify` and `segment`
    ),
    nn.MaxPool: Case(nn.MaxPool.params(window=(3, 2)), IMAGES),
    Mlp: Case(Mlp.params(dim=T, output_dims=(5, 4), activate_last=False), {"x": floats(B, T)}),
    MoE: stacked(MIXTURE.copy().set(dim=D)),
    models.NormalCell: Case(
        smooth(models.NormalCell.params(**CELL)),
        SAME_SIZE,
        num_terms=B * 6 * 5 * D,
    ),
    models.NormalCellB: Case(
        smooth(models.NormalCellB.params(**CELL, drop_path_rate=0.2)), SAME_SIZE
    ),
    ObjectDetection: Case(
        ObjectDetection.params(model=DETECTOR, num_classes=3, image_shape=(6, 5, 1)),
        {"batch": SCENES},
        method="loss",
    ),
    nn.PatchEmbedding: Case(
        nn.PatchEmbedding.params(dim=1, output_dim=D, patch=2), {"x": floats(B, 4, 6, 1)}
    ),
    nn.PatchHead: Case(
        nn.PatchHead.params(dim=D, num_classes=3, hidden_dim=5), {"x": floats(B, T, D)}
    ),
    nn.Pipeline: Case(
        nn.Pipeline.params(
            layer=Linear.params(dim=D, output_dim=D, use_bias=True),
            num_layers=2,
            num_stages=2,
            num_micro_batches=2,
        ),
        {"x": floats(B, T, D)},
    ),
    nn.PipelinedChain: Case(
        smooth(nn.PipelinedChain.params(layers=NETWORK, num_stages=2, num_micro_batches=2)),
        {"x": PICTURES["images"]},
    ),
    nn.RecurrentLayer: stacked(
        nn.RecurrentLayer.params(dim=D, network=nn.Lstm.params(hidden_dim=5))
    ),
    models.RegionHead: Case(
        models.RegionHead.params(dim=4, num_shapes=3, hidden_dim=5),
        {"maps": (floats(B, 5, 4, 4), floats(B, 3, 2, 4))},
    ),
    nn.RelativeBias: Case(
        nn.RelativeBias.params(num_heads=2, num_buckets=2, max_distance=3),
        {"query_positions": POSITIONS, "key_positions": POSITIONS},
        method="bias",
    ),
    models.ReductionCell: Case(
        smooth(models.ReductionCell.params(**CELL, after_reduction=True)), PAIR
    ),
    models.ReductionCellB: Case(
        smooth(models.ReductionCellB.params(**CELL, after_reduction=True)), PAIR
    ),
    models.ReluConvNorm: Case(
        models.ReluConvNorm.params(dim=D, output_dim=4, narrow=[(3, 3)]), IMAGES
    ),
    nn.Quantized: stacked(nn.Quantized.params(layer=EXPERT.copy().set(dim=D))),
    Remat: stacked(Remat.params(layer=EXPERT.copy().set(dim=D))),
    Repeat: stacked(Repeat.params(layer=EXPERT.copy().set(dim=D), num_layers=2)),
    nn.RmsNorm: stacked(nn.RmsNorm.params(dim=D)),
    nn.Rotary: Case(
        nn.Rotary.params(head_dim=4),
        {"heads": [floats(B, T, 2, 4), floats(B, T, 1, 4)], "position_ids": POSITIONS},
        method="rotate",
    ),
    Distillation: Case(
        Distillation.params(model=PAIRS, teacher=PAIRS, vocab_size=7),
        {"batch": TOKENS | SOURCE},
        method="loss",
        frozen=("teacher/",),
    ),
    SequenceToSequence: Case(
        SequenceToSequence.params(model=PAIRS, vocab_size=7, z_loss=1e-3, chunk_size=2),
        {"batch": TOKENS | SOURCE},
        method="loss",
    ),
    Segmentation: Case(
        Segmentation.params(
            model=nn.Conv3D.params(dim=D, output_dim=3), num_classes=3, volume_shape=(4, 3, 2, D)
        ),
        {"batch": {**VOXELS, "weights": np.ones(B, "f")}},
        method="loss",
    ),
    models.SeparableUnit: Case(smooth(models.SeparableUnit.params(dim=D, stride=2)), IMAGES),
    nn.SeparableConv2D: Case(
        nn.SeparableConv2D.params(dim=D, output_dim=4, dilation=2, use_bias=True), IMAGES
    ),
    nn.SinusoidImagePositions: Case(
        nn.SinusoidImagePositions.params(dim=D, grid=(1, T)), {"x": floats(B, T, D)}
    ),
    nn.SinusoidPositions: Case(nn.SinusoidPositions.params(dim=D), {"position_ids": POSITIONS}),
    nn.SoftmaxHead: Case(
        nn.SoftmaxHead.params(dim=D, vocab_size=7, use_bias=True, logit_cap=2.0), HEAD_INPUTS
    ),
    nn.SqueezeExcite: Case(nn.SqueezeExcite.params(dim=D), IMAGES),
    Stack: stacked(
        Stack.params(
            layer=[EXPERT.copy().set(dim=D), Linear.params(dim=D, output_dim=D)], num_layers=2
        )
    ),
    models.Ssd: Case(
        DETECTOR.copy().set(num_classes=3, image_shape=(6, 5, 1)), {"x": SCENES["images"]}
    ),
    nn.StochasticDepth: Case(nn.StochasticDepth.params(rate=0.5), {"branch": floats(B, T, D)}),
    nn.SwitchRouter: routed(nn.SwitchRouter, jitter=0.1, priority="gate"),
    nn.TiedHead: Case(nn.TiedHead.params(dim=D, vocab_size=7), HEAD_INPUTS),
    nn.TopNRouter: routed(nn.TopNRouter, num_choices=3),
    nn.TransformerLayer: stacked(TRANSFORMER),
    nn.TransformerXl: Case(
        nn.TransformerXl.params(dim=D, num_heads=2, head_dim=4),
        {
            "query_positions": POSITIONS[:1],
            "key_positions": POSITIONS[:1],
            "query": floats(B, 2, T, 4),
        },
        method="query_bias",
        frozen=("bias_",),
    ),
    nn.TransposedConv2D: Case(
        nn.TransposedConv2D.params(dim=D, output_dim=4, use_bias=True), IMAGES
    ),
    TypeEmbedding: Case(TypeEmbedding.params(dim=D, num_types=3), {"types": integers(3, B, T)}),
    nn.WeightNorm: stacked(nn.WeightNorm.params(layer=EXPERT.copy().set(dim=D))),
}
GROUPED = nn.Attention.params(
    num_heads=4,
    num_kv_heads=2,
    use_bias=True,
    qk_norm=nn.RmsNorm,
    scale_features=True,
    logit_cap=2.0,
    positions=nn.RelativeBias,
    dropout_rate=0.2,
    dropout_form="feature",
)
WINDOW = ATTENTION.copy().set(dim=D, mask=nn.LocalWindow.params(window=2))
SHARING = nn.TransformerLayer.params(attention=ATTENTION.copy().set(positions=SHARED_BIAS))
DECODER = nn.TransformerLayer.params(
    dim=D, attention=ATTENTION, cross_attention=nn.CrossAttention.params(num_heads=2)
)
# further forms of a class, whose computations are others
FORMS: dict[str, Case] = {
    "BatchNorm, variances": stacked(
        nn.BatchNorm.params(dim=D, statistics_over=1, moving_moment="variance")
    ),
    "Conv2D, centered": Case(
        nn.Conv2D.params(dim=D, output_dim=4, stride=2, padding="CENTERED"), IMAGES
    ),
    "DepthwiseConv2D, centered": Case(
        nn.DepthwiseConv2D.params(dim=D, stride=2, padding="CENTERED"), IMAGES
    ),
    "ImageAttention, absolute": Case(
        nn.ImageAttention.params(
            dim=D, output_dim=6, num_heads=2, image=(6, 5), positions="absolute"
        ),
        IMAGES,
    ),
    "ImageAttention, no positions": Case(
        nn.ImageAttention.params(dim=D, output_dim=6, num_heads=2, image=(6, 5), positions="none"),
        IMAGES,
    ),
    "MaxPool, centered": Case(nn.MaxPool.params(window=(3, 3), padding="CENTERED"), IMAGES),
    "LearnedImagePositions, token": Case(
        nn.LearnedImagePositions.params(dim=D, grid=(1, T - 1), num_tokens=1),
        {"x": floats(B, T, D)},
    ),
    "Conv2D, dilated": Case(nn.Conv2D.params(dim=D, output_dim=4, dilation=2), IMAGES),
    "Attention, grouped": stacked(GROUPED.copy().set(dim=D)),
    "Attention, blockwise": stacked(GROUPED.copy().set(dim=D, blockwise=True)),
    "Attention, Transformer-XL": stacked(
        ATTENTION.copy().set(dim=D, positions=nn.TransformerXl, mask=nn.Causal)
    ),
    "Attention, in blocks": Case(WINDOW, {"x": floats(B, 5, D)}, stackable=True),
    "BatchNorm, masked": Case(
        nn.BatchNorm.params(dim=D, statistics_over=2),
        {"x": floats(B, T, D), "mask": TOKENS["segments"] > 0},
    ),
    "DepthwiseConv1D, dilated": Case(
        nn.DepthwiseConv1D.params(dim=D, multiplier=2, dilation=2), {"x": floats(B, 5, D)}
    ),
    "GroupNorm, cumulative": stacked(
        # the first position has the variance of two channels
        nn.GroupNorm.params(dim=D, num_groups=2, is_cumulative=True, epsilon=0.1)
    ),
    "GroupNorm, masked": Case(
        nn.GroupNorm.params(dim=D, num_groups=2),
        {"x": floats(B, T, D), "mask": TOKENS["segments"] > 0},
    ),
    "ConformerLayer, in full": Case(
        models.ConformerLayer.params(
            dim=D,
            attention=nn.Attention.params(
                num_heads=2, mask=nn.Bidirectional, positions=nn.TransformerXl
            ),
            conv=models.ConformerConv.params(
                kernel=4, norm=nn.GroupNorm.params(num_groups=2, epsilon=0.1)
            ),
            order="conv_before_mhsa",
        ),
        {"x": floats(B, T, D), "segments": np.array([[1, 1, 1], [1, 1, 0]], "i")},
    ),
    "ConvSubsampling, VALID": Case(
        models.ConvSubsampling.params(dim=7, channels=4, padding="VALID"), {"x": floats(B, 9, 7)}
    ),
    "EncoderDecoder, scanned": Case(
        PAIRS.copy().set(
            vocab_size=7,
            source_embedding=nn.Embedding.params(vocab_size=9),
            positions=nn.LearnedPositions.params(max_length=4),
            encoder=Repeat.params(layer=Remat.params(layer=PAIRS.encoder.layer), num_layers=2),
            decoder=Repeat.params(layer=Remat.params(layer=PAIRS.decoder.layer), num_layers=2),
        ),
        DOCUMENTS | {"source_tokens": SOURCE["source_tokens"]},
    ),
    "FeedForward, additive": stacked(
        nn.FeedForward.params(dim=D, hidden_dim=5, hidden_bias="additive")
    ),
    "FeedForward, multiplicative": stacked(
        nn.FeedForward.params(dim=D, hidden_dim=5, hidden_bias="multiplicative", gated=True)
    ),
    "EmbeddingTables, packed": Case(TABLES.copy().set(num_groups=2), {"ids": integers(3, B, 2)}),
    "MoE, slots": stacked(MIXTURE.copy().set(dim=D, dispatch="gather", group_size=B * T)),
    "MoE, one-hot": stacked(
        MIXTURE.copy().set(dim=D, dispatch="one_hot", router=nn.TopNRouter, group_size=1)
    ),
    "MoE, wrapped": stacked(
        MIXTURE.copy().set(dim=D, expert=Lora.params(layer=Remat.params(layer=EXPERT), rank=1))
    ),
    "Lstm, reversed": Case(
        nn.Lstm.params(dim=D, is_reversed=True, use_hidden_bias=True), {"x": floats(B, T, D)}
    ),
    "LanguageModel, one bias": Case(
        MODEL.copy().set(vocab_size=7, stack=Repeat.params(layer=SHARING, num_layers=2)), DOCUMENTS
    ),
    "TransformerLayer, post": stacked(
        TRANSFORMER.copy().set(norm_placement="post", dropout_form="position")
    ),
    "TransformerLayer, parallel sandwich": stacked(
        TRANSFORMER.copy().set(
            norm=nn.RmsNorm.params(epsilon=0.1),  # a small output would enlarge rounding
            norm_placement="sandwich",
            parallel=True,
            drop_path_rate=0.5,
        )
    ),
    "TransformerLayer, extra": stacked(TRANSFORMER.copy().set(extra_ffn=nn.FeedForward)),
    "TransformerLayer, decoder": Case(DECODER, {"x": floats(B, T, D), "memory": floats(B, 4, D)}),
}
ALL = {cls.__name__: case for cls, case in CASES.items()} | FORMS
STACKABLE = {name: case for name, case in ALL.items() if case.stackable}


class EveryRecipe:
    """Splits nothing, but checks that every recipe could, on a mesh with all its axes."""

    mesh = topology(dict.fromkeys(AXES, 2))

    def activation(self, x: tf.Tensor, axes: tuple[str | None, ...]) -> tf.Tensor:
        return self._checked(x, axes, [rules.activations for rules in RECIPES.values()])

    def weight(self, x: tf.Tensor, axes: tuple[str | None, ...]) -> tf.Tensor:
        return self._checked(x, axes, [rules.weights for rules in RECIPES.values()])

    def parts(self, axis: str) -> int:
        return parts(axis, RECIPES["1d"].activations, self.mesh)

    def copies(self, axes: Iterable[str]) -> int:
        return self.mesh.num_devices // math.prod(self.parts(axis) for axis in axes)

    def _checked(self, x: tf.Tensor, axes: tuple[str | None, ...], tables: list[Table]) -> Any:
        num_mapped = len(axes) - len(x.shape)
        shape = [2] * num_mapped + [size or 2 for size in x.shape]
        for table in tables:
            split(shape, axes, table, self.mesh, uneven=True, num_mapped=num_mapped)
        return x


def run(layer: Layer, case: Case, *, engine: layer_call.Engine = "graph") -> layer_call.LayerResult:
    inputs = dict(case.inputs)
    args = (inputs.pop("x"),) if "x" in inputs else ()
    call = layer_call.LayerCall(args, inputs, np.arange(B, dtype=np.int32), case.method)
    result = layer_call.compute(layer, layer_call.initial_values(layer), call, engine=engine)
    frozen = {name for name in layer.weights() if name.startswith(case.frozen)}
    assert set(result.without_gradient) == frozen, f"no gradient: {result.without_gradient}"
    return result


def evaluate(case: Case, dtype: str) -> list[np.ndarray]:
    """Returns the outputs of a call that does not train, computed in a type."""
    layer = case.params.copy().set(dtype=dtype).build()
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    state = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.states().items()}
    inputs, call = tf.nest.map_structure(tf.constant, case.inputs), {"state": state}
    outputs, _ = context.apply(layer, weights, method=case.method, call=call, **inputs)
    if case.stackable and case.params.cls is not nn.Dropout:  # which keeps the type of its input
        assert outputs.dtype == dtype
    return [tf.cast(output, tf.float64).numpy() for output in tf.nest.flatten(outputs)]


def assert_same(
    a: layer_call.LayerResult, b: layer_call.LayerResult, *, num_terms: int = 0
) -> None:
    for x, y in zip(a.outputs, b.outputs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    assert a.gradients.keys() == b.gradients.keys()
    for name, value in a.gradients.items():
        rounding = FLOAT32_ROUNDING * num_terms * np.abs(value).max()
        atol = max(1e-5, rounding)
        np.testing.assert_allclose(value, b.gradients[name], rtol=1e-4, atol=atol, err_msg=name)


FOLDERS = ("lingo/layers", "lingo/models", "tasks")


def layer_classes() -> set[type[Layer]]:
    """Returns every layer class of lingo and tasks that computes something."""
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            module = file.relative_to(ROOT).with_suffix("")
            importlib.import_module(".".join(module.parts).removesuffix(".__init__"))
    found, todo = set(), [Layer]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        here = inspect.getfile(cls).startswith(tuple(str(ROOT / folder) for folder in FOLDERS))
        if here and cls._interface is not cls and not lacks_constant(cls):
            found.add(cls)
    return found


def lacks_constant(cls: type) -> bool:
    """Whether a class leaves a constant to its subclasses, such as the rank of a convolution."""
    hints = [item for base in cls.__mro__ for item in inspect.get_annotations(base).items()]
    return any(str(hint).startswith("ClassVar") and not hasattr(cls, name) for name, hint in hints)


over_all = pytest.mark.parametrize("case", ALL.values(), ids=list(ALL))
# what a stack does with a layer depends little on the form of the layer's class
over_stackable = pytest.mark.parametrize("case", STACKABLE.values(), ids=list(STACKABLE))


@over_all
def test_eager_graph_and_xla_agree_and_every_weight_has_a_gradient(case: Case) -> None:
    layer = case.params.build()
    graph = run(layer, case)
    assert_same(graph, run(layer, case, engine="eager"))
    assert_same(graph, run(layer, case, engine="xla"), num_terms=case.num_terms)


@over_all
def test_a_misspelt_field_is_refused_with_the_right_name(case: Case) -> None:
    for field in case.params.cls._fields:
        with pytest.raises(ParamError, match=f"no field '{field}x'.*'{field}'"):
            setattr(case.params, f"{field}x", 1)


@over_all
def test_a_layer_stores_nothing_after_setup(case: Case) -> None:
    with pytest.raises(AttributeError, match="stores nothing after setup"):
        case.params.build().memory = 1


@over_all
def test_every_recipe_of_a_mesh_has_rules_for_all_axes(case: Case) -> None:
    layer = case.params.build()
    with tf.Graph().as_default():
        weights = {k: tf.zeros(spec.program_shape) for k, spec in layer.weights().items()}
        state = {k: tf.zeros(spec.program_shape) for k, spec in layer.states().items()}
        rows, key = tf.range(B), random.root_key(1)
        call = {"state": state, "training": True, "key": key, "rows": rows}
        call["rules"] = EveryRecipe()
        inputs = tf.nest.map_structure(tf.constant, case.inputs)
        context.apply(layer, weights, method=case.method, call=call, **inputs)


@over_stackable
def test_layers_of_a_stack_share_no_weight(case: Case) -> None:
    one = case.params.build().weights()
    two = Stack.params(layer=case.params, num_layers=2).build(dim=D).weights()
    assert sum(s.size for s in two.values()) == 2 * sum(s.size for s in one.values())
    assert set(two) == {f"layers/{i}/{name}" for i in range(2) for name in one}


@over_stackable
def test_scan_and_remat_compute_what_the_plain_stack_does(case: Case) -> None:
    plain = run(Stack.params(layer=case.params, num_layers=2).build(dim=D), case, engine="eager")
    remat = Remat.params(layer=case.params)
    stack = Stack.params(layer=remat, num_layers=2)
    assert_same(plain, run(stack.build(dim=D), case, engine="eager"))
    for layer in (case.params, remat):
        assert_same(plain, run(Repeat.params(layer=layer, num_layers=2).build(dim=D), case))


@pytest.mark.parametrize("name", ["BatchNorm", "MoE", "RecurrentLayer", "TransformerLayer"])
def test_a_scan_that_is_rematerialized_computes_what_the_plain_stack_does(name: str) -> None:
    case = ALL[name]
    plain = run(Stack.params(layer=case.params, num_layers=2).build(dim=D), case, engine="eager")
    remat = Remat.params(layer=Repeat.params(layer=case.params, num_layers=2))
    assert_same(plain, run(remat.build(dim=D), case))


@over_stackable
def test_copies_along_a_lifted_axis_compute_what_they_do_alone(case: Case) -> None:
    case = case._replace(inputs={"x": floats(2, *case.inputs["x"].shape)})
    alone = run(layer_call.OneByOne.params(layer=case.params).build(dim=D), case, engine="eager")
    assert_same(alone, run(layer_call.SideBySide.params(layer=case.params).build(dim=D), case))


@over_all
def test_bfloat16_is_for_computing_not_for_storing(case: Case) -> None:
    layer = case.params.copy().set(dtype="bfloat16").build()
    for spec in [*layer.weights().values(), *layer.states().values()]:
        assert initial_value(spec, 0).dtype == np.float32


@over_all
def test_bfloat16_computes_what_float32_does_but_for_its_rounding(case: Case) -> None:
    for x, y in zip(evaluate(case, "float32"), evaluate(case, "bfloat16"), strict=True):
        largest = np.abs(x).max()
        assert largest > 0
        rounding = (1 if HAS_AVX512 else 2) * DEPTH * BFLOAT16_ROUNDING
        np.testing.assert_allclose(y, x, rtol=0, atol=rounding * largest)
