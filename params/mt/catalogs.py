"""Translation into English from 12 languages, with and without experts, that trains in an hour.

The question is GShard's (Lepikhin et al. 2020, sec. 4): whether experts help all languages, and
most of all languages with few pairs. Pairs are messages of programs, from the pinned packages of
`tasks/mt/packages.txt`. The languages are Romance, or made of Romance words: a third of them has
about 30,000 pairs each, a third about 5,000, a third about 900. Batches mix them with temperature 5
(Arivazhagan et al. 2019). All languages share one vocabulary, and nothing tells the model which
language it reads.

Models are small T5s. Every second layer of a mixture has GShard's top-2 gating, and experts with
half the features of a dense layer, so two experts compute as much per token as a dense layer.
"""

from __future__ import annotations

from typing import Literal

from lingo.config.registry import experiment
from lingo.contract import Answers, Checkpointing, Evaluation
from lingo.data import LearnedPieces, Mixture, PairInput
from lingo.layers import FeedForward, GShardRouter
from lingo.optim import AdamW, Cosine, Warmup
from params.lm.switch import in_turn, t5, t5_layer
from tasks.mt.translations import Translations

LANGUAGES = {
    "high": ["es", "fr", "it", "pt_BR"],
    "middle": ["ast", "oc", "fur", "an"],
    "low": ["co", "ie", "la", "sc"],
}
"""Language codes by third; within a third, languages with more pairs come first."""

HIDDEN_DIM = 384


@experiment(minutes=78)
def dense(
    folder: str = "~/packages", only: str | None = None, num_steps: int = 6000, batch_size: int = 32
):
    """A dense model of 2 + 2 layers, width 96; 757,504 weights.

    `folder` has the packages, which the first command fetches. `only` names the only language, for
    a bilingual model. Needs `pip install 'lingo-tf[text]'`.

    python -m tasks.mt.packages ~/packages
    lingo train --exp=mt.catalogs.dense --logdir=runs/dense
    lingo train --exp="mt.catalogs.dense(only='oc')" --logdir=runs/oc
    """
    return _catalogs([_layer()] * 2, folder, only, num_steps, batch_size)


@experiment(minutes=85)
def moe_8(
    folder: str = "~/packages", only: str | None = None, num_steps: int = 6000, batch_size: int = 32
):
    """Like dense, with 8 experts in every second layer; a token uses as many weights as in dense.

    python -m tasks.mt.packages ~/packages
    lingo train --exp=mt.catalogs.moe_8 --logdir=runs/moe_8
    """
    return _catalogs(_sparse(8), folder, only, num_steps, batch_size)


@experiment
def moe_32(
    folder: str = "~/packages", only: str | None = None, num_steps: int = 6000, batch_size: int = 32
):
    """Like dense, with 32 experts in every second layer.

    python -m tasks.mt.packages ~/packages
    lingo train --exp=mt.catalogs.moe_32 --logdir=runs/moe_32
    """
    return _catalogs(_sparse(32), folder, only, num_steps, batch_size)


def _layer(hidden_dim: int = HIDDEN_DIM):
    return t5_layer(hidden_dim=hidden_dim, num_heads=4, head_dim=24)


def _sparse(num_experts: int):
    """Returns a dense layer, and a layer with experts of half its features."""
    router = GShardRouter.params(balance_scale="switch")
    pattern = in_turn(
        _layer(), every=2, num_experts=num_experts, router=router, capacity_factor=2.0
    )
    pattern[-1].all(FeedForward).set(hidden_dim=HIDDEN_DIM // 2)
    return pattern


def _catalogs(pattern, folder: str, only: str | None, num_steps: int, batch_size: int):
    thirds = LANGUAGES if only is None else {}
    languages = [only] if only else [code for third in LANGUAGES.values() for code in third]
    cfg = t5(pattern, dim=96, num_layers=2)
    cfg.train_input = Mixture.params(
        inputs={language: _pairs(folder, [language], "train") for language in languages},
        temperature=5.0,
        batch_size=batch_size,
    )
    cfg.eval_inputs = {
        language: _pairs(folder, [language], "heldout").set(
            batch_size=16, repeat=False, max_batches=8
        )
        for language in languages
    }
    cfg.all(PairInput).set(
        tokenizer=LearnedPieces.params(source=_translations(folder, languages), vocab_size=2500)
    )
    cfg.optimizer = AdamW.params(
        learning_rate=4e-3,
        schedule=Warmup.params(num_steps=200, start=0.05, then=Cosine.params(end=0.05)),
        beta2=0.98,
        max_grad_norm=1.0,
    )
    answers = Answers.params(max_examples=60)
    answers.decoding.max_tokens = 64
    cfg.evaluate = Evaluation.params(every_steps=num_steps, averages=thirds, answers=answers)
    return cfg.set(max_steps=num_steps, checkpoint=Checkpointing.params(every_steps=1000))


def _pairs(folder: str, languages: list[str], split: Literal["train", "heldout"]):
    return PairInput.params(
        source=_translations(folder, languages, split),
        source_length=96,
        target_length=96,
        too_long="leave_out",
    )


def _translations(folder: str, languages: list[str], split: Literal["train", "heldout"] = "train"):
    return Translations.params(
        pattern=folder, languages=languages, split=split, heldout_fraction=0.1
    )
