"""Networks for particular fields, built from `lingo.layers`."""

from __future__ import annotations

from lingo.models.detection.heads import BoxHead, MaskHead, RegionHead
from lingo.models.detection.mask_rcnn import MaskRcnn
from lingo.models.detection.pyramid import Backbone, FeaturePyramid
from lingo.models.detection.ssd import ExtraMap, Ssd
from lingo.models.image.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.models.image.amoebanet_cell import (
    NormalCell,
    NormalCellB,
    ReductionCell,
    ReductionCellB,
)
from lingo.models.image.auxiliary_head import AuxiliaryHead
from lingo.models.image.botnet import AttentionBlock, AttentionNorm
from lingo.models.image.efficientnet import MBConv
from lingo.models.image.lenet import ConvPool
from lingo.models.image.relu_conv_norm import FactorizedReduction, ReluConvNorm, SeparableUnit
from lingo.models.image.resnet import BasicBlock, BottleneckBlock
from lingo.models.image.unet import ConvNorm3D, UNet3D
from lingo.models.speech.conformer import ConformerConv, ConformerEncoder, ConformerLayer
from lingo.models.speech.las import LasDecoder, LasEncoder
from lingo.models.speech.subsampling import ConvSubsampling
from lingo.models.speech.transducer import FramewiseJoint, JointNetwork, PredictionNetwork

__all__ = [
    "AmoebaNetHead",
    "AmoebaNetStem",
    "AttentionBlock",
    "AttentionNorm",
    "AuxiliaryHead",
    "Backbone",
    "BasicBlock",
    "BottleneckBlock",
    "BoxHead",
    "ConformerConv",
    "ConformerEncoder",
    "ConformerLayer",
    "ConvNorm3D",
    "ConvPool",
    "ConvSubsampling",
    "ExtraMap",
    "FactorizedReduction",
    "FeaturePyramid",
    "FramewiseJoint",
    "JointNetwork",
    "LasDecoder",
    "LasEncoder",
    "MBConv",
    "MaskHead",
    "MaskRcnn",
    "NormalCell",
    "NormalCellB",
    "PredictionNetwork",
    "ReductionCell",
    "ReductionCellB",
    "RegionHead",
    "ReluConvNorm",
    "SeparableUnit",
    "Ssd",
    "UNet3D",
]
