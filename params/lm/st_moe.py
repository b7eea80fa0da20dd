"""ST-MoE: sparse models that train stably and transfer (Zoph et al. 2022).

An encoder-decoder like T5 with GEGLU. Every fourth layer has experts, followed by a dense
feed-forward network with its own norm (app. C). A token goes to its first expert, and to its second
with probability min(1, gate / 0.2); a z-loss keeps the router's logits small. In the encoder,
tokens with a more probable first choice get slots first. The paper's "27 layers" count each of a
side's six extra dense networks as half a layer. The data is installed text, in place of C4.
"""

from __future__ import annotations

from typing import Literal

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.registry import experiment
from lingo.contract import Answers
from lingo.data import Mixture, PairInput
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.datasets import FirstParagraphs
from lingo.layers import FeedForward, MoE, RmsNorm, SoftmaxHead, TopNRouter, TransformerLayer
from lingo.optim import AdamW, ByPath, Frozen, Warmup
from params.lm.source import tiny
from params.lm.switch import in_turn, on_docstrings, on_mesh, set_dropout_rates, t5, t5_layer
from tasks.classification import snippets
from tasks.dialog.questions import FactQuestions

Part = Literal["all", "moe", "non_moe", "attention", "ffn"]
Ablation = Literal[
    "baseline",
    "z_loss",
    "jitter",
    "dropout",
    "no_geglu",
    "no_norm_scale",
    "additive_bias",
    "multiplicative_bias",
    "no_extra_ffn",
    "capacity_2",
    "top_1",
]

PARTS: dict[Part, str] = {
    "all": ".*",
    "moe": ".*ffn/(experts|router)/.*",
    "non_moe": "(?!.*ffn/(experts|router)/).*",
    "attention": ".*attention/.*",
    "ffn": ".*ffn/w_.*",
}
TASKS = {
    "tokens": snippets.TokenKinds,
    "library": snippets.Libraries,
    "docstring": snippets.DocstringMatch,
    "brackets": snippets.Brackets,
    "exception": snippets.Exceptions,
}


def _st_moe(layer, *, num_experts: int, every: int, dim: int, num_layers: int):
    """Returns a T5 whose sparse layers also have a dense network; dropout is 0."""
    pattern = in_turn(
        layer,
        every=every,
        num_experts=num_experts,
        router=TopNRouter.params(num_choices=2, threshold=0.2, balance_loss=0.01, z_loss=0.001),
        capacity_factor=1.25,
        eval_capacity_factor=2.0,
    )
    pattern[-1].extra_ffn = layer.ffn.copy()
    cfg = t5(pattern, dim=dim, num_layers=num_layers, init_scale=0.1, dropout_rate=0.0)
    cfg.task.model.head = SoftmaxHead
    cfg.task.model.encoder.all(TopNRouter).set(priority="gate")
    return cfg


@experiment
def dense_l(num_layers: int = 24, data: int = 32):
    """Dense-L, the dense baseline of ST-MoE-L; 783,150,080 weights, published as 0.8B.

    It is T5-Large of version 1.1: GEGLU of 2816 features, separate logits. Published: 645 GFLOPs a
    sequence, like ST-MoE-L; SuperGLUE 85.1 on its development sets, where ST-MoE-L has 87.4;
    negative log perplexity -1.474. By lingo's count, a forward pass over a source of 512 tokens and
    a target of 114 takes 489 GFLOPs, with ST-MoE-L 569. With 27 layers, the paper's number for
    ST-MoE-L, it would take 549 GFLOPs and have 872,818,688 weights.

    lingo show --exp=lm.st_moe.dense_l --weights
    """
    layer = t5_layer(hidden_dim=2816, num_heads=16, gated=True)
    cfg = t5([layer], dim=1024, num_layers=num_layers, init_scale=0.1, dropout_rate=0.0)
    cfg.task.model.head = SoftmaxHead
    return on_mesh(cfg, data=data)


@experiment
def st_moe_l(expert: int = 32):
    """ST-MoE-L, 32 experts in 12 layers of 48; 4,105,444,352 weights, published as 4.1B.

    It was trained for 500,000 steps of a million tokens. Published: SuperGLUE 87.4 on its
    development sets, where the dense model of equal compute, of 0.8 billion weights, has 85.1; 645
    GFLOPs a sequence.

    lingo show --exp=lm.st_moe.st_moe_l --weights
    """
    layer = t5_layer(hidden_dim=2816, num_heads=16, gated=True)
    cfg = _st_moe(layer, num_experts=32, every=4, dim=1024, num_layers=24)
    return on_mesh(cfg, expert=expert)


@experiment
def st_moe_32b(expert: int = 64, model: int = 16):
    """ST-MoE-32B, 64 experts in 12 layers of 48; 269,104,613,376 weights, published as 269B.

    It computes as much as a dense model of 32 billion weights. It was trained on 1.5 trillion
    tokens, a million per step. Published, after fine-tuning: SuperGLUE 91.2, ARC easy 94.8, ARC
    challenge 86.5; 20.2 TFLOPs a sequence.

    lingo show --exp=lm.st_moe.st_moe_32b --weights
    """
    layer = t5_layer(hidden_dim=20480, num_heads=64, head_dim=128, gated=True)
    cfg = _st_moe(layer, num_experts=64, every=4, dim=5120, num_layers=24)
    return on_mesh(cfg, expert=expert, model=model).set(max_steps=1_430_000)


@experiment
def tiny_pretrain(num_experts: int = 8):
    """A small ST-MoE to run: 8 experts in every second of 4 + 4 layers, on docstrings.

    256 tokens of a row remain after spans of 8 on average are taken out. The optimizer is the same
    as for the large models. After 1,200 steps, the loss of held-out targets is 2.28 nats a token,
    and 36 % of tokens are right; with AdamW as in `lm.source.tiny`, 2.36 nats and 34 %.
    `num_experts=1` is the dense model, which computes as much per token: all its layers have GEGLU
    of 560 features. Two sparse layers have 344 features in the dense layer, 344 next to the
    experts, and 1.25 times 344 in the experts, since `capacity_factor` gives 1.25 slots per token.

    lingo train --exp=lm.st_moe.tiny_pretrain --logdir=runs/tiny_pretrain
    lingo train --exp='lm.st_moe.tiny_pretrain(num_experts=1)' --logdir=runs/dense_pretrain
    """
    sizes = {"dim": 128, "num_layers": 4}
    if num_experts == 1:
        layer = t5_layer(hidden_dim=560, num_heads=4, head_dim=32, gated=True)
        cfg = t5([layer], init_scale=0.1, dropout_rate=0.0, **sizes)
        cfg.task.model.head = SoftmaxHead
    else:
        layer = t5_layer(hidden_dim=344, num_heads=4, head_dim=32, gated=True)
        cfg = _st_moe(layer, num_experts=num_experts, every=2, **sizes)
    return on_docstrings(cfg, num_steps=1200)


@experiment
def tiny_finetune(
    pretrained: str | None = None,
    trained: Part = "all",
    expert_dropout_rate: float = 0.4,
    keeps_slots: bool = False,
    num_experts: int = 8,
):
    """Fine-tunes tiny_pretrain on five tasks of classification, in place of SuperGLUE.

    Experts have their own dropout rate (Fedus et al. 2022, sec. 2.4), everything else has 0.1.
    Tasks are mixed in proportion to their numbers of examples, at most 65,536 each: the paper's
    limit, which no task here reaches. `pretrained` is the run to start from, with `num_experts`
    experts; without it the first weights are random. `trained` names the weights that change:
    `all`; experts and routers (`moe`); all but these (`non_moe`); attention; or dense feed-forward
    networks (`ffn`), if there are any (Zoph et al. 2022, sec. 4.2). `exact_match` is the share of
    right answers; under `all` it is the mean over tasks.

    The optimizer is AdamW with new slots: Adafactor at the paper's rates was not tried for 600
    steps of small tasks. `keeps_slots` keeps the slots, as in the paper. Slots fit only the
    optimizer that made them, so the optimizer is then the Adafactor of `tiny_pretrain`. It goes on
    counting after the 1,200 steps of that run; from step 0 it would forget the slots.

    lingo train --exp=lm.st_moe.tiny_pretrain --logdir=runs/tiny_pretrain
    lingo train --exp=lm.st_moe.tiny_finetune --logdir=runs/tiny_finetune \\
        --set=exp.pretrained=runs/tiny_pretrain
    lingo sweep --exp=lm.st_moe.tiny_finetune --logdir=runs/parts \\
        --set=exp.pretrained=runs/tiny_pretrain --sweep=exp.trained=all,non_moe,moe,attention,ffn
    """
    cfg = tiny_pretrain(num_experts)
    set_dropout_rates(cfg.task.model, 0.1)
    _set_experts(cfg, dropout_rate=expert_dropout_rate)
    cfg.train_input = Mixture.params(
        inputs={name: _answers(task, split="train") for name, task in TASKS.items()},
        max_examples=65_536,
        batch_size=16,
    )
    cfg.eval_inputs = {
        name: _answers(task, split="heldout").set(batch_size=64, repeat=False, max_batches=8)
        for name, task in TASKS.items()
    }
    cfg.evaluate.averages = {"all": [*TASKS]}
    rest = rf"(?!{PARTS[trained]}$).*"
    optimizer = cfg.optimizer if keeps_slots else AdamW.params(epsilon=1e-6)
    cfg.optimizer = ByPath.params(
        learning_rate=5e-4,
        schedule=Warmup.params(num_steps=20),
        max_grad_norm=None if keeps_slots else 1.0,
        groups={PARTS[trained]: optimizer} | ({} if trained == "all" else {rest: Frozen}),
    )
    if pretrained is not None:
        cfg.init_from = WarmStart.params(path=pretrained, slots=keeps_slots)
        cfg.optimizer.slot_steps = cfg.max_steps if keeps_slots else 0
    return cfg.set(max_steps=600)


@experiment
def tiny_generate(
    pretrained: str | None = None,
    task: Literal["summary", "answer"] = "summary",
    num_experts: int = 8,
):
    """Fine-tunes tiny_pretrain to write: summaries of docstrings, or answers by heart.

    `summary`, in place of XSum, writes the first paragraph of a docstring from the rest of it, and
    is scored by ROUGE. `answer`, in place of WebQuestions, has questions about facts of CLDR; it is
    evaluated on the same facts in other words, scored by F1 and exact match, and needs the extra
    `dialog`. All weights change, as in `tiny_finetune`.

    lingo train --exp=lm.st_moe.tiny_pretrain --logdir=runs/tiny_pretrain
    lingo train --exp=lm.st_moe.tiny_generate --logdir=runs/summary \\
        --set=exp.pretrained=runs/tiny_pretrain
    """
    cfg = tiny_finetune(pretrained, num_experts=num_experts)
    cfg.evaluate.averages = {}
    if task == "summary":
        train, heldout = (FirstParagraphs.params(split=split) for split in ("train", "heldout"))
        lengths = {"source_length": 336, "target_length": 96}
        measures = ["rouge1", "rouge2", "rougeL"]
    else:
        train, heldout = (FactQuestions.params(wordings=w) for w in ("train", "heldout"))
        lengths = {"source_length": 80, "target_length": 64}
        measures = ["f1", "exact_match"]
    data = PairInput.params(source=train, tokenizer=SentinelTokenizer, batch_size=16, **lengths)
    once = data.copy().set(source=heldout, repeat=False, max_batches=8)
    cfg.set(train_input=data, eval_inputs={"heldout": once})
    cfg.evaluate.answers = Answers.params(measures=measures)
    cfg.evaluate.answers.decoding.max_tokens = lengths["target_length"]
    return cfg


def _set_experts(cfg, **values):
    """Sets fields of all experts, and of no dense network."""
    for mixture in cfg.all(MoE):
        mixture.expert.set(**values)


def _answers(task, *, split: str):
    """Returns an input with one snippet per row; the target is the word to answer."""
    return PairInput.params(
        source=task.params(split=split),
        tokenizer=SentinelTokenizer,
        source_length=336,
        target_length=24,
        packing="none",
    )


@experiment
def stability(ablation: Ablation = "baseline", learning_rate: float = 0.01):
    """An ablation of tiny_pretrain at a high learning rate: one change for stability or quality.

    `baseline` has no router z-loss; every other value changes one thing of the baseline. In the
    paper, four of six baseline runs were stable, at a negative log perplexity of -1.755. All three
    runs were stable with z-loss, -1.741; jitter, -1.777; dropout, -1.822; without GEGLU, -1.849;
    without scales of norms, -2.020 (Zoph et al. 2022, sec. 3). The optimizer is not the paper's
    Adafactor but AdamW, which the table in docs/experts.md was measured with.

    lingo sweep --exp=lm.st_moe.stability --logdir=runs/stability --sweep=seed=0,1,2 \\
        --sweep=exp.ablation=baseline,z_loss,jitter,dropout,no_geglu,no_norm_scale

    lingo train --exp=lm.st_moe.stability --logdir=runs/baseline
    """
    cfg = tiny_pretrain().set(optimizer=tiny().optimizer)
    cfg.optimizer.learning_rate = learning_rate
    cfg.optimizer.schedule.then.num_steps = 180
    cfg.set(max_steps=200)
    cfg.all(TopNRouter).set(z_loss=0.0)
    match ablation:
        case "baseline":
            pass
        case "z_loss":
            cfg.all(TopNRouter).set(z_loss=0.001)
        case "jitter":
            cfg.all(TopNRouter).set(jitter=0.01)
        case "dropout":
            set_dropout_rates(cfg.task.model, 0.1)
        case "no_geglu":  # as many FLOPs
            cfg.all(FeedForward).set(hidden_dim=516, gated=False, activation="relu")
        case "no_norm_scale":
            cfg.all(RmsNorm).set(use_scale=False)
        case "additive_bias":
            _set_experts(cfg, hidden_bias="additive")
        case "multiplicative_bias":
            _set_experts(cfg, hidden_bias="multiplicative")
        case "no_extra_ffn":
            cfg.all(TransformerLayer).set(extra_ffn=None)
        case "capacity_2":
            cfg.all(MoE).set(capacity_factor=2.0)
        case "top_1":
            cfg.all(TopNRouter).set(num_choices=1)
    return cfg
