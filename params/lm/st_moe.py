"""ST-MoE: sparse models that train stably and transfer (Zoph et al. 2022).

An encoder-decoder as T5's with GEGLU; experts stand in every fourth layer, and beside them a dense
feed-forward network with a norm of its own (app. C). A token goes to its first expert, and to its
second with probability min(1, gate / 0.2); the router's logits are kept small by a z-loss. In the
encoder those tokens have slots first whose first choice is most probable. The paper's "27 layers"
count each of the six such networks of a side as half a layer. The data is the text that is at hand,
in place of C4.
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
    """Sparse layers with a dense network beside the experts; no dropout before fine-tuning."""
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
    """Dense-L, what ST-MoE-L is compared with; 783,150,080 weights, published as 0.8B.

    T5-Large of version 1.1: GEGLU of 2816 features, separate logits. Published: 645 GFLOPs a
    sequence, as ST-MoE-L; SuperGLUE 85.1 on its development sets, where ST-MoE-L has 87.4; negative
    log perplexity -1.474. For 512 tokens of a source and 114 of a target a forward pass has 489
    GFLOPs by lingo's count, one of ST-MoE-L 569. With 27 layers, as many as the paper counts of
    ST-MoE-L, they would be 549, and 872,818,688 weights.

    lingo show --exp=lm.st_moe.dense_l --weights
    """
    layer = t5_layer(hidden_dim=2816, num_heads=16, gated=True)
    cfg = t5([layer], dim=1024, num_layers=num_layers, init_scale=0.1, dropout_rate=0.0)
    cfg.task.model.head = SoftmaxHead
    return on_mesh(cfg, data=data)


@experiment
def st_moe_l(expert: int = 32):
    """ST-MoE-L, 32 experts in 12 layers of 48; 4,105,444,352 weights, published as 4.1B.

    Trained for 500,000 steps of a million tokens. Published: SuperGLUE 87.4 on its development
    sets, where the dense model of equal compute, of 0.8 billion weights, has 85.1; 645 GFLOPs a
    sequence.

    lingo show --exp=lm.st_moe.st_moe_l --weights
    """
    layer = t5_layer(hidden_dim=2816, num_heads=16, gated=True)
    cfg = _st_moe(layer, num_experts=32, every=4, dim=1024, num_layers=24)
    return on_mesh(cfg, expert=expert)


@experiment
def st_moe_32b(expert: int = 64, model: int = 16):
    """ST-MoE-32B, 64 experts in 12 layers of 48; 269,104,613,376 weights, published as 269B.

    As much to compute as a dense model of 32 billion. Trained on 1.5 trillion tokens, a million a
    step. Published, after fine-tuning: SuperGLUE 91.2, ARC easy 94.8, ARC challenge 86.5; 20.2
    TFLOPs a sequence.

    lingo show --exp=lm.st_moe.st_moe_32b --weights
    """
    layer = t5_layer(hidden_dim=20480, num_heads=64, head_dim=128, gated=True)
    cfg = _st_moe(layer, num_experts=64, every=4, dim=5120, num_layers=24)
    return on_mesh(cfg, expert=expert, model=model).set(max_steps=1_430_000)


@experiment
def tiny_pretrain(num_experts: int = 8):
    """A small one to run: 8 experts in every second layer of 4 + 4, on the text of docstrings.

    Rows of which 256 tokens are left when spans of 8 in the mean are taken out. The optimizer is
    that of the large models. After 1,200 steps: 2.28 nats a token of held-out targets, 36 % right;
    with AdamW, as `lm.source.tiny` has it, 2.36 nats and 34 %. `num_experts=1` is the dense model,
    which computes as much for a token: all its layers have GEGLU of 560 features. Two layers of the
    sparse one have 344 in the dense layer, 344 next to the experts, and 1.25 times 344 in experts,
    as many slots as `capacity_factor` gives a token.

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

    Experts have a rate of dropout of their own (Fedus et al. 2022, sec. 2.4), all else 0.1. Tasks
    are mixed in proportion to their examples, of which 65,536 count at most: the paper's limit,
    which no task here reaches. `pretrained` is the run to start from, whose number of experts is
    `num_experts`; without it the first weights are drawn. `trained` says which weights change:
    `all`; those of experts and routers (`moe`); all but these (`non_moe`); those of attention; or
    those of dense feed-forward networks (`ffn`), if there are any (Zoph et al. 2022, sec. 4.2).
    `exact_match` is the share of right answers, under `all` the mean over tasks.

    The optimizer is AdamW, as Adafactor at the paper's rates was not tried for 600 steps of small
    tasks, and its slots begin anew. With `keeps_slots` they go on, as in the paper: slots fit only
    the optimizer that made them, so it is then the Adafactor of `tiny_pretrain`, which counts the
    1,200 steps of that run. From its first step on, it would forget the slots otherwise.

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

    `summary` gives the first paragraph of a docstring from the rest of it, in place of XSum, scored
    by ROUGE. `answer` has questions about facts of CLDR, and is evaluated on questions about the
    same facts in other words, scored by F1 and exact match, in place of WebQuestions; it needs the
    extra `dialog`. All weights change, as in `tiny_finetune`.

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
    """A snippet a row, and the word to answer."""
    return PairInput.params(
        source=task.params(split=split),
        tokenizer=SentinelTokenizer,
        source_length=336,
        target_length=24,
        packing="none",
    )


@experiment
def stability(ablation: Ablation = "baseline", learning_rate: float = 0.01):
    """What makes tiny_pretrain stable or better, at a high learning rate: one change of many.

    `baseline` has no router z-loss; every other value changes one thing of it. In the paper, of six
    runs of the baseline four were stable, at a negative log perplexity of -1.755; all three with
    z-loss, -1.741, with jitter, -1.777, with dropout, -1.822, without GEGLU, -1.849, without scales
    of norms, -2.020 (Zoph et al. 2022, sec. 3). The optimizer is not the paper's Adafactor but
    AdamW, with which the table in docs/experts.md was measured.

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
        case "no_geglu":  # as many products of as many numbers
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
