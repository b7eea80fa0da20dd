"""Small files of the library `tokenizers`, of the kinds that published models have."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]
Untrained = tuple[Any, Any]  # a tokenizer and a trainer of the library


def gpt2() -> Untrained:
    tokenizer = library.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(vocab_size=400, initial_alphabet=ALPHABET)


def llama3() -> Untrained:
    tokenizer = library.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(library.Regex(LLAMA_3), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 2)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(vocab_size=400, initial_alphabet=ALPHABET)


def t5() -> Untrained:
    tokenizer = library.Tokenizer(models.Unigram())
    blanks = normalizers.Replace(library.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), blanks])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer, trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>")


def llama2() -> Untrained:
    tokenizer = library.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    return tokenizer, trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL, *every_byte])


def bert() -> Untrained:
    tokenizer = library.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(vocab_size=300)


KINDS = {make.__name__: make for make in (gpt2, llama3, t5, llama2, bert)}


def write_tokenizers(folder: pathlib.Path, texts: list[str]) -> None:
    """Writes gpt2/tokenizer.json and tokenizer_config.json, and so on for each kind."""
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<pad>"}
    for name, make in KINDS.items():
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(_train(make, texts))
        (folder / name / "tokenizer_config.json").write_text(json.dumps(config))


def _train(make: Callable[[], Untrained], texts: list[str]) -> str:
    """Returns the text of a tokenizer.json, whose ids 0, 1, 2, 3 are those of SPECIAL."""
    tokenizer, trainer = make()
    trainer.show_progress = False
    if make is not llama2:
        trainer.special_tokens = SPECIAL
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer.to_str()
    # Without a pre-tokenizer it would learn tokens across words.
    normalizer, tokenizer.normalizer = tokenizer.normalizer, None
    tokenizer.train_from_iterator([f"\u2581{word}" for word in " ".join(texts).split()], trainer)
    tokenizer.normalizer = normalizer
    values = json.loads(tokenizer.to_str())
    values["added_tokens"] = [t for t in values["added_tokens"] if t["content"] in SPECIAL]
    return json.dumps(values)
