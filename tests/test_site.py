"""The site of the documents: every link leads somewhere, and it shows what the code says."""

from __future__ import annotations

import html.parser
import os
import pathlib
import subprocess
import sys
import urllib.parse

import pytest

import lingo.layers
from lingo.layers.layer import Layer

ROOT = pathlib.Path(__file__).parent.parent
BIN = pathlib.Path(sys.executable).parent

pytestmark = pytest.mark.xdist_group("site")


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loads: set[str] = set()  # what a browser fetches to show the page
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links |= {values[name] for name in ("href", "src") if name in values}
        if tag in ("script", "img", "link") and values.get("rel") != "canonical":
            self.loads |= {values[name] for name in ("href", "src") if name in values}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Builds the site; a warning of the builder is an error (`strict`)."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [BIN / "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def pages(site: pathlib.Path) -> dict[pathlib.Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_leads_to_a_page_and_an_anchor(
    site: pathlib.Path, pages: dict[pathlib.Path, Page]
) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target = urllib.parse.urlsplit(link)
            if target.scheme or target.netloc or path.name == "404.html":
                continue
            file = (path.parent / urllib.parse.unquote(target.path)).resolve()
            file = path if not target.path else file / "index.html" if file.is_dir() else file
            anchor = urllib.parse.unquote(target.fragment)
            if not file.exists() or (
                file in pages and anchor and anchor not in pages[file].anchors
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 25
    assert broken == []


def test_a_page_loads_nothing_from_another_site(pages: dict[pathlib.Path, Page]) -> None:
    loads = {link for page in pages.values() for link in page.loads}
    assert len(loads) > 5
    assert {link for link in loads if "//" in link} == set()


def test_the_table_and_the_reference_have_every_layer(site: pathlib.Path) -> None:
    exports = {name: getattr(lingo.layers, name) for name in lingo.layers.__all__}
    names = {n for n, v in exports.items() if isinstance(v, type) and issubclass(v, Layer)}
    table = (site / "tables/layers.html").read_text()
    reference = (site / "reference/layers.html").read_text()
    assert len(names) > 30
    assert {n for n in names if f"<code>{n}</code>" not in table} == set()
    assert {n for n in exports if f".{n}" not in reference and n != "NO_INPUTS"} == set()


def test_the_reference_shows_the_options_that_a_declaration_gives(site: pathlib.Path) -> None:
    reference = (site / "reference/lingo.html").read_text()
    for shown in ("Resume from a checkpoint of another configuration", "allow_change"):
        assert shown in reference
