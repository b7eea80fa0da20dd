"""The Python files of several installed packages, found without importing them."""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.data.source import Source, check_package, package_directory
from lingo.data.sources.files import Place


class PythonPackages(Source):
    """Documents in the Python files of some packages; a file's name begins with its package's."""

    packages: list[str] = ["tensorflow", "keras", "numpy"]  # top-level import names

    def check(self) -> None:
        super().check()
        if not self.p.packages:
            raise ParamError("packages is empty: name one that is installed, such as numpy")
        for package in self.p.packages:
            check_package(package)

    def places(self) -> list[Place]:
        return [Place(package_directory(p), "**/*.py", f"{p}/") for p in self.p.packages]
