"""Imports TensorFlow and Keras on first use, so that code for parameters does without them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["UNNEEDED_MODULES", "keras", "quiet", "set_defaults", "tf"]

_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Otherwise TensorFlow takes all memory of every GPU at once.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # oneDNN is off by default on processors without AVX-512, where it makes convolutions twice as
    # fast.
    "TF_ENABLE_ONEDNN_OPTS": "1",
}
"""TensorFlow's environment variables, and the values that they get unless the user sets them."""

# Module -> modules that its import hides. TensorFlow imports these if they exist, which takes half
# of its import time, but it works without them. `tf.keras` still imports Keras on first use. Only
# TensorFlow Lite's converter of JAX functions is lost.
UNNEEDED_MODULES = {"tensorflow": ("keras.src.optimizers", "jax")}


class _LazyModule(ModuleType):
    """A module that is imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> Any:
        set_defaults()  # a GPU reads the variables when it starts, which may be after the import
        with quiet(self.__name__):
            module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


@contextlib.contextmanager
def quiet(name: str = "tensorflow") -> Generator[None]:
    """Suppresses what a module writes to stderr if it is imported within this context.

    TensorFlow's C++ code writes a dozen lines about the processor before its log level is read.
    If the import fails, the suppressed text is added to the error as a note.
    """
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """An import finder that makes the import of one module quiet; other finders locate it."""

    def __init__(self, name: str) -> None:
        self._name, self._is_searching = name, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of the one module; None for other modules and during its own search."""
        del path, target
        if name != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_quietly(module: ModuleType) -> None:
                hidden = UNNEEDED_MODULES.get(name, ())
                with _capture_stderr(), _hide_modules(hidden), _pause_garbage_collection():
                    load(module)

            vars(spec.loader)["exec_module"] = load_quietly
        return spec


@contextlib.contextmanager
def _hide_modules(names: Sequence[str]) -> Generator[None]:
    """Makes the import of some modules fail within this context, unless already imported."""
    hidden = [name for name in names if name not in sys.modules]
    blocked: dict[str, Any] = dict.fromkeys(hidden)  # None makes Python's import fail
    sys.modules.update(blocked)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def _pause_garbage_collection() -> Generator[None]:
    """Pauses garbage collection: an import makes many objects, but little garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _capture_stderr() -> Generator[None]:
    """Captures what is written to stderr within this context; if it raises, adds it as a note."""
    set_defaults()
    if sys.stderr is None:  # closed, as by `2>&-`: there is nothing to capture
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


def set_defaults() -> None:
    """Sets the variables of `_DEFAULTS` that the user has not set, before TensorFlow starts."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


keras: Any = _LazyModule("keras")  # Keras has no type hints

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _LazyModule("tensorflow")
