"""Models of Hugging Face's hub, to decode with and to train further."""

from __future__ import annotations

from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data import PairInput, TextInput, TsvPairs
from lingo.datasets import Docstrings, Signatures
from lingo.optim import AdamW, Warmup
from params.lm.bert import BASE, VOCAB_SIZE, bert, finetuning
from tasks.bert.classification import ClassificationInput, TextClassification
from tasks.bert.input import BertInput
from tasks.bert.question_input import QuestionInput
from tasks.bert.question_task import QuestionAnswering
from tasks.bert.questions import SquadFiles
from tasks.bert.task import BertPretraining
from tasks.hugging_face.read import (
    configure_model,
    read_encoder,
    read_labels,
    read_model,
    read_tokenizer,
    read_word_pieces,
)
from tasks.seq2seq.task import SequenceToSequence

GPT2 = {  # the smallest of Radford et al. 2019, table 2
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50_257,
}


@experiment
def pretrained_model(path: str = "", length: int = 512, batch_size: int = 8):
    """A model of Hugging Face's hub: its weights, its tokenizer, and training that continues.

    `path` is a folder as `git clone` of a model of the hub makes it, with config.json,
    model.safetensors and tokenizer.json (or vocab.txt, for a BERT). Without a folder, the model is
    GPT-2 with random weights. lingo has GPT-2, Llama 2 and 3, Qwen 2 and 3, Gemma 2, Mixtral, T5,
    Switch Transformers, BERT. The data, batch size and learning rate are for a first try: set your
    own. An encoder-decoder gets pairs of texts, a BERT texts with masked tokens, any other model
    plain texts.

    GPT-2 has 124 million weights. Expected result: the logits of transformers, to 1e-4, as tests
    with tiny models show.

    lingo import --from=gpt2 --run=runs/gpt2
    lingo show --exp=huggingface.pretrained_model --weights
    """
    model = read_model(path) if path else configure_model(GPT2)
    length = min(length, model.max_length or length)
    if model.task.cls is SequenceToSequence:
        source = Signatures.params(split="train")
        data = PairInput.params(source=source, source_length=length, target_length=length)
    elif model.task.cls is BertPretraining:
        data = BertInput.params(
            source=Docstrings.params(split="train"),
            length=length,
            max_predictions=max(1, length * 15 // 100),
            pairs=model.task.next_sentence is not None,
        )
    else:
        data = TextInput.params(source=Docstrings.params(split="train"), length=length)
    data.batch_size = batch_size
    if path and (tokenizer := read_tokenizer(path, model)) is not None:
        data.tokenizer = tokenizer
    return Experiment.params(
        task=model.task,
        train_input=data,
        optimizer=AdamW.params(
            learning_rate=1e-5, schedule=Warmup.params(num_steps=100), max_grad_norm=1.0
        ),
        init_from=model.warm_start(path) if path else None,
        max_steps=1000,
    )


@experiment
def bert_questions(path: str = "", folder: str = "~/squad", num_steps: int = 8000):
    """Fine-tunes a BERT of the hub to mark answers in texts, as for SQuAD 1.1; 108,893,186 weights.

    `path` is a folder with a BERT, with or without a head for answers: config.json,
    model.safetensors, and tokenizer.json or vocab.txt. Without a folder, the model is BERT-Base
    with random weights. `folder` has train*.json and dev*.json in SQuAD's format. Exact match and
    F1 follow SQuAD's rules. Batches have 32 rows, the rate is 5e-5, and the steps are about three
    passes (Devlin et al. 2019, sec. 4.2). Rows have 384 tokens, or fewer if the model has fewer
    positions. No published checkpoint was tried here.

    lingo train --exp=huggingface.bert_questions --set=exp.path=bert-base-uncased \\
        --logdir=runs/squad
    """
    data = QuestionInput.params(
        source=SquadFiles.params(pattern=f"{folder}/train*.json"), batch_size=32
    )
    heldout = data.copy().set(repeat=False)
    heldout.source.pattern = f"{folder}/dev*.json"
    cfg = finetuning(QuestionAnswering, train=data, heldout=heldout, num_steps=num_steps)
    cfg = _start_from(cfg, path, pooler=False, head="qa_outputs")
    for data in (cfg.train_input, cfg.eval_inputs["heldout"]):  # 384 tokens: 128 and 64
        data.set(stride=data.length // 3, max_question=data.length // 6)
    return cfg


@experiment
def bert_labels(
    path: str = "",
    folder: str = "~/texts",
    labels: tuple[str, ...] = ("no", "yes"),
    separator: str | None = None,
    num_steps: int = 3000,
):
    """Fine-tunes a BERT of the hub to classify texts or pairs of texts; 109,483,778 weights.

    `path` is as for `bert_questions`; the file's head for classes is read if config.json has the
    same `labels`. `folder` has train*.tsv and dev*.tsv. Each line is a text, a tab and a class,
    one of `labels`. For pairs set `separator`, the characters between the two texts, such as "|".
    Rows have 128 tokens, or fewer if the model has fewer positions.

    lingo train --exp=huggingface.bert_labels --set=exp.path=bert-base-uncased \\
        --logdir=runs/labels
    """
    data = ClassificationInput.params(
        source=TsvPairs.params(pattern=f"{folder}/train*.tsv"),
        labels=list(labels),
        separator=separator,
        batch_size=32,
    )
    heldout = data.copy().set(repeat=False)
    heldout.source.pattern = f"{folder}/dev*.tsv"
    cfg = finetuning(TextClassification, train=data, heldout=heldout, num_steps=num_steps)
    has_head = bool(path) and read_labels(path) == tuple(labels)
    return _start_from(cfg, path, pooler=True, head="classifier" if has_head else "")


def _start_from(cfg: Any, path: str, *, pooler: bool, head: str):
    """Returns a fine-tuning with the encoder, weights and tokenizer of a folder of the hub.

    Rows are at most as long as the encoder allows. Without a folder, the encoder is BERT-Base with
    random weights.
    """
    if path:
        encoder = read_encoder(path, pooler=pooler, head=head)
        model, vocab_size, max_length = encoder.model, encoder.vocab_size, encoder.max_length
        cfg.init_from = encoder.warm_start(path)
    else:
        model, vocab_size, max_length = bert(**BASE), VOCAB_SIZE, 512
        if not pooler:
            model.pooler = None
    cfg.task.model = model
    tokenizer = read_word_pieces(path or "~/bert", vocab_size)
    for data in (cfg.train_input, cfg.eval_inputs["heldout"]):
        data.set(tokenizer=tokenizer.copy(), length=min(data.length, max_length))
    cfg.optimizer.learning_rate = 5e-5
    return cfg
