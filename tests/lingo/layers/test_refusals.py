"""Parameters that make no sense are refused at construction, with what was given."""

from __future__ import annotations

import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.params import ParamError, Params

ATTENTION = nn.Attention.params(dim=8, num_heads=2)
BATCH_NORM = nn.BatchNorm.params(dim=3)
BIAS = nn.RelativeBias.params(num_heads=1)
CONV = nn.Conv2D.params(dim=3, output_dim=5)
LORA = nn.Lora.params(layer=nn.Linear.params(dim=4, output_dim=6))
MIXTURE = nn.MoE.params(dim=4, num_experts=4)
PATTERN = [nn.Linear.params(dim=2, output_dim=2), nn.RmsNorm.params(dim=2)]
PIPELINE = nn.Pipeline.params(layer=PATTERN[0], num_layers=2, num_stages=2, num_micro_batches=2)
ROTARY = nn.Rotary.params(head_dim=8)
SWITCH = nn.SwitchRouter.params(dim=6, num_experts=3)
TRANSFORMER = nn.TransformerLayer.params(dim=8, attention=nn.Attention.params(num_heads=2))
REFUSED = [
    (ATTENTION, {"num_heads": 3}, r"dim=8 is not a multiple of num_heads=3; set head_dim"),
    (ATTENTION, {"num_kv_heads": 0}, "num_kv_heads=0 is not positive"),
    (ATTENTION, {"num_heads": 4, "num_kv_heads": 3}, "=4 is not a multiple of num_kv_heads=3"),
    (ATTENTION, {"logit_cap": 0.0}, r"logit_cap=0\.0 is not positive"),
    (ATTENTION, {"dropout_rate": 1.0}, r"dropout_rate=1\.0 is not in \[0, 1\)"),
    (ATTENTION, {"head_dim": 3, "positions": nn.Rotary}, "positions: head_dim=3 is odd"),
    (BATCH_NORM, {"decay": 1.0}, "decay"),
    (BATCH_NORM, {"statistics_over": 0}, "statistics_over"),
    (BATCH_NORM, {"epsilon": -1.0}, "epsilon"),
    (BIAS, {"num_buckets": 1}, "num_buckets=1.*max_distance=128"),
    (BIAS, {"max_distance": 16}, "num_buckets=32.*max_distance=16"),
    (BIAS, {"num_buckets": 2, "bidirectional": True}, "=2 .*even"),
    (BIAS, {"num_buckets": 9, "bidirectional": True}, "=9 .*even"),
    (CONV, {"stride": 0}, "is not positive"),
    (CONV, {"kernel": (3, 0)}, "is not positive"),
    (CONV, {"dilation": 0}, "dilation=0 is not positive"),
    (CONV, {"stride": 2, "dilation": 3}, "stride=2 with dilation=3: one of the two has to be 1"),
    (nn.Conv1D.params(dim=3, output_dim=5), {"kernel": 0}, "kernel=0 is not positive"),
    (
        nn.Conv3D.params(dim=1, output_dim=1, stride=2),
        {"dilation": 2},
        "one of the two has to be 1",
    ),
    (nn.DepthwiseConv2D.params(dim=3), {"multiplier": 0}, "multiplier=0 is not positive"),
    (
        models.BottleneckBlock.params(dim=4),
        {"output_dim": 6},
        "output_dim=6 is not a multiple of 4",
    ),
    (
        nn.ConvNorm.params(dim=3, output_dim=5, norm=nn.LayerNorm),
        {"zero_init": True},
        "no weight of LayerNorm can start at zero: take BatchNorm or GroupNorm",
    ),
    (
        nn.ConvNorm.params(dim=3, output_dim=3, conv=nn.DepthwiseConv2D),
        {"output_dim": 5},
        "DepthwiseConv2D makes 3 channels of dim=3, not output_dim=5",
    ),
    (nn.ImageHead.params(dim=3, num_classes=2), {"dropout_rate": 1.0}, r"dropout_rate=1\.0"),
    (
        nn.ImageAttention.params(dim=3, output_dim=8, image=(2, 2)),
        {"num_heads": 3},
        "output_dim=8 is not a multiple of num_heads=3",
    ),
    (
        nn.ImageAttention.params(dim=3, output_dim=8),
        {"image": (2, 0)},
        r"image=\(2, 0\) is not positive",
    ),
    (
        models.AttentionNorm.params(dim=3, output_dim=8, image=(2, 2)),
        {"stride": 0},
        "stride=0 is not positive",
    ),
    (LORA, {"pattern": "w_out"}, "'w_out' matches no matrix of the Linear inside; it has w"),
    (LORA, {"pattern": "("}, "is not a regular expression"),
    (LORA, {"rank": 0}, "rank=0 is not positive"),
    (MIXTURE, {"num_experts": 0}, "num_experts"),
    (MIXTURE, {"capacity_factor": 0}, "capacity_factor"),
    (MIXTURE, {"eval_capacity_factor": 0}, "eval_capacity_factor"),
    (MIXTURE, {"min_capacity": 0}, "min_capacity"),
    (MIXTURE, {"group_size": 0}, "group_size"),
    (PIPELINE, {"num_stages": 0}, "num_stages=0"),
    (PIPELINE, {"num_micro_batches": 0}, "num_micro_batches=0"),
    (PIPELINE, {"circular_repeats": 0}, "circular_repeats=0"),
    (ROTARY, {"fraction": 0.1}, "fraction=0.1 of the 4 pairs of a head is less"),
    (ROTARY, {"fraction": 1.5}, "fraction=1.5 of the 4 pairs of a head is less"),
    (ROTARY, {"head_dim": 7}, "head_dim=7 is odd"),
    (ROTARY, {"max_wavelength": 0.0}, r"max_wavelength=0\.0 is not positive"),
    (SWITCH, {"jitter": 1.0}, "jitter="),
    (SWITCH, {"z_loss": -1.0}, "z_loss="),
    (SWITCH, {"balance_loss": -1.0}, "balance_loss="),
    (TRANSFORMER, {"dropout_rate": -1.0}, r"dropout_rate=-1\.0 is not in \[0, 1\)"),
    (TRANSFORMER, {"drop_path_rate": -1.0}, r"drop_path_rate=-1\.0 is not in \[0, 1\)"),
    (nn.Dropout.params(), {"rate": 1.0}, r"rate=1\.0 is not in \[0, 1\)"),
    (nn.Dropout.params(), {"rate": -0.1}, r"rate=-0\.1 is not in \[0, 1\)"),
    (nn.FanIn.params(), {"scale": -0.1}, r"=-0\.1 is negative"),
    (nn.FeedForward.params(dim=4), {"dropout_rate": 1.5}, r"dropout_rate=1\.5 is not in \[0, 1\)"),
    (nn.GroupNorm.params(dim=6), {"num_groups": 4}, "dim=6 is not a multiple of num_groups=4"),
    (nn.GroupNorm.params(dim=6), {"num_groups": 0}, "num_groups=0 is not positive"),
    (nn.LocalWindow.params(), {"window": 0}, "window=0 is not 1 or more"),
    (nn.LocalWindow.params(), {"window": 1, "ahead": -1}, "ahead=-1 is neg"),
    (nn.Lstm.params(dim=3), {"hidden_dim": 0}, "hidden_dim=0 is not positive"),
    (nn.Lstm.params(dim=3), {"cell_cap": 0.0}, r"cell_cap=0\.0 is not positive"),
    (models.MBConv.params(dim=3, output_dim=3), {"expansion": 0}, "expansion=0 is not positive"),
    (models.MBConv.params(dim=3, output_dim=3), {"drop_path_rate": 1.0}, r"drop_path_rate=1\.0"),
    (nn.MaxPool.params(), {"stride": 0}, "stride=0 is not positive"),
    (
        models.NormalCell.params(dim=4, before_dim=4),
        {"num_filters": 10},
        "output_dim=10 is not a mult",
    ),
    (nn.PatchEmbedding.params(dim=3, output_dim=4), {"patch": 0}, "patch=0 is not positive"),
    (nn.PatchHead.params(dim=3, num_classes=2), {"hidden_dim": 0}, "hidden_dim=0 is not positive"),
    (nn.RecurrentLayer.params(dim=3), {"dropout_rate": 1.5}, r"dropout_rate=1\.5"),
    (nn.RmsNorm.params(dim=4), {"epsilon": -1.0}, r"epsilon=-1\.0 is negative"),
    (nn.LearnedImagePositions.params(dim=4), {"grid": (2, 0)}, r"grid=\(2, 0\) is not positive"),
    (nn.SinusoidImagePositions.params(grid=(2, 2)), {"dim": 10}, "dim=10 is not 8, 12, 16 or"),
    (nn.SinusoidImagePositions.params(grid=(2, 2)), {"dim": 4}, "dim=4 is not 8, 12, 16 or"),
    (
        nn.SinusoidImagePositions.params(dim=8, grid=(2, 2)),
        {"max_wavelength": 0.0},
        r"max_wavelength=0\.0 is not positive",
    ),
    (nn.SinusoidPositions.params(), {"dim": 5}, "dim=5 is odd"),
    (nn.SinusoidPositions.params(dim=4), {"max_wavelength": -1.0}, "=-1.0 is not positive"),
    (nn.SqueezeExcite.params(dim=4), {"ratio": 0.0}, r"ratio=0\.0 is not positive"),
    (nn.SqueezeExcite.params(dim=4), {"block_dim": 0}, "block_dim=0 is not positive"),
    (nn.StochasticDepth.params(), {"rate": 1.0}, r"rate=1\.0 is not in \[0, 1\)"),
    (nn.TransposedConv2D.params(dim=3, output_dim=5), {"stride": 0}, "stride=0 is not positive"),
    (nn.UpConv3D.params(dim=1, output_dim=1), {"stride": 0}, "stride=0 is not positive"),
    (nn.MaxPool3D.params(), {"window": 0}, "window=0 is not positive"),
    (nn.TruncatedNormal.params(), {"stddev": -0.1}, r"=-0\.1 is negative"),
]
REFUSED += [
    (head.params(dim=4, vocab_size=7), {"logit_cap": cap}, f"logit_cap={cap} is not positive")
    for head in (nn.TiedHead, nn.SoftmaxHead)
    for cap in (0.0, -1.0)
]
REFUSED += [
    (stack.params(layer=PATTERN), {"num_layers": num}, f"={num} is not a .* 2 layers of the")
    for stack in (nn.Stack, nn.Repeat)
    for num in (0, -2, 3)
]
REFUSED += [
    (
        router.params(dim=1),
        {"num_experts": 1},
        r"num_experts=1 is less than the 2 different experts that a \w+Router",
    )
    for router in (nn.TopNRouter, nn.GShardRouter, nn.LingvoRouter)
]
REFUSED += [
    (router.params(dim=4, num_experts=4), fields, "is not positive")
    for router, fields in [
        (nn.TopNRouter, {"num_choices": 0}),
        (nn.TopNRouter, {"threshold": -0.2}),
        (nn.LingvoRouter, {"threshold": 0.0}),
    ]
]


@pytest.mark.parametrize(("params", "fields", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(params: Params, fields, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        params.copy().set(**fields).build()
