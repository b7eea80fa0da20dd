"""Synonyms: names in Keras, PyTorch, JAX and Lingvo -> the name of the same thing in lingo."""

from __future__ import annotations

_STEPS = "steps num_steps total_steps train_steps training_steps iterations"
_RUN = "log_dir output_dir out_dir save_dir work_dir workdir model_dir checkpoint_dir dir output"

_WORDS = {  # lingo's name -> names in other frameworks, in lower case
    "max_steps": f"{_STEPS} num_train_steps",
    "max_epochs": "epochs num_epochs n_epochs num_train_epochs",
    "learning_rate": "lr eta step_size",
    "weight_decay": "wd l2",
    "epsilon": "eps",
    "max_grad_norm": "clip_norm clipnorm grad_clip gradient_clip_val clip_grad_norm",
    "accumulation_steps": "gradient_accumulation_steps grad_accum accum",
    "batch_size": "bs batch per_device_train_batch_size",
    "length": "seq_len sequence_length max_seq_len max_length context_length block_size",
    "pattern": "path file files filename",
    "source": "data dataset",
    "keep": "max_to_keep keep_last save_total_limit",
    "every_steps": "every save_every save_steps save_interval log_every eval_every eval_steps",
    "patience": "early_stopping",
    "num_heads": "heads n_heads nhead num_attention_heads",
    "num_layers": "layers n_layers depth num_hidden_layers",
    "model_dim": "dim d_model hidden_size embed_dim width",
    "hidden_dim": "d_ff intermediate_size mlp_dim",
    "dropout_rate": "dropout drop_rate",
    "max_wavelength": "base theta rope_theta",
    "max_tokens": "max_new_tokens max_length",
    "dtype": "precision mixed_precision",
    "float16": "fp16 half f16",
    "bfloat16": "bf16",
    "float32": "fp32 single f32",
    "silu": "swish",
    "Linear": "dense",
    "FeedForward": "mlp ffn",
    "Attention": "multiheadattention mha selfattention",
    "MoE": "mixtureofexperts",
    "Rotary": "rope rotaryembedding",
    "LayerNorm": "layernormalization",
    "Cosine": "cosinedecay cosineannealinglr",
    "Cyclic": "cycliclr",
    "Exponential": "exponentialdecay exponentiallr",
    "Momentum": "sgdmomentum",
    "Piecewise": "multisteplr piecewiseconstantdecay",
    "Plateau": "reducelronplateau",
    "Polynomial": "polynomialdecay polynomiallr",
    "Warmup": "linearwarmup warmuplr",
    "Local": "gpu cpu cuda",
    "data": "dp ddp",
    "model": "tp",
    "stage": "pp",
    "logdir": _RUN,
    "exp": "experiment config cfg",
    "set": "override overrides",
    "prompt": "text",
    "step": "checkpoint ckpt",
    "traceback": "debug verbose v",
}


def synonyms(word: str) -> list[str]:
    """Returns lingo's names for another framework's word, in any case; likeliest first."""
    return [name for name, words in _WORDS.items() if word.lower() in words.split()]
