"""Lingvo's dense language models of 8 billion to a trillion weights, as measured for GSPMD.

Sizes, meshes, batches and the optimizer are the ones that Lingvo registers
(`lingvo/tasks/lm/params/synthetic_packed_input.py`) for TPU v3 of 8 to 2048 cores. Tensors are
split over the cores like the final version of Xu et al. 2021, sec. 5.1. The data is installed text,
in place of Lingvo's synthetic data. Arguments give other meshes:
`lm.lingvo_dense.dense_128b(data=32,model=64)`.

The optimizer is Adafactor without momentum, with updates of a root mean square of at most 1 and the
learning rate 1 / sqrt(max(step, 10,000)). Lingvo's `beta2=0.99` has no effect, as its
`decay_exponent_pow=0.8` replaces it: squares decay by 1 - t^-0.8 at step t. One difference: the
slots of a projection to heads are factored over heads and head width, while Lingvo has one
dimension for both. Weights, slots and gradients together take less than the 16 GiB of a core.
"""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.layers import Attention, FeedForward, Remat, Repeat, TransformerLayer
from lingo.layers.sequence.positions import LearnedPositions, RelativeBias
from lingo.optim import Adafactor, InverseSqrt
from lingo.runtimes.mesh.mesh import Mesh
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

VOCAB_SIZE = 32000


def _on_mesh(cfg, *, data: int, model: int, batch_size: int, length: int):
    """Sets devices and batch; data * model is the number of cores, the paper's X * Y."""
    cfg.runtime = Mesh.params(data=data, model=model, rules="2d_finalized")
    cfg.train_input = TextInput.params(batch_size=batch_size, length=length)
    return cfg


def _experiment(*, model_dim: int, hidden_dim: int, num_heads: int, num_layers: int):
    """Returns an experiment with equal layers, scanned and rematerialized, and tied logits."""
    layer = TransformerLayer.params()
    layer.attention.set(num_heads=num_heads, head_dim=128)
    layer.ffn.set(hidden_dim=hidden_dim)
    return Experiment.params(
        task=LanguageModeling.params(
            vocab_size=VOCAB_SIZE,
            dtype="bfloat16",
            model=LanguageModel.params(
                dim=model_dim,
                stack=Repeat.params(layer=Remat.params(layer=layer), num_layers=num_layers),
            ),
        ),
        optimizer=Adafactor.params(
            learning_rate=0.01, schedule=InverseSqrt.params(hold_steps=10_000), relative_step=False
        ),
        max_steps=2_000_000,
    )


def _gated_ffn(**sizes: int):
    """Returns an experiment with gated GELU, and T5's relative bias in every layer."""
    cfg = _experiment(**sizes)
    cfg.all(Attention).set(positions=RelativeBias)
    cfg.all(FeedForward).set(activation="gelu", gated=True)
    return cfg


def _plain(**sizes: int):
    """Returns an experiment with ReLU, learned positions, and a cap on the logits of attention."""
    cfg = _experiment(**sizes)
    cfg.all(Attention).set(logit_cap=50.0)
    cfg.all(FeedForward).set(activation="relu")
    cfg.task.model.positions = LearnedPositions.params(max_length=2048)
    return cfg


@experiment
def dense_8b(data: int = 1, model: int = 8, batch_size: int = 16):
    """Lingvo's DenseLm8B2x2: 4 layers of the 128B model's width; 8,852,168,704 weights.

    lingo show --exp=lm.lingvo_dense.dense_8b --weights
    """
    cfg = _gated_ffn(model_dim=8192, hidden_dim=65536, num_heads=128, num_layers=4)
    return _on_mesh(cfg, data=data, model=model, batch_size=batch_size, length=1024)


@experiment
def dense_13b(data: int = 64, model: int = 32, batch_size: int = 1024):
    """Lingvo's DenseLM13B32x32, GPT-3 13B with ReLU layers: 40 layers; 12,757,652,480 weights.

    20 of 32 devices have two of its 40 heads each, and the other 12 have padding.

    lingo show --exp=lm.lingvo_dense.dense_13b --weights
    """
    cfg = _plain(model_dim=5120, hidden_dim=20480, num_heads=40, num_layers=40)
    return _on_mesh(cfg, data=data, model=model, batch_size=batch_size, length=2048)


@experiment
def dense_128b(data: int = 8, model: int = 16, batch_size: int = 16):
    """Lingvo's DenseLm128B8x8: 64 layers; 137,702,416,384 weights.

    Lingvo registers it for larger slices, too: 16 x 32 cores with batches of 128
    (DenseLm128B16x16), and 32 x 64 with 512 (DenseLm128B32x32).

    lingo show --exp=lm.lingvo_dense.dense_128b --weights
    """
    cfg = _gated_ffn(model_dim=8192, hidden_dim=65536, num_heads=128, num_layers=64)
    return _on_mesh(cfg, data=data, model=model, batch_size=batch_size, length=1024)


@experiment
def dense_175b(data: int = 64, model: int = 32, batch_size: int = 1024):
    """Lingvo's DenseLm175B32x32, GPT-3 with ReLU layers: 96 layers; 174,366,928,896 weights.

    lingo show --exp=lm.lingvo_dense.dense_175b --weights
    """
    cfg = _plain(model_dim=12288, hidden_dim=49152, num_heads=96, num_layers=96)
    return _on_mesh(cfg, data=data, model=model, batch_size=batch_size, length=2048)


@experiment
def dense_1t(data: int = 16, model: int = 64, batch_size: int = 16):
    """Lingvo's DenseLm1T16x16: 128 layers; 1,100,041,175,040 weights.

    Lingvo registers it for 16 x 32 cores. There, weights and gradients alone would take 16.01 GiB
    per core: too much for lingo, which has all gradients before the first weight changes.

    lingo show --exp=lm.lingvo_dense.dense_1t --weights
    """
    cfg = _gated_ffn(model_dim=16384, hidden_dim=131072, num_heads=256, num_layers=128)
    return _on_mesh(cfg, data=data, model=model, batch_size=batch_size, length=512)
