"""A person's prompts: each file is what its name says."""

from __future__ import annotations

import pathlib
import string

import numpy as np
import pytest

from lingo.data import AudioInput, CharacterTokenizer
from lingo.data.files import DataError
from lingo.datasets import Prompts
from lingo.datasets.prompts import FOLDER, Kind
from lingo.datasets.tones import WORDS
from lingo.metrics.media import wav_file


@pytest.mark.parametrize(
    ("kind", "texts"), [("digits", WORDS), ("letters", tuple(string.ascii_lowercase))]
)
def test_files_say_their_names(tmp_path: pathlib.Path, kind: Kind, texts: tuple[str, ...]) -> None:
    names = string.digits if kind == "digits" else string.ascii_lowercase
    (tmp_path / kind).mkdir()
    for number, name in enumerate([*names, "ten", "zed"]):
        sound = np.full(3_000 + number, number, np.int16)
        (tmp_path / kind / f"{name}.wav").write_bytes(wav_file(sound[:, None], sample_rate=8_000))
    source = Prompts.params(kind=kind, folder=str(tmp_path))
    assert [one.text for one in source.build().recordings()] == [*texts]
    characters = CharacterTokenizer.params(characters=string.ascii_lowercase)
    data = AudioInput.params(source=source, tokenizer=characters, batch_size=4).build()
    assert data.num_examples() == len(texts)


def test_a_missing_package_is_one_sentence(tmp_path: pathlib.Path) -> None:
    source = Prompts.params(folder=str(tmp_path)).build()
    with pytest.raises(DataError, match=r"digits is missing: apt-get install asterisk-core-sounds"):
        source.files()


@pytest.mark.skipif(
    not pathlib.Path(FOLDER).is_dir(), reason="asterisk-core-sounds-en-wav is not installed"
)
def test_the_package_has_all_of_them() -> None:
    assert len(Prompts.params().build().files()) == 10
    assert len(Prompts.params(kind="letters").build().files()) == 26
