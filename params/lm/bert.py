"""BERT (Devlin et al. 2019): pre-training, LAMB's recipe for large batches, and fine-tuning.

base, large                     the published sizes, with AdamW
large_lamb                      BERT-Large in batches of 65,536 and 32,768, with LAMB
tiny_bert                       a model that trains on docstrings in minutes
tiny_questions, tiny_labels     fine-tunes tiny_bert: answers to questions, classes of code

The token table has V = 30,522 rows in the published sizes; the head of masked tokens reads the same
table. The number of weights is

    V D + 512 D + 2 D + 2 D + L (12 D^2 + 13 D) + D^2 + D, with the pooler
    + D^2 + D + 2 D + V + 2 D + 2, with both heads
"""

from __future__ import annotations

from typing import Any, Literal

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.params import Params
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import HuggingFaceTokenizer, JsonLines, LearnedWordPieces, StagedInput
from lingo.datasets import Docstrings
from lingo.layers import Attention, FeedForward, Remat, Repeat
from lingo.optim import (
    AdamW,
    Lamb,
    LinearRate,
    SequentialSchedule,
    SwitchedWarmup,
    Warmup,
    scale_by_root,
)
from lingo.runtimes.mesh.mesh import Mesh
from tasks.bert.classification import ClassificationInput, TextClassification
from tasks.bert.input import BertInput
from tasks.bert.model import Bert
from tasks.bert.question_input import QuestionInput
from tasks.bert.question_task import QuestionAnswering
from tasks.bert.questions import DocstringQuestions
from tasks.bert.task import BertPretraining
from tasks.classification.snippets import Brackets, DocstringMatch, Exceptions, TokenKinds

VOCAB_SIZE = 30_522
ATTENTION_BIASES = r".*/b_(query|key|value)"
"""Biases of heads have two axes, so the rule for vectors misses them: they get no weight decay and
no trust ratio."""

LABEL_TASKS = {  # the tasks of `tiny_labels`: sources of code, and their classes
    "brackets": (Brackets, ["match", "differ"]),
    "docstring": (DocstringMatch, ["match", "differ"]),
    "exception": (Exceptions, Exceptions.labels),
    "kind": (TokenKinds, TokenKinds.labels),
}


def bert(*, dim: int, num_layers: int, num_heads: int, max_length: int = 512):
    """Returns a BERT whose feed-forward networks are four times as wide as the model."""
    params = Bert.params(dim=dim)
    params.positions.max_length = max_length
    params.stack.num_layers = num_layers
    params.all(Attention).set(num_heads=num_heads)
    params.all(FeedForward).set(hidden_dim=4 * dim)
    return params


def recompute(model: Params) -> Params:
    """Returns a BERT that recomputes its layers in the backward pass and is compiled as a loop."""
    layer, num_layers = model.stack.layer, model.stack.num_layers
    return model.set(stack=Repeat.params(layer=Remat.params(layer=layer), num_layers=num_layers))


BASE = {"dim": 768, "num_layers": 12, "num_heads": 12}
LARGE = {"dim": 1024, "num_layers": 24, "num_heads": 16}


def texts(folder: str, *, length: int, max_predictions: int, batch_size: int):
    """Returns rows of your own texts: .jsonl files with a field `text`, and tokenizer.json.

    "[MASK]" written in a text is encoded as plain text.
    """
    return BertInput.params(
        source=JsonLines.params(pattern=f"{folder}/*.jsonl*"),
        tokenizer=HuggingFaceTokenizer.params(
            file=f"{folder}/tokenizer.json",
            vocab_size=VOCAB_SIZE,
            start="[CLS]",
            end="[SEP]",
            pad="[PAD]",
            special_in_text=False,
        ),
        length=length,
        max_predictions=max_predictions,
        batch_size=batch_size,
    )


def _published(shape: dict[str, int], folder: str, data: int):
    """Returns an experiment of 900,000 steps with 128 tokens, then 100,000 with 512.

    Devlin et al. 2019, app. A.2.
    """
    short, long = (
        texts(folder, length=length, max_predictions=num, batch_size=256)
        for length, num in ((128, 20), (512, 76))
    )
    return Experiment.params(
        task=BertPretraining.params(model=bert(**shape), dtype="bfloat16"),
        train_input=StagedInput.params(stages=((short, 900_000), (long, 100_000))),
        optimizer=AdamW.params(
            learning_rate=1e-4,
            schedule=SwitchedWarmup.params(num_steps=10_000, then=LinearRate),
            weight_decay=0.01,
            epsilon=1e-6,
            no_decay=(ATTENTION_BIASES,),
            max_grad_norm=1.0,
        ),
        runtime=Mesh.params(data=data),
        max_steps=1_000_000,
    )


@experiment
def base(folder: str = "~/bert", data: int = 16):
    """BERT-Base: 12 layers, width 768, 12 heads; 110,106,428 weights, 109,482,240 without heads.

    `folder` has your texts, .jsonl files with a field `text`, and tokenizer.json, a WordPiece
    tokenizer with 30,522 pieces. Published: 1,000,000 steps of 256 rows on Wikipedia and
    BooksCorpus, four days on 16 TPU chips (Devlin et al. 2019, app. A.2). Not run here.

    lingo show --exp=lm.bert.base --weights
    """
    return _published(BASE, folder, data)


@experiment
def large(folder: str = "~/bert", data: int = 64):
    """BERT-Large: 24 layers, width 1024, 16 heads; 336,226,108 weights, 335,141,888 without heads.

    Texts are as for `base`. Published: four days on 64 TPU chips. Not run here.

    lingo show --exp=lm.bert.large --weights
    """
    return _published(LARGE, folder, data)


@experiment
def large_lamb(folder: str = "~/bert", data: int = 1024):
    """BERT-Large by LAMB in 8,599 steps: batches of 65,536 rows, then 32,768; 336,226,108 weights.

    The first 7,037 steps have 65,536 rows of 128 tokens, the last 1,562 have 32,768 rows of 512.
    Each stage begins with a warm-up. Published: 76 minutes on 1,024 chips of TPU v3, and an F1 of
    90.584 on SQuAD 1.1 (You et al., arXiv v1). lingo chose the learning rate, 0.005 for 32,768
    rows, which grows with the root of the batch, and the length of the warm-ups, a fifth of each
    stage. Texts are as for `base`. Not run here.

    lingo show --exp=lm.bert.large_lamb --plot_schedule
    """
    num_long = 1562  # a tenth of 15,625 steps of 32,768 rows; the other rows come first
    num_short = 8599 - num_long
    short = texts(folder, length=128, max_predictions=20, batch_size=65_536)
    long = texts(folder, length=512, max_predictions=76, batch_size=32_768)
    rate = scale_by_root(0.005, batch_size=65_536, base_batch_size=32_768)
    parts = [(_rise_and_fall(num_short), num_short), (_rise_and_fall(num_long, 0.5**0.5), num_long)]
    return Experiment.params(
        task=BertPretraining.params(model=recompute(bert(**LARGE)), dtype="bfloat16"),
        train_input=StagedInput.params(stages=((short, num_short), (long, num_long))),
        optimizer=Lamb.params(
            learning_rate=rate,
            schedule=SequentialSchedule.params(parts=parts),
            no_decay=(ATTENTION_BIASES,),
            no_ratio=(ATTENTION_BIASES,),
        ),
        runtime=Mesh.params(data=data),
        max_steps=8599,
    )


def _rise_and_fall(num_steps: int, height: float = 1.0):
    """Returns a linear rise to `height` in a fifth of the steps, then a linear fall to 0."""
    rise = num_steps // 5
    return Warmup.params(
        num_steps=rise, then=LinearRate.params(num_steps=num_steps - rise, start=height)
    )


# ---- small forms ---------------------------------------------------------------------------------

TINY = {"dim": 64, "num_layers": 4, "num_heads": 4, "max_length": 128}
TINY_LENGTH = 64
TINY_EPOCH_ROWS = 60_500  # about; the exact number depends on the versions of the packages


def _pieces():
    return LearnedWordPieces.params(source=Docstrings.params(split="train"), vocab_size=1000)


def _docstrings(split: Literal["train", "heldout"], *, length: int, batch_size: int):
    return BertInput.params(
        source=Docstrings.params(split=split),
        tokenizer=_pieces(),
        length=length,
        max_predictions=length * 3 // 20 + 1,
        batch_size=batch_size,
    )


@experiment
def tiny_bert(
    optimizer: Literal["lamb", "adamw"] = "lamb",
    batch_size: int = 32,
    learning_rate: float = 0.005,
    epochs: float = 3.0,
    stages: bool = False,
):
    """A BERT with 4 layers and width 64, on docstrings; 281,962 weights.

    Rows have 64 tokens. `learning_rate` is for 32 rows, and grows with the root of `batch_size`.
    With `stages`, the last tenth of the steps has rows of 128 tokens. An evaluation has
    1,024 held-out rows. Needs `pip install 'lingo-tf[tokenizers]'`.

    lingo train --exp=lm.bert.tiny_bert --logdir=runs/bert
    """
    num_steps = round(epochs * TINY_EPOCH_ROWS / batch_size)
    train = _docstrings("train", length=TINY_LENGTH, batch_size=batch_size)
    if stages:
        num_long = num_steps // 10
        long = _docstrings("train", length=2 * TINY_LENGTH, batch_size=batch_size)
        train = StagedInput.params(stages=((train, num_steps - num_long), (long, num_long)))
    heldout = _docstrings("heldout", length=TINY_LENGTH, batch_size=64)
    shared: dict[str, Any] = {
        "learning_rate": scale_by_root(learning_rate, batch_size=batch_size, base_batch_size=32),
        "schedule": Warmup.params(num_steps=num_steps // 10, then=LinearRate),
        "weight_decay": 0.01,
        "epsilon": 1e-6,
        "no_decay": (ATTENTION_BIASES,),
    }
    if optimizer == "lamb":
        cfg_optimizer = Lamb.params(no_ratio=(ATTENTION_BIASES,), **shared)
    else:
        cfg_optimizer = AdamW.params(max_grad_norm=1.0, **shared)
    return Experiment.params(
        task=BertPretraining.params(model=bert(**TINY)),
        train_input=train,
        eval_inputs={"heldout": heldout.set(repeat=False, max_batches=16)},
        optimizer=cfg_optimizer,
        evaluate=Evaluation.params(every_steps=max(num_steps // 4, 1)),
        checkpoint=Checkpointing.params(every_steps=max(num_steps // 4, 1)),
        max_steps=num_steps,
    )


def finetuning(task: Any, *, train: Any, heldout: Any, num_steps: int):
    """Returns a fine-tuning by AdamW; warm-up is a tenth of it (Devlin et al. 2019, app. A.3)."""
    return Experiment.params(
        task=task,
        train_input=train,
        eval_inputs={"heldout": heldout},
        optimizer=AdamW.params(
            learning_rate=5e-4,
            schedule=Warmup.params(num_steps=num_steps // 10, then=LinearRate),
            weight_decay=0.01,
            epsilon=1e-6,
            no_decay=(ATTENTION_BIASES,),
            max_grad_norm=1.0,
        ),
        evaluate=Evaluation.params(every_steps=num_steps),
        max_steps=num_steps,
    )


def _from_run(pretrained: str | None):
    """Returns the params of a WarmStart from the encoder of a run of `tiny_bert`, or None."""
    return None if pretrained is None else WarmStart.params(path=pretrained, only=("model/.*",))


@experiment
def tiny_questions(pretrained: str | None = None, num_steps: int = 2000):
    """Fine-tunes tiny_bert to mark the span that answers a question about a docstring.

    The answer to "What is axis?" is the first sentence about this argument. `pretrained` is a run
    of `tiny_bert` with `stages`; without one, all weights are initialized at random. Exact match
    and F1 follow SQuAD's rules. The model has 272,514 weights.

    lingo train --exp="lm.bert.tiny_bert(stages=True)" --logdir=runs/bert
    lingo train --exp=lm.bert.tiny_questions --set=exp.pretrained=runs/bert --logdir=runs/questions
    """
    data = QuestionInput.params(
        source=DocstringQuestions.params(source=Docstrings.params(split="train")),
        tokenizer=_pieces(),
        length=2 * TINY_LENGTH,
        stride=64,
        max_question=16,
        max_answer=40,
        batch_size=32,
    )
    heldout = data.copy().set(batch_size=64, repeat=False, max_batches=64)
    heldout.source.source.split = "heldout"
    model = bert(**TINY).set(pooler=None)
    task = QuestionAnswering.params(model=model)
    cfg = finetuning(task, train=data, heldout=heldout, num_steps=num_steps)
    return cfg.set(init_from=_from_run(pretrained))


@experiment
def tiny_labels(
    pretrained: str | None = None,
    task: Literal["brackets", "docstring", "exception", "kind"] = "docstring",
    num_steps: int = 1000,
):
    """Fine-tunes tiny_bert to classify code, for example whether a docstring fits a signature.

    The task `docstring` has pairs of texts, the other tasks one text. `pretrained` is as for
    `tiny_questions`. With two classes, the model has 276,674 weights.

    lingo train --exp=lm.bert.tiny_labels --set=exp.pretrained=runs/bert --logdir=runs/labels
    """
    source, labels = LABEL_TASKS[task]
    data = ClassificationInput.params(
        source=source.params(split="train"),
        tokenizer=_pieces(),
        labels=list(labels),
        separator="\n" if task == "docstring" else None,
        length=2 * TINY_LENGTH,
        batch_size=32,
    )
    heldout = data.copy().set(batch_size=64, repeat=False, max_batches=32)
    heldout.source.split = "heldout"
    classification = TextClassification.params(model=bert(**TINY))
    cfg = finetuning(classification, train=data, heldout=heldout, num_steps=num_steps)
    return cfg.set(init_from=_from_run(pretrained))
