"""The language models of GPipe (Huang et al. 2019): deep Transformers in stages.

Sizes are from the paper's table 1 and from Lingvo's registered model. The data is installed text,
in place of the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping

from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.layers import Attention, Pipeline, SinusoidPositions, SoftmaxHead, TransformerLayer
from lingo.layers.norm import LayerNorm, RmsNorm
from lingo.optim import Adam, Cosine, Transformer, Warmup
from lingo.runtimes.mesh.mesh import Mesh
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

VOCAB_SIZE = 32000

PUBLISHED: Mapping[int, tuple[int, str]] = {
    3: (1, "282.2M"),
    13: (1, "785.8M"),
    103: (8, "5.3B"),
    415: (32, "21.0B"),
    1663: (128, "83.9B"),
}
"""Layers -> accelerators and weights in the paper's table 1."""


def _experiment(*, num_heads: int, num_layers: int, num_stages: int, num_micro_batches: int):
    """Returns an experiment with layers of width 2048, biases, sinusoids and untied logits."""
    layer = TransformerLayer.params(norm=LayerNorm)
    layer.attention.set(num_heads=num_heads, head_dim=2048 // num_heads, use_bias=True)
    layer.ffn.set(hidden_dim=8192, use_bias=True)
    # the matrices outside the pipeline have no stage: each device has a part of them
    along = {"vocab": ["model", "stage"]} if VOCAB_SIZE % num_stages == 0 else {}
    stack = Pipeline.params(
        layer=layer,
        num_layers=num_layers,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        remat=True,
    )
    return Experiment.params(
        task=LanguageModeling.params(
            vocab_size=VOCAB_SIZE,
            model=LanguageModel.params(
                dim=2048,
                stack=stack,
                positions=SinusoidPositions,
                norm=RmsNorm.params(use_scale=False),  # the paper's count has no scale here
                head=SoftmaxHead,
            ),
        ),
        train_input=TextInput.params(batch_size=32, length=1024),
        optimizer=Adam.params(
            learning_rate=1e-4,
            schedule=Warmup.params(num_steps=1000, then=Cosine.params(num_steps=100_000)),
            max_grad_norm=1.0,
        ),
        runtime=Mesh.params(stage=num_stages, weight_rules=along, activation_rules=along),
        max_steps=100_000,
    )


@experiment
def transformer_l(
    num_layers: int = 3, num_stages: int | None = None, num_micro_batches: int | None = None
):
    """Transformer-L of GPipe, 50,358,272 weights a layer and 131,072,000 outside of layers.

    With 3, 13, 103, 415 and 1663 layers: 282,146,816, 785,729,536, 5,317,974,016, 21,029,754,880
    and 83,876,878,336 weights, published as 282.2 M, 785.8 M, 5.3 B, 21.0 B and 83.9 B (Huang et
    al. 2019, table 1: 32 rows of 1,024 tokens; one TPU v3 of 16 GB per stage). If layers do not
    fill the last stage, it also computes placeholder layers. Without `num_micro_batches` a
    micro-batch is one row. Built and counted, never trained.

    lingo show --exp=lm.gpipe.transformer_l --set=exp.num_layers=103 --weights
    lingo show --exp=lm.gpipe.transformer_l --set=exp.num_layers=103 --pipeline
    """
    stages = num_stages if num_stages is not None else PUBLISHED.get(num_layers, (1,))[0]
    micro = num_micro_batches if num_micro_batches is not None else 32
    return _experiment(
        num_heads=32, num_layers=num_layers, num_stages=stages, num_micro_batches=micro
    )


@experiment
def one_billion_words(num_layers: int = 32, num_stages: int = 4):
    """Lingvo's OneBWdsGPipeTransformerWPM: 32 layers in 4 stages, micro-batches of one row.

    1,742,314,752 weights. Unlike `transformer_l` it has a bias of the logits, a layer norm at the
    end, and in attention one scale per query feature instead of biases. It has no dropout: Lingvo's
    function ignores its arguments for dropout rates. Built and counted, never trained; its corpus
    is not included.

    lingo show --exp=lm.gpipe.one_billion_words --pipeline
    """
    cfg = _experiment(
        num_heads=16, num_layers=num_layers, num_stages=num_stages, num_micro_batches=32
    )
    cfg.all(Attention).set(use_bias=False, scale_features=True)
    cfg.task.model.set(norm=LayerNorm, head=SoftmaxHead.params(use_bias=True))
    return cfg.set(
        optimizer=Adam.params(
            learning_rate=0.5,
            schedule=Transformer.params(model_dim=2048, warmup_steps=40_000),
            beta2=0.997,
            epsilon=1e-9,
        )
    )
