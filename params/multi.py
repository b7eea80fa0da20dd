"""Models of several tasks that share layers."""

from __future__ import annotations

from lingo.config.registry import experiment
from lingo.contract import Answers, Checkpointing, Evaluation, Experiment
from lingo.data import (
    ConstantTasks,
    LearnedPieces,
    MultiTaskInput,
    PairInput,
    TaskInput,
    TextInput,
)
from lingo.decode.sampling import Sampling
from lingo.layers import Rotary, Stack, TransformerLayer
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.learner.multi_task import MultiTask
from lingo.optim import AdamW, Cosine, Warmup
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tasks.mt.number_words import EnglishNumbers, NumberWords
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

DIM = 64


def _tasks():
    """Returns the two tasks; the encoder is causal, so that it is a language model's stack, too."""
    layer = TransformerLayer.params()
    layer.attention.set(num_heads=4, positions=Rotary)
    layer.ffn.hidden_dim = 4 * DIM
    stack = Stack.params(layer=layer, num_layers=2)
    decoder = stack.copy()
    decoder.layer.cross_attention = CrossAttention.params(num_heads=4)
    model = EncoderDecoder.params(dim=DIM, encoder=stack, decoder=decoder)
    return {
        "translation": SequenceToSequence.params(model=model, label_smoothing=0.1),
        "lm": LanguageModeling.params(model=LanguageModel.params(dim=DIM, stack=stack.copy())),
    }


def _inputs(batch_size: int):
    words = NumberWords.params(num_numbers=4000, split="train", heldout_fraction=0.1)
    texts = EnglishNumbers.params(num_numbers=4000, split="train", heldout_fraction=0.1)
    pieces = LearnedPieces.params(source=words.copy(), vocab_size=330)
    pairs = PairInput.params(
        source=words,
        tokenizer=pieces,
        packing="none",
        source_length=32,
        target_length=32,
        batch_size=batch_size,
    )
    lines = TextInput.params(
        source=texts, tokenizer=pieces.copy(), packing="bins", length=32, batch_size=batch_size
    )
    return {"translation": pairs, "lm": lines}


def _optimizer():
    return AdamW.params(
        learning_rate=3e-3,
        schedule=Warmup.params(num_steps=100, then=Cosine.params(end=0.05)),
        weight_decay=0.01,
        max_grad_norm=1.0,
    )


def _evaluate():
    decoding = Sampling.params(temperature=0.0, max_tokens=32)
    answers = Answers.params(decoding=decoding, measures=["exact_match"])
    return Evaluation.params(every_steps=500, answers=answers)


def _heldout(data):
    data = data.copy().set(repeat=False)
    data.source.split = "heldout"
    return data


@experiment
def numwords(share: float = 0.5, batch_size: int = 64):
    """Translation of number words, and a language model of English ones; they share an encoder.

    The encoder's layers, its norm and the embeddings are also the language model's. `share` is the
    probability that a step trains the translation. After 2,000 steps, 1,009 of which trained the
    translation, 99 % of 200 held-out numbers are translated without a mistake, and the loss of
    held-out English words is 0.633 nats a token. Needs `pip install 'lingo-tf[text]'`.

    lingo train --exp=multi.numwords --logdir=runs/numwords
    """
    inputs = _inputs(batch_size)
    return Experiment.params(
        task=MultiTask.params(
            tasks=_tasks(),
            shared={
                "tasks/lm/model/stack": "tasks/translation/model/encoder",
                "tasks/lm/model/norm": "tasks/translation/model/encoder_norm",
                "tasks/lm/model/embedding": "tasks/translation/model/embedding",
            },
        ),
        train_input=MultiTaskInput.params(
            inputs=inputs,
            schedule=ConstantTasks.params(weights={"translation": share, "lm": 1.0 - share}),
        ),
        eval_inputs={
            name: TaskInput.params(task=name, input=_heldout(data)) for name, data in inputs.items()
        },
        optimizer=_optimizer(),
        max_steps=2000,
        evaluate=_evaluate(),
        checkpoint=Checkpointing.params(every_steps=500),
    )


@experiment
def translation(batch_size: int = 64):
    """The translation of numwords alone, with about as many steps as it has there.

    After 1,000 steps all of 200 held-out numbers are translated without a mistake. Needs
    `pip install 'lingo-tf[text]'`.

    lingo train --exp=multi.translation --logdir=runs/translation
    """
    data = _inputs(batch_size)["translation"]
    return Experiment.params(
        task=_tasks()["translation"],
        train_input=data,
        eval_inputs={"translation": _heldout(data)},
        optimizer=_optimizer(),
        max_steps=1000,
        evaluate=_evaluate(),
        checkpoint=Checkpointing.params(every_steps=500),
    )
