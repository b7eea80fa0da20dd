"""Tokenizers that learn their vocabulary from a source of text, and keep it for later starts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from lingo.config import ranges
from lingo.data.epoch_order import permutation
from lingo.data.files import DataError, open_file
from lingo.data.index import Index, Progress, open_index
from lingo.data.index_cache import cache_folder, clear_unused
from lingo.data.part_tokenizer import PartTokenizer
from lingo.data.record_source import RecordSource
from lingo.storage.files import StorageError, write_bytes

Model = TypeVar("Model")


class LearnedTokenizer(PartTokenizer, interface=True):
    """A tokenizer that learns its vocabulary from text at first use.

    Equal texts give equal vocabularies. The model stays in the user's cache directory for later
    starts with the same text. A subclass calls `open_learned`.
    """

    source: RecordSource  # the text to learn from: a training split
    max_bytes: int = 10_000_000  # how much text of random documents to learn from

    def check(self) -> None:
        ranges.check_positive(self.p, "max_bytes")

    def texts(self) -> Sequence[bytes]:
        """Returns the texts to learn from; a subclass may take them from elsewhere."""
        return self.sample_source(max_bytes=self.p.max_bytes)

    def sample_source(self, *, max_bytes: int) -> list[bytes]:
        """Returns documents of the source in random order, with at most `max_bytes` in all."""
        return sample([self._index], max_bytes=max_bytes)

    def text_id(self) -> str:
        """Returns an id of the texts to learn from; different texts have different ids."""
        return f"{self._index.digest} {self.p.source} {self.p.max_bytes}"

    def open_learned(
        self, settings: str, *, learn: Callable[[], bytes], load: Callable[[bytes], Model]
    ) -> Model:
        """Returns the cached model for this text, or learns and caches it.

        Args:
            settings: identifies everything that the model depends on, except the text.
            learn: returns the content of a model's file.
            load: returns the model with this content; raises DataError or RuntimeError if damaged.
        """
        name = hashlib.sha256(f"{settings} {self.text_id()}".encode()).hexdigest()
        path = cache_folder("pieces") / f"{name}.model"
        with contextlib.suppress(DataError, RuntimeError), open_file(str(path)) as file:
            return load(file.read())
        data = learn()
        with contextlib.suppress(
            OSError, StorageError
        ):  # without the cache, a later start learns again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)
            clear_unused(path.parent, keep=path)
        return load(data)

    @functools.cached_property
    def _index(self) -> Index:
        return open_index(self.p.source.build())


def sample(
    indices: Sequence[Index], *, max_bytes: int, progress: Progress | None = None
) -> list[bytes]:
    """Returns the texts of documents of all indices, in random order, at most `max_bytes` in all.

    All documents are equally likely. The last text is cut at the limit.
    """
    sizes = np.concatenate([index.size for index in indices])
    owner = np.repeat(np.arange(len(indices)), [len(index.size) for index in indices])
    number = np.concatenate([np.arange(len(index.size)) for index in indices])
    order = permutation(len(sizes), seed=0, epoch=0, name="tokenizer")
    total, done, texts = min(int(sizes.sum()), max_bytes), 0, []
    for i, document in zip(owner[order].tolist(), number[order].tolist(), strict=True):
        if done >= total:
            break
        size = min(int(indices[i].size[document]), total - done)
        texts.append(indices[i].read(document, 0, size))
        done += size
        if progress is not None:
            progress(done, total)
    return texts
