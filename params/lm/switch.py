"""T5 and Switch Transformers, of 223 million to 1.6 trillion weights (Fedus et al. 2022).

Sizes are from table 9 of the paper and from the released code; where the two differ, from the one
that gives the published totals. Counts are exact: no biases, norms with only a scale, one table of
relative positions for all layers of the encoder and one for all of the decoder. Half of the layers
or all are sparse; a token goes to one expert. The data is installed text, in place of C4: rows of
512 tokens with spans taken out, and targets of 114 tokens with these spans. A group is a row, and
an expert has at least 4 slots per group. In Switch-C this is 16 times an expert's share of 512
tokens, and 72 times its share of 114.

The arguments set the number of devices: `lm.switch.switch_c(expert=512)`.
"""

from __future__ import annotations

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import SpanCorruption
from lingo.datasets import Docstrings
from lingo.layers import Attention, FanIn, FeedForward, MoE, Remat, Repeat, SoftmaxHead, Stack
from lingo.layers.moe.token_choice import SwitchRouter
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.sequence.mask import Bidirectional
from lingo.layers.sequence.positions import RelativeBias
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.optim import Adafactor, ByPath, Frozen, InverseSqrt
from lingo.runtimes.mesh.mesh import Mesh
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import Distillation, SequenceToSequence

VOCAB_SIZE = 32128  # whichever tokens the data has


def t5_layer(*, hidden_dim: int, num_heads: int, head_dim: int = 64, gated: bool = False):
    """Returns a layer of T5 (Raffel et al. 2020); with `gated`, of T5 1.1, which has GEGLU."""
    layer = TransformerLayer.params()
    layer.attention.set(
        num_heads=num_heads, head_dim=head_dim, positions=RelativeBias.params(shared=True)
    )
    layer.ffn.set(hidden_dim=hidden_dim, gated=gated, activation="gelu_tanh" if gated else "relu")
    return layer


def t5(pattern, *, dim: int, num_layers: int, init_scale: float = 1.0, dropout_rate: float = 0.1):
    """Returns an experiment that trains an encoder-decoder with `num_layers` layers on each side.

    The layers of `pattern` alternate; the decoder's layers also get cross-attention. `init_scale`
    is the initial variance of a matrix, times its fan-in. The learning rate is
    1 / sqrt(max(step, 10,000)), relative to the size of a weight.
    """
    encoder = Stack.params(layer=[layer.copy() for layer in pattern], num_layers=num_layers)
    decoder, attention = encoder.copy(), pattern[0].attention
    encoder.all(Attention).set(mask=Bidirectional)
    cross = CrossAttention.params(num_heads=attention.num_heads, head_dim=attention.head_dim)
    decoder.all(TransformerLayer).set(cross_attention=cross)
    model = EncoderDecoder.params(dim=dim, encoder=encoder, decoder=decoder)
    for cls in (DotProductAttention, FeedForward):
        model.all(cls).set(init=FanIn.params(scale=init_scale))
    return Experiment.params(
        task=SequenceToSequence.params(model=set_dropout_rates(model, dropout_rate)),
        train_input=SpanCorruption.params(
            source=Docstrings.params(split="train"),
            batch_size=2048,  # 2^20 tokens
            source_length=512,
        ),
        optimizer=Adafactor.params(
            learning_rate=0.01, schedule=InverseSqrt.params(hold_steps=10_000), relative_step=False
        ),
        max_steps=500_000,
    )


def on_mesh(cfg, **axes):
    """Sets devices, and saves memory: layers are scanned and rematerialized, in bfloat16."""
    cfg.all(Stack).swap(Repeat)
    cfg.all(TransformerLayer).wrap(Remat, "layer")
    cfg.task.set(vocab_size=VOCAB_SIZE, dtype="bfloat16")
    return cfg.set(runtime=Mesh.params(**axes))


def set_dropout_rates(cfg, rate: float):
    """Sets every dropout rate in a model."""
    for cls in (EncoderDecoder, TransformerLayer, DotProductAttention, FeedForward):
        cfg.all(cls).set(dropout_rate=rate)
    return cfg


def in_turn(layer, *, every: int, **mixture):
    """Returns `every` layers; experts replace the feed-forward network of the last layer."""
    sparse = layer.copy()
    sparse.all(FeedForward).wrap(MoE, "expert", **mixture)
    return [layer] * (every - 1) + [sparse]


def _switch(layer, *, num_experts: int, every: int, dim: int, num_layers: int):
    """Returns a T5 with experts in each `every`-th layer, and small initial values (sec. 2.4)."""
    router = SwitchRouter.params(jitter=0.01, balance_loss=0.01)
    pattern = in_turn(layer, every=every, num_experts=num_experts, router=router)
    return t5(pattern, dim=dim, num_layers=num_layers, init_scale=0.1)


@experiment
def t5_base(data: int = 32):
    """T5-Base, tied logits and ReLU; 222,903,552 weights.

    Published (Fedus et al. 2022, table 9): negative log perplexity -1.599 after 250,000 steps,
    -1.556 after 500,000, of C4.

    lingo show --exp=lm.switch.t5_base --weights
    """
    layer = t5_layer(hidden_dim=3072, num_heads=12)
    cfg = t5([layer], dim=768, num_layers=12)
    return on_mesh(cfg, data=data)


@experiment
def t5_large(data: int = 32):
    """T5-Large, tied logits and ReLU; 737,668,096 weights.

    Published (Fedus et al. 2022, table 9): negative log perplexity -1.402 after 250,000 steps,
    -1.350 after 500,000, of C4. It computes 3.5 times as much per token as T5-Base. Switch-Base
    with 64 experts computes as much as T5-Base, and is as good as T5-Large in 1 / 2.5 of its time.

    lingo show --exp=lm.switch.t5_large --weights
    """
    layer = t5_layer(hidden_dim=4096, num_heads=16)
    cfg = t5([layer], dim=1024, num_layers=24)
    return on_mesh(cfg, data=data)


@experiment
def t5_11b(data: int = 32, model: int = 8):
    """T5-11B, tied logits and ReLU of 65,536 features, 128 heads of 128; 11,307,321,344 weights.

    It is as wide as T5-Large, with larger layers (Raffel et al. 2020, sec. 3.6). All heads together
    have 16 times the model's width.

    lingo show --exp=lm.switch.t5_11b --weights
    """
    layer = t5_layer(hidden_dim=65536, num_heads=128, head_dim=128)
    cfg = t5([layer], dim=1024, num_layers=24)
    return on_mesh(cfg, data=data, model=model)


@experiment
def t5_xxl(data: int = 32, model: int = 8):
    """T5-XXL of version 1.1, GEGLU and separate logits; 11,135,332,352 weights.

    lingo show --exp=lm.switch.t5_xxl --weights
    """
    layer = t5_layer(hidden_dim=10240, num_heads=64, gated=True)
    cfg = t5([layer], dim=4096, num_layers=24)
    cfg.task.model.head = SoftmaxHead
    return on_mesh(cfg, data=data, model=model)


@experiment
def switch_base(expert: int = 32):
    """Switch-Base, 128 experts in every second layer; 7,415,217,408 weights, published as 7B.

    The paper's table has GEGLU of 2048 features, its code ReLU of 3072, which has as many weights
    and FLOPs. Published: negative log perplexity -1.370 after 250,000 steps, -1.306 after
    500,000, of C4, where T5-Base at equal compute has -1.599 and -1.556.

    lingo show --exp=lm.switch.switch_base --weights
    """
    layer = t5_layer(hidden_dim=3072, num_heads=12)
    cfg = _switch(layer, num_experts=128, every=2, dim=768, num_layers=12)
    return on_mesh(cfg, expert=expert)


@experiment
def switch_large(expert: int = 32):
    """Switch-Large, 128 experts in every second layer; 26,309,291,008 weights, published as 26B.

    The published total is with ReLU of 4096 features; GEGLU of 2816, as in the paper's table, would
    give 27.1 billion. Published: negative log perplexity -1.248 after 250,000 steps, -1.177 after
    500,000, of C4.

    lingo show --exp=lm.switch.switch_large --weights
    """
    layer = t5_layer(hidden_dim=4096, num_heads=16)
    cfg = _switch(layer, num_experts=128, every=2, dim=1024, num_layers=24)
    return on_mesh(cfg, expert=expert)


@experiment
def switch_xxl(expert: int = 128, model: int = 4):
    """Switch-XXL, 128 experts in every second layer; 394,675,073,024 weights, published as 395B.

    The paper's table says 64 experts, which would be 201 billion weights. Published: negative log
    perplexity -1.086 after 250,000 steps, -1.008 after 500,000, of C4.

    lingo show --exp=lm.switch.switch_xxl --weights
    """
    layer = t5_layer(hidden_dim=10240, num_heads=64, gated=True)
    cfg = _switch(layer, num_experts=128, every=2, dim=4096, num_layers=24)
    cfg.task.model.head = SoftmaxHead
    return on_mesh(cfg, expert=expert, model=model)


@experiment
def switch_c(expert: int = 2048):
    """Switch-C, 2048 experts in every layer; 1,571,375,798,688 weights, published as 1571B.

    Published: negative log perplexity -1.096 after 250,000 steps, -1.043 after 500,000, of C4.

    lingo show --exp=lm.switch.switch_c --weights
    """
    layer = t5_layer(hidden_dim=6144, num_heads=32)
    cfg = _switch(layer, num_experts=2048, every=1, dim=2080, num_layers=15)
    cfg.task.model.head = SoftmaxHead
    return on_mesh(cfg, expert=expert)


def on_docstrings(cfg, *, num_steps: int):
    """Trains on docstrings: 256 bytes of a row remain after spans of 8 bytes are taken out."""
    data = SpanCorruption.params(
        source=Docstrings.params(split="train"),
        batch_size=4,
        source_length=256,
        mean_span_length=8.0,
    )
    once = data.copy().set(batch_size=16, repeat=False, max_batches=20)
    once.source.split = "heldout"
    return cfg.set(
        train_input=data,
        eval_inputs={"heldout": once},
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=400),
        checkpoint=Checkpointing.params(every_steps=400),
    )


@experiment
def tiny_switch(num_experts: int = 8, num_steps: int = 6000):
    """A small Switch Transformer to run: 2 + 2 layers, experts in every second one, on docstrings.

    A token goes to one expert, so with any number of experts it takes as many FLOPs as in the dense
    model, `num_experts=1`. The router computes in float32; `SwitchRouter.dtype=bfloat16` changes
    that. The optimizer is the same as for the large models.

    lingo train --exp=lm.switch.tiny_switch --logdir=runs/switch
    lingo train --exp='lm.switch.tiny_switch(num_experts=1)' --logdir=runs/dense
    """
    layer, sizes = t5_layer(hidden_dim=256, num_heads=4, head_dim=16), {"dim": 64, "num_layers": 2}
    if num_experts == 1:
        cfg = t5([layer], init_scale=0.1, **sizes)
    else:
        cfg = _switch(layer, num_experts=num_experts, every=2, **sizes)
        cfg.task.model.all(MoE).set(eval_capacity_factor=2.0)
    set_dropout_rates(cfg.task.model, 0.0)
    cfg = on_docstrings(cfg, num_steps=num_steps)
    cfg.train_input.batch_size = 16
    return cfg


@experiment
def tiny_distilled(
    teacher: str | None = None,
    teacher_share: float = 0.25,
    starts_from_teacher: bool = True,
    num_experts: int = 8,
    num_steps: int = 6000,
):
    """The dense model of `tiny_switch`, which also learns from a run with experts.

    `teacher` is that run, with `num_experts` experts. With `starts_from_teacher` the student begins
    with the teacher's weights, except the experts. `teacher_share` 1 means only soft labels, 0 only
    hard ones. Published (Fedus et al. 2022, table 6): soft labels keep 3 % of the teacher's gain
    over T5-Base. With the teacher's weights as well they keep 20 %; with a share of 0.25 as well,
    29 %.

    lingo train --exp=lm.switch.tiny_switch --logdir=runs/switch
    lingo train --exp=lm.switch.tiny_distilled --logdir=runs/distilled \\
        --set=exp.teacher=runs/switch
    """
    cfg = tiny_switch(1, num_steps)
    large = tiny_switch(num_experts, num_steps).task.model
    cfg.task = Distillation.params(model=cfg.task.model, teacher=large, teacher_share=teacher_share)
    rule = cfg.optimizer
    cfg.optimizer = ByPath.params(groups={"teacher/.*": Frozen, "(?!teacher/).*": rule})
    if teacher is not None:
        only = () if starts_from_teacher else ("teacher/.*",)
        rename = {"teacher/(.*)": r"model/\1"}
        cfg.init_from = WarmStart.params(path=teacher, rename=rename, only=only, partial=True)
    return cfg
