"""Layers for models, re-exported from one file per idea; the base class `Layer` is in layer.py."""

from __future__ import annotations

from lingo.layers.dropout import Dropout, StochasticDepth
from lingo.layers.embedding import Embedding, EmbeddingTables
from lingo.layers.feed_forward import FeedForward
from lingo.layers.initial import (
    Constant,
    FanIn,
    Glorot,
    He,
    Identity,
    Initializer,
    Normal,
    Orthogonal,
    TruncatedNormal,
    Uniform,
)
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.keras import Keras
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.moe.learned import ExpertChoiceRouter
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.router import HashRouter, Router
from lingo.layers.moe.token_choice import GShardRouter, LingvoRouter, SwitchRouter, TopNRouter
from lingo.layers.norm import GroupNorm, LayerNorm, Norm, RmsNorm
from lingo.layers.product import Product
from lingo.layers.quantization.domain import (
    PassiveAsymQDomain,
    QDomain,
    SymmetricScheduledClipQDomain,
    WeightQDomain,
)
from lingo.layers.quantization.quantized import Quantized
from lingo.layers.quantization.schedule import (
    FakeQuantizationSchedule,
    LinearClippingCapSchedule,
)
from lingo.layers.sequence.additive_attention import AdditiveAttention
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.convolution import Conv1D, DepthwiseConv1D
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.mask import Bidirectional, Causal, LocalWindow, Mask, Prefix
from lingo.layers.sequence.positions import (
    Alibi,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidPositions,
)
from lingo.layers.sequence.recurrent import BidirectionalRecurrent, Gru, Lstm, RecurrentLayer
from lingo.layers.sequence.rotary_scaling import (
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    RotaryScaling,
    YarnScaling,
)
from lingo.layers.sequence.softmax import SoftmaxHead, TiedHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.sequence.transformer_xl import TransformerXl
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Chain, Stack
from lingo.layers.table.category import OneHot, Vocabulary
from lingo.layers.table.number import Bucketize, Normalize
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import (
    Conv2D,
    Conv3D,
    DepthwiseConv2D,
    SeparableConv2D,
    TransposedConv2D,
    UpConv3D,
)
from lingo.layers.vision.conv_norm import ConvNorm
from lingo.layers.vision.image_attention import ImageAttention
from lingo.layers.vision.image_head import ImageHead
from lingo.layers.vision.patch import (
    ClassToken,
    ImagePositions,
    LearnedImagePositions,
    PatchEmbedding,
    PatchHead,
    SinusoidImagePositions,
)
from lingo.layers.vision.pool import AveragePool, MaxPool, MaxPool3D
from lingo.layers.vision.resize import Resize
from lingo.layers.vision.squeeze_excite import SqueezeExcite
from lingo.layers.wrap.remat import Remat
from lingo.layers.wrap.reweighted import Lora, WeightNorm
from lingo.layers.wrap.wrapper import Wrapper

__all__ = [
    "NO_INPUTS",
    "AdditiveAttention",
    "Alibi",
    "Attention",
    "AveragePool",
    "BatchNorm",
    "Bidirectional",
    "BidirectionalRecurrent",
    "Bucketize",
    "CallInputs",
    "Causal",
    "Chain",
    "ClassToken",
    "Constant",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "ConvNorm",
    "CrossAttention",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "EmbeddingTables",
    "ExpertChoiceRouter",
    "FakeQuantizationSchedule",
    "FanIn",
    "FeedForward",
    "GShardRouter",
    "Glorot",
    "GroupNorm",
    "Gru",
    "HashRouter",
    "He",
    "Identity",
    "ImageAttention",
    "ImageHead",
    "ImagePositions",
    "Initializer",
    "Keras",
    "Layer",
    "LayerNorm",
    "LearnedImagePositions",
    "LearnedPositions",
    "Linear",
    "LinearClippingCapSchedule",
    "LinearScaling",
    "LingvoRouter",
    "Llama3Scaling",
    "LocalWindow",
    "Lora",
    "Lstm",
    "Mask",
    "MaxPool",
    "MaxPool3D",
    "MoE",
    "Norm",
    "Normal",
    "Normalize",
    "NtkScaling",
    "OneHot",
    "Orthogonal",
    "PassiveAsymQDomain",
    "PatchEmbedding",
    "PatchHead",
    "Pipeline",
    "PipelinedChain",
    "Prefix",
    "Product",
    "QDomain",
    "Quantized",
    "RecurrentLayer",
    "RelativeBias",
    "Remat",
    "Repeat",
    "Resize",
    "RmsNorm",
    "Rotary",
    "RotaryScaling",
    "Router",
    "SeparableConv2D",
    "SinusoidImagePositions",
    "SinusoidPositions",
    "SoftmaxHead",
    "SqueezeExcite",
    "Stack",
    "StochasticDepth",
    "SwitchRouter",
    "SymmetricScheduledClipQDomain",
    "TiedHead",
    "TopNRouter",
    "TransformerLayer",
    "TransformerXl",
    "TransposedConv2D",
    "TruncatedNormal",
    "Uniform",
    "UpConv3D",
    "Vocabulary",
    "WeightNorm",
    "WeightQDomain",
    "Wrapper",
    "YarnScaling",
]
