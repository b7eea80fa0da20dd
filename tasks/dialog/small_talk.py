"""Small talk of people: the English conversations of the package `chatterbot-corpus`, if installed.

Its files are read, never imported.
"""

from __future__ import annotations

import importlib.util
import pathlib

from lingo.data.files import DataError
from tasks.dialog.turns import Dialog, Turn


def small_talk() -> list[Dialog]:
    """Returns the conversations of the package, in the order of its files; [] without it.

    User and model take turns. Raises DataError if a file does not have the package's format.
    """
    spec = importlib.util.find_spec("chatterbot_corpus")
    if spec is None or spec.origin is None or importlib.util.find_spec("yaml") is None:
        return []
    import yaml

    dialogs = []
    for path in sorted((pathlib.Path(spec.origin).parent / "data/english").glob("*.yml")):
        try:
            content = yaml.safe_load(path.read_text())
            conversations = [list(map(str, texts)) for texts in content["conversations"]]
        except (yaml.YAMLError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no conversations: {error}.") from None
        dialogs += [_dialog(texts) for texts in conversations if len(texts) > 1]
    return dialogs


def _dialog(texts: list[str]) -> Dialog:
    return Dialog(tuple(Turn("model" if i % 2 else "user", text) for i, text in enumerate(texts)))
