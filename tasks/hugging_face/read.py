"""Reads the folder of a model of Hugging Face's hub, of any `model_type` that lingo has.

config.json         ->  a task with a model of that shape     (`HubModel.task`)
model.safetensors   ->  its weights, by a WarmStart           (`HubModel.warm_start`)
tokenizer.json      ->  its tokens, for a BERT also vocab.txt (`read_tokenizer`)
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lingo.checkpoints.sources.find import find_source
from lingo.checkpoints.sources.hugging_face import CONFIG
from lingo.checkpoints.sources.weight_source import UnusableSource
from lingo.config.base import regular_file
from lingo.config.params import ParamError, Params, suggest
from lingo.data import ByteTokenizer, HuggingFaceTokenizer, WordPieces
from lingo.data.hugging_face_tokenizer import CONFIG as TOKENIZER_CONFIG
from lingo.data.hugging_face_tokenizer import FILE as TOKENIZER
from lingo.data.hugging_face_tokenizer import MAX_BYTES
from tasks.bert.task import BertPretraining
from tasks.hugging_face.bert import ENCODERS, HubEncoder, configure_encoder
from tasks.hugging_face.config import Config, HubModel
from tasks.hugging_face.decoder import DECODERS
from tasks.hugging_face.encoder_decoder import ENCODER_DECODERS

VOCABULARY = "vocab.txt"
KINDS = DECODERS | ENCODER_DECODERS | ENCODERS


def read_model(folder: str | os.PathLike[str]) -> HubModel:
    """Returns the model in a folder; raises ParamError if lingo has no such model."""
    return configure_model(read_config(folder), tensors=_tensor_names(folder))


def configure_model(config: Mapping[str, Any], *, tensors: Collection[str] = ()) -> HubModel:
    """Returns the model that a configuration describes; raises ParamError if lingo has none.

    `tensors` are the names of the weights in its files, which may differ between models with equal
    configurations. Without any, the weights are assumed to have the names of transformers.
    """
    kind = config.get("model_type", "")
    if not isinstance(kind, str) or kind not in KINDS:
        near = suggest(str(kind), KINDS)
        raise ParamError(f"model_type={kind!r} is not one of {', '.join(sorted(KINDS))}.{near}")
    return KINDS[kind](Config(config, tensors))


def read_encoder(folder: str | os.PathLike[str], *, pooler: bool, head: str = "") -> HubEncoder:
    """Returns the BERT in a folder for a task other than pre-training, such as classification.

    `pooler` and `head` are as for `configure_encoder`. Raises ParamError for another model.
    """
    config = read_config(folder)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ENCODERS:
        raise ParamError(f"model_type={kind!r} is no encoder: {', '.join(ENCODERS)} is wanted")
    return configure_encoder(Config(config, _tensor_names(folder)), pooler=pooler, head=head)


def read_labels(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Returns the class names of a classifier in a folder; () if a name is missing."""
    names = read_config(folder).get("id2label")
    if not isinstance(names, dict) or {*names} != {str(i) for i in range(len(names))}:
        return ()
    return tuple(str(names[str(i)]) for i in range(len(names)))


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the content of `config.json` in a folder; raises ParamError if it cannot be read."""
    return read_object(_path(folder) / CONFIG)


def read_tokenizer(folder: str | os.PathLike[str], model: HubModel) -> Params | None:
    """Returns the params of the tokenizer in a model's folder; None if bytes can replace it.

    Bytes cannot replace it if the model masks tokens, or has too few ids for bytes. Then the params
    name the missing file. Opening this tokenizer raises an error that names the file, unless an
    override sets another tokenizer.
    """
    if model.task.cls is BertPretraining:
        return read_word_pieces(folder, model.task.vocab_size)
    file, vocab_size = _path(folder) / TOKENIZER, model.task.vocab_size
    has_tokenizer = os.path.lexists(file)  # a broken link is an error when it is opened
    if not has_tokenizer and vocab_size >= ByteTokenizer.vocab_size:
        return None
    tokenizer = HuggingFaceTokenizer.params(file=str(file), vocab_size=vocab_size)
    if has_tokenizer and model.start_id is not None:
        tokenizer.start = _added_token(read_object(file), model.start_id)
    return tokenizer


def read_word_pieces(folder: str | os.PathLike[str], vocab_size: int) -> Params:
    """Returns the params of a BERT's tokenizer, from tokenizer.json or else from vocab.txt.

    If a folder has neither, opening the tokenizer raises an error that names tokenizer.json.
    """
    path = _path(folder)
    if os.path.lexists(path / TOKENIZER) or not os.path.lexists(path / VOCABULARY):
        return HuggingFaceTokenizer.params(
            file=str(Path(folder) / TOKENIZER),  # "~" stays, the same for all users
            vocab_size=vocab_size,
            start="[CLS]",
            end="[SEP]",
            pad="[PAD]",
        )
    settings = path / TOKENIZER_CONFIG
    found = read_object(settings) if os.path.lexists(settings) else {}
    return WordPieces.params(
        file=str(Path(folder) / VOCABULARY),
        vocab_size=vocab_size,
        lowercase=bool(found.get("do_lower_case", True)),
    )


def _path(folder: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(folder))


def _tensor_names(folder: str | os.PathLike[str]) -> Collection[str]:
    """Returns the names of the tensors in a folder; () if it has only a configuration."""
    try:
        return find_source(_path(folder), step=None, averages=False).tensors
    except UnusableSource:  # reading the weights raises it again
        return ()


def _added_token(tokenizer: Mapping[str, Any], number: int) -> str:
    """Returns the added token with id `number` in a tokenizer.json; "" if it has no such token."""
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        match entry:
            case {"id": int(found), "content": str(content)} if found == number:
                return content
    return ""


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises ParamError if it cannot be read or is another."""
    try:
        data = regular_file.read(file, max_bytes=MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise ParamError(f"{file} is larger than {MAX_BYTES >> 20} MiB")
        content = json.loads(data)
    except OSError as error:
        raise ParamError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ParamError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ParamError(f"{file} does not hold a JSON object")
    return content
