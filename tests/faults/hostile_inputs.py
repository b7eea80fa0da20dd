"""Hostile inputs of the kinds of files that lingo reads, made from a sound one of each kind.

Each is what a file may be by accident or intent: cut, flipped, of another format, absurdly large or
deep, no file at all. `KINDS` has a table for each kind; `write` makes one input in a folder.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from lingo.checkpoints.manifest import render
from lingo.cli.main import main
from lingo.config.lazy import tf
from lingo.data.sources.tfrecord import frame, masked_crc32c
from lingo.export.manifest import write_manifest
from lingo.trainer.mlperf.mllog import read_log

NOT_VALID, BAD_USAGE, NO_WEIGHTS, OTHER_MODEL, BAD_DATA = 1, 2, 3, 4, 5
GIB = 1 << 30

Write = Callable[[pathlib.Path, bytes], None]
"""Writes a hostile input at a path, given the bytes of a sound one."""


class Kind(NamedTuple):
    """A kind of file, the command that reads it, and hostile files of it."""

    file: str  # below the folder of a case
    command: tuple[str, ...]  # arguments of `lingo`, run in the folder
    codes: Collection[int]  # with which a hostile input may end
    write_sound: Callable[[pathlib.Path], None]  # fills the folder of a case
    own: Mapping[str, Write]  # hostile inputs by name, besides those of every kind
    harmless: Collection[str] = ()  # inputs that may also end as a sound one

    @property
    def inputs(self) -> dict[str, Write]:
        """All hostile inputs by name."""
        return {**ANY_KIND, **self.own}


def write(kind: Kind, name: str | None, folder: pathlib.Path) -> None:
    """Fills a new folder with a sound input, or one whose file is the hostile one of a name."""
    folder.mkdir()
    (folder / "hostile.py").write_text(EXPERIMENTS)
    kind.write_sound(folder)
    if name is not None:
        path = folder / kind.file
        sound = path.read_bytes()
        path.unlink()
        kind.inputs[name](path, sound)


# ---- of every kind -------------------------------------------------------------------------------


def changed(change: Callable[[bytes], bytes]) -> Write:
    """Returns what writes the bytes of a sound file after a change."""
    return lambda path, sound: _put(path, change(sound))


def fixed(make: Callable[[], bytes]) -> Write:
    """Returns what writes bytes that do not depend on the sound file."""
    return lambda path, sound: _put(path, make())


def _put(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)


def _high_bit(part: float) -> Write:
    """Returns what flips the highest bit of a byte, at a part of the file."""

    def flip(sound: bytes) -> bytes:
        data = bytearray(sound)
        data[int(part * len(data))] ^= 0x80
        return bytes(data)

    return changed(flip)


def _grown(start: Callable[[bytes], bytes]) -> Write:
    """Returns what writes some bytes and zeros after them, 2 GiB in all, which take no room."""

    def put(path: pathlib.Path, sound: bytes) -> None:
        _put(path, start(sound))
        os.truncate(path, 2 * GIB)

    return put


def _linked(target: str) -> Write:
    return lambda path, sound: path.symlink_to(target)


def _zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", content)
    return stream.getvalue()


@functools.cache
def _gzip_bomb() -> bytes:
    """Returns 8 MB that unpack to 8 GiB."""
    return 128 * gzip.compress(bytes(1 << 26), 1)


ANY_KIND: dict[str, Write] = {
    "empty": fixed(lambda: b""),
    "one byte": changed(lambda sound: sound[:1]),
    "first half": changed(lambda sound: sound[: len(sound) // 2]),
    "nine tenths": changed(lambda sound: sound[: len(sound) * 9 // 10]),
    "end without start": changed(lambda sound: sound[len(sound) // 3 :]),
    "2 GiB of zeros": _grown(lambda sound: b""),
    "2 GiB after the content": _grown(lambda sound: sound),
    "a megabyte of chance": fixed(lambda: np.random.default_rng(0).bytes(1 << 20)),
    "a megabyte of 255": fixed(lambda: b"\xff" * (1 << 20)),
    "another text": fixed(lambda: b"<!DOCTYPE html>\n<html>404 Not Found</html>\n"),
    "high bit of the first byte": _high_bit(0),
    "high bit near the start": _high_bit(0.02),
    "gzip": changed(gzip.compress),
    "gzip of 8 GiB": fixed(_gzip_bomb),
    "zip": changed(_zipped),
    "a directory": lambda path, sound: path.mkdir(),
    "a pipe": lambda path, sound: os.mkfifo(path),
    "a link to nothing": _linked("nowhere"),
    "a link to itself": lambda path, sound: path.symlink_to(path.name),
    "a link to endless zeros": _linked("/dev/zero"),
}


# ---- images --------------------------------------------------------------------------------------


def _encode(form: str, **options: Any) -> bytes:
    coarse = np.random.default_rng(1).integers(0, 256, [8, 8, 3], np.uint8)
    image, stream = Image.fromarray(coarse).resize((64, 64)), io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, data: bytes, *, before: bytes = b"", colour: int = 2) -> bytes:
    """Returns a PNG of 8 bits whose pixels are compressed data, with chunks before them."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    end = chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + before + end


ROWS = zlib.compress(bytes(64 * (1 + 3 * 64)))  # of 64 x 64 pixels


@functools.cache
def _deflated(num_gib: int) -> bytes:
    """Returns a zlib stream, without its end, of zeros."""
    packer = zlib.compressobj(9)
    packer.compress(b"")
    first = packer.compress(bytes(1 << 26)) + packer.flush(zlib.Z_FULL_FLUSH)
    more = packer.compress(bytes(1 << 26)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + more * (num_gib * 16 - 1)


def _resized_jpeg(height: int, width: int) -> bytes:
    """Returns a JPEG whose header says another size."""
    data = bytearray(_encode("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def cut_jpeg(data: bytes, part: float) -> bytes:
    """Returns a JPEG of which only a part of the pixels' data is left, with its end marker."""
    start = data.index(b"\xff\xda") + 14
    return data[: start + int(part * (len(data) - start))].rstrip(b"\xff") + b"\xff\xd9"


def _many_scans() -> bytes:
    data = _encode("JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    scan = data[at:-2]
    header = _resized_progressive(data[:at])
    return header + scan * 20_000 + b"\xff\xd9"


def _resized_progressive(data: bytes) -> bytes:
    at = data.index(b"\xff\xc2")
    return data[: at + 5] + struct.pack(">HH", 1024, 1024) + data[at + 9 :]


HARMLESS_IMAGES = (
    "PNG with a profile of 1 GiB",  # which is not read
    *("gzip", "a directory"),  # which are read as any other
)
IMAGES: dict[str, Write] = {
    "PNG of 13,000 x 13,000": fixed(lambda: png(13_000, 13_000, _deflated(1)[: 1 << 19])),
    "PNG header of 178,000,000 x 1": fixed(lambda: png(178_000_000, 1, ROWS)),
    "PNG header of 8,000 x 8,000": fixed(lambda: png(8_000, 8_000, ROWS)),
    "PNG header of 0 x 64": fixed(lambda: png(0, 64, ROWS)),
    "PNG with 8 GiB of surplus pixels": fixed(lambda: png(64, 64, _deflated(8))),
    "PNG with a profile of 1 GiB": fixed(
        lambda: png(64, 64, ROWS, before=chunk(b"iCCP", b"a\0\0" + _deflated(1)))
    ),
    "PNG of two million chunks": fixed(
        lambda: png(64, 64, ROWS, before=chunk(b"tEXt", b"a\0") * 2_000_000)
    ),
    "PNG of an unknown colour": fixed(lambda: png(64, 64, ROWS, colour=5)),
    "JPEG header of 65,535 x 65,535": fixed(lambda: _resized_jpeg(65_535, 65_535)),
    "JPEG header of 8,000 x 8,000": fixed(lambda: _resized_jpeg(8_000, 8_000)),
    "JPEG cut to a tenth": fixed(lambda: _encode("JPEG")[:700]),
    "JPEG with a tenth of its pixels": fixed(lambda: cut_jpeg(_encode("JPEG"), 0.1)),
    "JPEG of 20,000 scans": fixed(_many_scans),
    "JPEG of a million segments": fixed(
        lambda: b"\xff\xd8" + b"\xff\xfe\0\2" * 1_000_000 + _encode("JPEG")[2:]
    ),
}


def _write_images(folder: pathlib.Path) -> None:
    for name in ("a/0.png", "b/1.png"):
        (folder / "images" / name).parent.mkdir(parents=True)
        (folder / "images" / name).write_bytes(_encode("PNG"))


# ---- npz -----------------------------------------------------------------------------------------


def npy(header: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Returns an array's file, whose header may say anything."""
    text = header.encode() if isinstance(header, str) else header
    text += b"\n"
    size = len(text) if length is None else length
    return b"\x93NUMPY\2\0" + struct.pack("<I", size) + text + data


def npz(packing: int = zipfile.ZIP_STORED, **entries: bytes) -> bytes:
    """Returns an archive of arrays' files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def header(shape: object, descr: object = "<f4") -> str:
    """Returns the header of an array's file."""
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}"


Y = npy(header("(4,)", "<i4"), bytes(16))


def _bomb_of_arrays() -> bytes:
    with_zeros = npy(header((GIB,)), bytes(1 << 28))
    return npz(zipfile.ZIP_DEFLATED, x=with_zeros[: 1 << 28], x2=with_zeros, y=Y)


def _lying_size() -> bytes:
    """Returns an archive whose directory says that an array has 4 GB."""
    data = bytearray(npz(x=npy(header((1 << 30,)), bytes(64)), y=Y))
    at = data.index(b"PK\1\2")
    data[at + 20 : at + 28] = struct.pack("<II", 100, 0xFFFFFFF0)
    return bytes(data)


def _encrypted() -> bytes:
    data = bytearray(npz(x=Y, y=Y))
    for magic, at in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        data[data.index(magic) + at] |= 1
    return bytes(data)


ARRAYS: dict[str, Write] = {
    "shape of 10**18": fixed(lambda: npz(x=npy(header((10**18,)), bytes(64)), y=Y)),
    "one array of 10**13": fixed(lambda: npy(header((10**13,)), bytes(64))),
    "shape of 10**30": fixed(lambda: npz(x=npy(header((10**30,)), bytes(64)), y=Y)),
    "negative shape": fixed(lambda: npz(x=npy(header((-4, 2)), bytes(32)), y=Y)),
    "5,000 axes": fixed(lambda: npz(x=npy(header((4, *[1] * 5_000)), bytes(16)), y=Y)),
    "shape larger than its bytes": fixed(lambda: npz(x=npy(header((400, 2)), bytes(32)), y=Y)),
    "empty shape of 4 GB for 0 bytes": fixed(lambda: npz(x=npy(header((0, 1 << 62))), y=Y)),
    "unknown type": fixed(lambda: npz(x=npy(header((4,), "<q9"), bytes(64)), y=Y)),
    "objects": fixed(lambda: npz(x=npy(header((4,), "|O"), b"cos\nsystem\n"), y=Y)),
    "header of brackets": fixed(lambda: npz(x=npy("(" * 9_000, bytes(16)), y=Y)),
    "header of 4 GB": fixed(lambda: npz(x=npy(header((4,)), bytes(16), length=2**32 - 1), y=Y)),
    "directory with a wrong size": fixed(_lying_size),
    "encrypted": fixed(_encrypted),
    "bomb": fixed(_bomb_of_arrays),
}


def _write_arrays(folder: pathlib.Path) -> None:
    x, y = np.random.default_rng(0).random([40, 2], np.float32), np.arange(40, dtype=np.int32) % 2
    np.savez(folder / "arrays.npz", x=x, y=y)


# ---- safetensors ---------------------------------------------------------------------------------


def safetensors(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Returns a file whose header may say anything."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list[Any], start: int, stop: int, dtype: str = "F32") -> dict[str, Any]:
    """Returns the entry of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


W = {"linear/w": tensor([2, 2], 0, 16), "linear/b": tensor([2], 16, 24)}

WEIGHTS: dict[str, Write] = {
    "5,002 axes": fixed(
        lambda: safetensors(W | {"linear/w": tensor([2, 2, *[1] * 5_000], 0, 16)}, bytes(24))
    ),
    "shape of 2**62": fixed(
        lambda: safetensors(W | {"linear/w": tensor([2**62, 2], 0, 16)}, bytes(24))
    ),
    "offsets beyond the file": fixed(
        lambda: safetensors(W | {"linear/b": tensor([2], 2**40, 2**40 + 8)}, bytes(24))
    ),
    "offsets that overlap": fixed(
        lambda: safetensors(W | {"linear/b": tensor([2], 8, 16)}, bytes(24))
    ),
    "header longer than the file": fixed(lambda: safetensors(W, bytes(24), length=2**40)),
    "header of brackets": fixed(lambda: safetensors(b"[" * 10_000_000)),
    "header of a million tensors": fixed(
        lambda: safetensors({f"t{i}": tensor([0], 0, 0) for i in range(1_000_000)})
    ),
    "unknown type": fixed(
        lambda: safetensors(W | {"linear/b": tensor([2], 16, 24, "Q9")}, bytes(24))
    ),
    "a text for a shape": fixed(
        lambda: safetensors(W | {"linear/b": tensor(["2"], 16, 24)}, bytes(24))
    ),
    "complex numbers": fixed(
        lambda: safetensors(W | {"linear/b": tensor([1], 16, 24, "C64")}, bytes(24))
    ),
}


def _write_weights(folder: pathlib.Path) -> None:
    _write_arrays(folder)
    _put(folder / "model.safetensors", safetensors(W, np.ones(6, "<f4").tobytes()))


# ---- JSON: configurations, tokenizers, exports ---------------------------------------------------


def edited(change: Callable[[dict[str, Any]], Any]) -> Write:
    """Returns what writes the JSON of a sound file after a change of it, or of what it returns."""

    def put(path: pathlib.Path, sound: bytes) -> None:
        content = json.loads(sound)
        result = change(content)
        _put(path, json.dumps(content if result is None else result).encode())

    return put


def _nested(depth: int) -> bytes:
    return b'{"format": 1, "version": "1.0", "params": ' + b"[" * depth + b"]" * depth + b"}"


CONFIGS: dict[str, Write] = {
    "brackets": fixed(lambda: b"[" * 1_000_000),
    "100,000 deep": fixed(lambda: _nested(100_000)),
    "a number of a million digits": changed(
        lambda sound: sound.replace(b'"format": 1', b'"format": ' + b"1" * 1_000_000)
    ),
    "infinity": changed(lambda sound: sound.replace(b'"format": 1', b'"format": Infinity')),
    "a key twice": changed(lambda sound: sound.replace(b"{", b'{"format": 1, "format": 1,', 1)),
    "UTF-16": changed(lambda sound: sound.decode().encode("utf-16")),
    "another format": edited(lambda config: config.update(format=99)),
    "a list": edited(lambda config: [config]),
}


def _replacing(settings: dict[str, Any], times: int) -> None:
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    settings["normalizer"] = {"type": "Sequence", "normalizers": [replace] * times}


def _splitting(settings: dict[str, Any], pattern: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    settings["pre_tokenizer"] = {**split, "invert": False}


def _sequence(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        inner = {"type": "Sequence", "normalizers": [inner]}
    return inner


TOKENIZERS: dict[str, Write] = {
    "five growing normalizers": edited(lambda settings: _replacing(settings, 5)),
    "a growing regular expression": edited(
        lambda settings: settings.update(
            normalizer={"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 1_000_000}
        )
    ),
    "a prefix of 50 MB": edited(
        lambda settings: settings.update(
            normalizer={"type": "Prepend", "prepend": "a" * 50_000_000}
        )
    ),
    "a regular expression without end": edited(lambda settings: _splitting(settings, "(a+)+c")),
    "a broken regular expression": edited(lambda settings: _splitting(settings, "(a")),
    "normalizers 100 deep": edited(lambda settings: settings.update(normalizer=_sequence(100))),
    "an id of 2**40": edited(lambda settings: settings["model"]["vocab"].update(zz=2**40)),
    "an id below 0": edited(lambda settings: settings["model"]["vocab"].update(zz=-1)),
    "a merge of unknown tokens": edited(lambda settings: settings["model"]["merges"].append("q z")),
    "brackets": fixed(lambda: b"[" * 1_000_000),
    "another version": edited(lambda settings: settings.update(version="9.0")),
}


def _write_tokenizer(folder: pathlib.Path) -> None:
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text(
        "def f(x): return aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\n" * 50
    )
    _put(folder / "tokenizer.json", _sound_tokenizer())


@functools.cache
def _sound_tokenizer() -> bytes:
    from tests.lingo.data.tokenizer_files import gpt2

    tokenizer, trainer = gpt2()
    trainer.show_progress = False
    tokenizer.train_from_iterator(["def f(x): return x"], trainer)
    return tokenizer.to_str().encode()


def _sealed(change: Callable[[dict[str, Any]], Any]) -> Write:
    """Returns what writes a manifest after a change, with the right digest of itself."""

    def put(path: pathlib.Path, sound: bytes) -> None:
        content = json.loads(sound)
        change(content)
        _put(path, render(content))

    return put


def _deep_manifest() -> bytes:
    deep = b'{"files": ' + b"[" * 100_000 + b"]" * 100_000
    return deep + b',\n "sha256": "' + b"0" * 64 + b'"\n}'


SEAL = {"size": 1, "sha256": "0" * 64}
EXPORTS: dict[str, Write] = {
    "100,000 deep": fixed(_deep_manifest),
    "16 MB of one text": fixed(lambda: b'"' + b"a" * (17 << 20) + b'"'),
    "files that are a number": _sealed(lambda manifest: manifest.update(files=1)),
    "a file outside": _sealed(lambda manifest: manifest.update(files={"../a": SEAL})),
    "a file without a digest": _sealed(lambda manifest: manifest.update(files={"a": {"size": 1}})),
    "a file with a text for a size": _sealed(
        lambda manifest: manifest.update(files={"7/saved_model.pb": {"size": "x", "sha256": 3}})
    ),
    "a name with a NUL": _sealed(lambda manifest: manifest.update(files={"a\0b": SEAL})),
    "a name of 100,000 letters": _sealed(
        lambda manifest: manifest.update(files={"a" * 10**5: SEAL})
    ),
    "no step": _sealed(lambda manifest: manifest.pop("step")),
}


def _write_export(folder: pathlib.Path) -> None:
    (folder / "served/7").mkdir(parents=True)
    (folder / "served/7/saved_model.pb").write_bytes(b"model")
    (folder / "served/7/weights").write_bytes(b"weights")
    write_manifest(folder / "served", {"format": "savedmodel", "step": 7})


# ---- TFRecord ------------------------------------------------------------------------------------


def example(**features: Any) -> bytes:
    """Returns a tf.train.Example of lists of texts."""
    lists = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        for name, values in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def _framed_length(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


RECORDS: dict[str, Write] = {
    "length of 2**36": fixed(lambda: _framed_length(2**36) + bytes(50)),
    "length of 2**64 - 1": fixed(lambda: _framed_length(2**64 - 1) + bytes(50)),
    "records of nothing": fixed(lambda: frame(b"") * 200_000),
    "records that are no examples": fixed(lambda: frame(b"\xff" * 40) * 4),
    "groups 100,000 deep": fixed(lambda: frame(b"\x0a\x7f" * 100_000)),
    "two texts": fixed(lambda: frame(example(text=[b"a", b"b"]))),
    "another feature": fixed(lambda: frame(example(content=[b"a"]))),
    "empty texts": fixed(lambda: frame(example(text=[b""])) * 10),
}


def _write_records(folder: pathlib.Path) -> None:
    texts = (b"shard of record %d " % n * 3 for n in range(20))
    _put(folder / "x.tfrecord", b"".join(frame(example(text=[text])) for text in texts))


# ---- logs ----------------------------------------------------------------------------------------

SOUND_LOG = pathlib.Path(__file__).parents[1] / "lingo/trainer/mlperf/logs/resnet@0.6.0.txt"


def _logged(value: str) -> Write:
    """Returns what adds a line with some JSON for a value to a log."""
    line = f':::MLL 1556733699.712 eval_accuracy: {{"value": {value}, "metadata": {{}}}}\n'
    return changed(lambda sound: sound + line.encode())


LOGS: dict[str, Write] = {
    "a line of 50 MB": changed(lambda sound: sound + b":::MLLOG " + b"a" * 50_000_000),
    "a value 9,000 deep": _logged("[" * 9_000 + "]" * 9_000),
    "a value 30,000 deep": _logged("[" * 30_000 + "]" * 30_000),
    "a number of 5,000 digits": _logged("1" * 5_000),
    "a number beyond all": _logged("1e999"),
    "not a number": _logged("NaN"),
    "an object for a value": _logged('{"a": [1, {"b": null}]}'),
    "a time beyond all": changed(lambda sound: sound + b":::MLL 1e999 run_stop: {}\n"),
    "colours": _logged('"\\u001b[31m\\u0000"'),
    "a million lines": changed(
        lambda sound: sound + b':::MLL 1.0 a: {"value": 1, "metadata": {}}\n' * 1_000_000
    ),
}


def _write_logs(folder: pathlib.Path) -> None:
    *others, stop = read_log(SOUND_LOG).lines
    (folder / "logs").mkdir()
    for number in range(5):
        lines = [*others, stop._replace(seconds=stop.seconds + number)]
        text = "".join(f"{line.render('0.6.0')}\n" for line in lines)
        (folder / "logs" / f"result_{number}.txt").write_text(text)


# ---- the table -----------------------------------------------------------------------------------

EXPERIMENTS = '''
from lingo import Experiment, experiment
from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.lazy import tf
from lingo.data import ArrayInput, HuggingFaceTokenizer, ImageFileInput, ImageFolder, TextInput
from lingo.data.record_source import TextFiles
from lingo.data.sources.tfrecord import TfRecords
from lingo.layers import Layer, Linear
from lingo.learner.task import Task
from lingo.metrics import weighted_mean
from lingo.optim.sgd import Sgd
from params.lm.source import tiny

SGD = Sgd.params(learning_rate=0.1)


class Classify(Task):
    """Two classes by a linear function of two numbers, or of the mean colour of an image."""

    width: int = 2
    linear: Layer = Linear.params(use_bias=True)

    def setup(self):
        self.linear = self.p.linear.build(dim=self.p.width, output_dim=2)

    def losses(self, batch):
        x = batch["x"] if "x" in batch else tf.reduce_mean(batch["images"], [1, 2])
        labels = batch["y"] if "y" in batch else batch["labels"]
        logits = self.linear(tf.cast(x, tf.float32))
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def loss(self, batch):
        return {"loss": tf.reduce_sum(batch["weights"] * self.losses(batch))}

    def metrics(self, batch):
        return {"mean": weighted_mean(self.losses(batch), batch["weights"])}


@experiment
def images():
    source = ImageFolder.params(folder="images", num_classes=2)
    data = ImageFileInput.params(source=source, size=8, batch_size=2, shuffle=False)
    return arrays().set(task=Classify.params(width=3), train_input=data)


@experiment
def arrays():
    data = ArrayInput.params(file="arrays.npz", batch_size=4)
    return Experiment.params(task=Classify, train_input=data, optimizer=SGD, max_steps=1)


@experiment
def weights():
    return arrays().set(init_from=WarmStart.params(path="model.safetensors"))


def text(source, **fields):
    data = TextInput.params(batch_size=2, length=16, source=source, **fields)
    cfg = tiny(model_dim=8, num_layers=1)
    return cfg.set(train_input=data, eval_inputs={}, max_steps=1)


@experiment
def records():
    return text(TfRecords.params(pattern="x.tfrecord"))


@experiment
def tokens():
    tokenizer = HuggingFaceTokenizer.params(file="tokenizer.json", vocab_size=400, end="f")
    return text(TextFiles.params(pattern="texts/*.txt"), tokenizer=tokenizer)
'''


def _write_config(folder: pathlib.Path) -> None:
    (folder / "run").mkdir()
    _put(folder / "run/config.json", _sound_config())


@functools.cache
def _sound_config() -> bytes:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["show", "--exp=lm.source.tiny", "--format=json"]) == 0
    return out.getvalue().encode()


def _training(name: str, *flags: str) -> tuple[str, ...]:
    return ("train", f"--exp=hostile.py:{name}", *flags)


KINDS: dict[str, Kind] = {
    "image": Kind(
        "images/a/0.png",
        _training("images", "--dry_run"),
        [BAD_DATA],
        _write_images,
        IMAGES,
        HARMLESS_IMAGES,
    ),
    "npz": Kind(
        "arrays.npz",
        _training("arrays", "--dry_run"),
        [BAD_DATA],
        _write_arrays,
        ARRAYS,
        ["high bit near the start"],
    ),
    "safetensors": Kind(
        "model.safetensors",
        _training("weights", "--logdir=run"),
        [NO_WEIGHTS, OTHER_MODEL],
        _write_weights,
        WEIGHTS,
    ),
    "config.json": Kind(
        "run/config.json", ("show", "--run=run"), [BAD_USAGE], _write_config, CONFIGS
    ),
    "tokenizer.json": Kind(
        "tokenizer.json", _training("tokens", "--dry_run"), [BAD_DATA], _write_tokenizer, TOKENIZERS
    ),
    "TFRecord": Kind(
        "x.tfrecord",
        _training("records", "--dry_run"),
        [BAD_DATA],
        _write_records,
        RECORDS,
        ["gzip"],
    ),
    "export.json": Kind(
        "served/export.json", ("export", "--verify=served"), [BAD_USAGE], _write_export, EXPORTS
    ),
    "log": Kind(
        "logs/result_0.txt",
        ("benchmark", "--from-logs=logs"),
        [BAD_USAGE, NOT_VALID],
        _write_logs,
        LOGS,
        ["high bit near the start"],
    ),
}
