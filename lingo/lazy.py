"""TensorFlow, imported on first use: what only reads parameters never pays for it."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _LazyModule(ModuleType):
    """Stands for a module until an attribute of it is read."""

    def __getattr__(self, name: str) -> Any:
        module = _import_quietly(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


def _import_quietly(name: str) -> ModuleType:
    """Imports a module with stderr held back; what it wrote is shown only if the import fails.

    TensorFlow's C++ code writes a dozen lines about the processor before its log level is read.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if name in sys.modules:
        return sys.modules[name]
    if sys.stderr is None:  # closed, as `2>&-` does: there is nothing to hold back
        return importlib.import_module(name)
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            return importlib.import_module(name)
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _LazyModule("tensorflow")
