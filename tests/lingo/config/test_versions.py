"""Versions of packages, installed or not."""

from __future__ import annotations

import numpy as np

from lingo.config.versions import find_versions


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert find_versions(["no-such-package", "numpy"]) == {"numpy": np.__version__}
