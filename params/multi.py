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


@experiment
def numwords(share: float = 0.5, batch_size: int = 64):
    """Translation of number words, and a language model of English ones; they share an encoder.

    The encoder's layers, its norm and the embeddings are also the language model's. `share` is the
    probability that a step trains the translation. Needs `pip install 'lingo-tf[text]'`.

    lingo train --exp=multi.numwords --logdir=runs/numwords
    """
    inputs = _inputs(batch_size)
    heldout = {name: data.copy().set(repeat=False) for name, data in inputs.items()}
    for data in heldout.values():
        data.source.split = "heldout"
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
            "translation": TaskInput.params(task="translation", input=heldout["translation"]),
            "lm": TaskInput.params(task="lm", input=heldout["lm"]),
        },
        optimizer=AdamW.params(
            learning_rate=3e-3,
            schedule=Warmup.params(num_steps=100, then=Cosine.params(end=0.05)),
            weight_decay=0.01,
            max_grad_norm=1.0,
        ),
        max_steps=2000,
        evaluate=Evaluation.params(
            every_steps=500,
            answers=Answers.params(
                decoding=Sampling.params(temperature=0.0, max_tokens=32), measures=["exact_match"]
            ),
        ),
        checkpoint=Checkpointing.params(every_steps=500),
    )
