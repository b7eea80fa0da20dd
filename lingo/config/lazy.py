"""TensorFlow, imported on first use: what only reads parameters never pays for it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["quiet", "tf"]

# TensorFlow tries to import these too, and does without; they take half of its import's time.
# `tf.keras` still imports Keras on first use. TensorFlow Lite's converter of JAX functions is lost.
_LEFT_OUT = {"tensorflow": ("keras.src.optimizers", "jax")}


class _LazyModule(ModuleType):
    """Stands for a module until an attribute of it is read."""

    def __getattr__(self, name: str) -> Any:
        with quiet(self.__name__):
            module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


@contextlib.contextmanager
def quiet(name: str = "tensorflow") -> Generator[None]:
    """Holds back what a module writes to stderr when it is imported inside, by whomever.

    TensorFlow's C++ code writes a dozen lines about the processor before its log level is read.
    If the import fails, what was held back is a note of the error: its traceback shows it.
    """
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds one module where it would be found without this, and makes its import quiet."""

    def __init__(self, name: str) -> None:
        self._name, self._is_asked = name, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns how the module is loaded; None for any other, and while it asks the others."""
        del path, target
        if name != self._name or self._is_asked:
            return None
        self._is_asked = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asked = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_quietly(module: ModuleType) -> None:
                with _held_back(), _left_out(_LEFT_OUT.get(name, ())):
                    load(module)

            vars(spec.loader)["exec_module"] = load_quietly
        return spec


@contextlib.contextmanager
def _left_out(names: Sequence[str]) -> Generator[None]:
    """Makes the import of modules fail inside, unless they are imported already."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def _held_back() -> Generator[None]:
    """Keeps what is written to stderr, and adds it to an error as a note."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.stderr is None:  # closed, as `2>&-` does: there is nothing to hold back
        yield
        return
    sys.stderr.flush()
    terminal, held = os.dup(2), os.memfd_create("stderr")
    os.dup2(held, 2)
    try:
        yield
    except Exception as error:
        error.add_note(os.pread(held, os.fstat(held).st_size, 0).decode(errors="replace"))
        raise
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(held)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _LazyModule("tensorflow")
