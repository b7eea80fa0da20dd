"""Models of Hugging Face's hub, to decode with and to train further."""

from __future__ import annotations

import os

from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data import Docstrings, HuggingFaceTokenizer, TextInput
from lingo.optim import AdamW, Warmup
from tasks.lm.hugging_face import decoder, read_config
from tasks.lm.task import LanguageModeling

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
    """A decoder of Hugging Face's: its weights, its tokenizer, and training that continues.

    `path` is a folder with config.json, model.safetensors and tokenizer.json, as `git clone` of a
    model of the hub has it; without one, GPT-2 of random weights. GPT-2, Llama 2 and 3, Qwen 2 and
    3, Gemma 2, Mixtral. The batch and the learning rate are for a first try: set your own.

    GPT-2 has 124 million weights; the others have those of their config.json. Expected result:
    the logits of transformers, to 1e-4, as tests with tiny models show.

    lingo import --from=gpt2 --run=runs/gpt2
    lingo show --exp=lm.huggingface.pretrained_model --weights
    """
    read = decoder(read_config(path) if path else GPT2)
    data = TextInput.params(
        source=Docstrings.params(split="train"),
        batch_size=batch_size,
        length=min(length, read.max_length),
    )
    tokenizer = os.path.join(path, "tokenizer.json")
    if path and os.path.isfile(os.path.expanduser(tokenizer)):
        data.tokenizer = HuggingFaceTokenizer.params(file=tokenizer, vocab_size=read.vocab_size)
    return Experiment.params(
        task=LanguageModeling.params(model=read.model, vocab_size=read.vocab_size),
        train_input=data,
        optimizer=AdamW.params(
            learning_rate=1e-5, schedule=Warmup.params(num_steps=100), max_grad_norm=1.0
        ),
        init_from=read.warm_start(path) if path else None,
        max_steps=1000,
    )
