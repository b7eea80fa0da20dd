"""GShard's models for translation from 100 languages, of up to 600 billion weights.

Sizes are from Lepikhin et al. 2020, sec. 4 and table 1. Half of the layers are the encoder's, half
the decoder's; every second layer has experts in place of its feed-forward network. By algorithm 1,
a token goes to one or two experts. A group has the S tokens of one device, and each of E experts
takes 2 S / E of them. The published totals are rounded: the formula of the paper's tensors, which
leaves out norms, gives 619 billion for "600B". The paper does not describe its positions; here they
are sinusoids, which have no weights. It does not give the coefficient of its load-balance loss
either: here, as in Lingvo, it is 0.01 of E^2 times the loss of algorithm 1. Python signatures with
their purposes take the place of its 13 billion sentence pairs.

`mt.gshard.moe(num_experts=2048, num_layers=60)` has a trillion weights.
"""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data import PairInput
from lingo.datasets import Signatures
from lingo.layers import Attention, Embedding, FeedForward, GShardRouter, MoE, Remat, Repeat
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.mask import Bidirectional
from lingo.layers.sequence.positions import SinusoidPositions
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.optim import Adafactor, InverseSqrt
from lingo.runtimes.mesh.mesh import Mesh
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

SOURCE_VOCAB_SIZE, TARGET_VOCAB_SIZE = 64_000, 32_000
LENGTH = 1024  # tokens per row, of sources and of targets


def _layer(*, head_dim: int):
    layer = TransformerLayer.params(dropout_rate=0.1)
    layer.attention.set(num_heads=16, head_dim=head_dim, dropout_rate=0.1)
    layer.ffn.set(hidden_dim=8192, activation="relu", dropout_rate=0.1)
    return layer


def _experiment(pattern, *, num_layers: int, batch_size: int):
    """Returns an experiment whose layers alternate in `pattern`, half of them on either side."""
    encoder = Repeat.params(
        layer=[Remat.params(layer=layer) for layer in pattern], num_layers=num_layers // 2
    )
    decoder, attention = encoder.copy(), pattern[0].attention
    encoder.all(Attention).set(mask=Bidirectional)
    cross = CrossAttention.params(
        num_heads=attention.num_heads, head_dim=attention.head_dim, dropout_rate=0.1
    )
    decoder.all(TransformerLayer).set(cross_attention=cross)
    model = EncoderDecoder.params(
        dim=1024,
        source_embedding=Embedding.params(vocab_size=SOURCE_VOCAB_SIZE),
        positions=SinusoidPositions,
        encoder=encoder,
        decoder=decoder,
        dropout_rate=0.1,
    )
    return Experiment.params(
        task=SequenceToSequence.params(vocab_size=TARGET_VOCAB_SIZE, model=model),
        train_input=PairInput.params(
            source=Signatures.params(split="train"),
            batch_size=batch_size,
            source_length=LENGTH,
            target_length=LENGTH,
        ),
        optimizer=Adafactor.params(
            learning_rate=0.01,  # 1 / sqrt(max(step, 10,000))
            schedule=InverseSqrt.params(hold_steps=10_000),
            relative_step=False,
        ),
        max_steps=1_024_000_000 // batch_size,  # table 1: days times steps per second, 10^12 tokens
    )


@experiment
def moe(num_experts: int = 128, num_layers: int = 12, batch_size: int = 1024, expert: int = 128):
    """A mixture of any size, by default the paper's smallest; experts split over `expert` devices.

    A group is a device's part of a batch. `num_layers` is a multiple of 4: either side has half of
    the layers, and every second layer is sparse.

    lingo show --exp=mt.gshard.moe --weights
    lingo show --exp='mt.gshard.moe(num_experts=2048, num_layers=60)' --weights
    """
    if num_layers < 4 or num_layers % 4:
        raise ParamError(
            f"{num_layers=} is not a positive multiple of 4: half of the layers are the encoder's,"
            " half the decoder's, and on either side every second one is sparse"
        )
    dense = _layer(head_dim=128)
    sparse = dense.copy()
    sparse.all(FeedForward).wrap(
        MoE,
        "expert",
        num_experts=num_experts,
        router=GShardRouter.params(balance_scale="switch"),
        capacity_factor=2.0,
        min_capacity=1,
        group_size=batch_size * LENGTH // expert,
    )
    cfg = _experiment([dense, sparse], num_layers=num_layers, batch_size=batch_size)
    return cfg.set(runtime=Mesh.params(expert=expert))


@experiment
def moe_2048e_36l():
    """2048 experts in each of 18 layers; 619 billion weights, published as 600B.

    Published: 44.3 BLEU, 13.5 more than the bilingual baselines; 4.0 days on 2048 cores of TPU v3.

    lingo show --exp=mt.gshard.moe_2048e_36l --weights
    """
    return moe(num_experts=2048, num_layers=36, batch_size=4096, expert=2048)


@experiment
def moe_2048e_12l():
    """2048 experts in each of 6 layers; 207 billion weights, published as 200B.

    Published: 41.3 BLEU; 1.4 days on 2048 cores of TPU v3, 2.15 steps a second.

    lingo show --exp=mt.gshard.moe_2048e_12l --weights
    """
    return moe(num_experts=2048, num_layers=12, batch_size=4096, expert=2048)


@experiment
def moe_512e_36l():
    """512 experts in each of 18 layers; 155 billion weights, published as 150B.

    Published: 43.7 BLEU; 11.0 days on 512 cores of TPU v3, 1.05 steps a second.

    lingo show --exp=mt.gshard.moe_512e_36l --weights
    """
    return moe(num_experts=512, num_layers=36, batch_size=1024, expert=512)


@experiment
def moe_512e_12l():
    """512 experts in each of 6 layers; 51.9 billion weights, published as 50B.

    Published: 40.0 BLEU; 3.5 days on 512 cores of TPU v3, 3.28 steps a second.

    lingo show --exp=mt.gshard.moe_512e_12l --weights
    """
    return moe(num_experts=512, num_layers=12, batch_size=1024, expert=512)


@experiment
def moe_128e_36l():
    """128 experts in each of 18 layers; 39.5 billion weights, published as 37B.

    Published: 39.0 BLEU; 17.3 days on 128 cores of TPU v3, 0.67 steps a second.

    lingo show --exp=mt.gshard.moe_128e_36l --weights
    """
    return moe(num_experts=128, num_layers=36, batch_size=1024, expert=128)


@experiment
def moe_128e_12l():
    """128 experts in each of 6 layers; 13.2 billion weights, published as 12.5B.

    Published: 36.7 BLEU; 5.4 days on 128 cores of TPU v3, 2.16 steps a second.

    lingo show --exp=mt.gshard.moe_128e_12l --weights
    """
    return moe(num_experts=128, num_layers=12, batch_size=1024, expert=128)


@experiment
def dense_96l(data: int = 2048):
    """T(96L), the dense baseline of the mixtures: 96 layers; published as 2.3B.

    It has 2,313 million weights with heads of 64 features; with 128, as in the mixtures, it would
    have 2.9 billion. Published: 36.9 BLEU; 42 days on 2048 cores of TPU v3 by GPipe, 235.5 core
    years, at 4 million tokens a step.

    lingo show --exp=mt.gshard.dense_96l --weights
    """
    cfg = _experiment([_layer(head_dim=64)], num_layers=96, batch_size=4096)
    return cfg.set(runtime=Mesh.params(data=data))
