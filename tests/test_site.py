"""The site of the documents: every link leads somewhere, and it shows what the code says."""

from __future__ import annotations

import ast
import html
import html.parser
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import urllib.parse

import pytest

import lingo
from lingo.config.node.field import REQUIRED
from lingo.config.params import fields
from tools.website.examples import WIDTH, example
from tools.website.reference import public_names

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
        self.title = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links |= {values[name] for name in ("href", "src") if name in values}
        if tag in ("script", "img", "link") and values.get("rel") != "canonical":
            self.loads |= {values[name] for name in ("href", "src") if name in values}

    def handle_data(self, data: str) -> None:
        if self.get_starttag_text() == "<title>" and not self.title:
            self.title = data


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


def test_no_link_leads_to_a_host_of_the_project(pages: dict[pathlib.Path, Page]) -> None:
    links = {link for page in pages.values() for link in page.links if "//" in link}
    ours = {link for link in links if re.search(r"//[^/]+/[\w-]+/lingo(-tf)?(/|$)", link)}
    assert len(links) > 3
    assert ours == set()


def test_every_page_has_the_logo_and_the_version(pages: dict[pathlib.Path, Page]) -> None:
    for path, page in pages.items():
        assert any(link.endswith("assets/logo.svg") for link in page.loads), path
        assert f"lingo {lingo.__version__}" in page.title, path


def test_the_index_of_the_search_is_a_script_with_every_class(
    site: pathlib.Path, pages: dict[pathlib.Path, Page]
) -> None:
    """A page from disk may load a script, but may neither fetch a file nor start a worker."""
    script = (site / "search/search_index.js").read_text()
    sections = {d["location"]: d for d in json.loads(script.removeprefix("var __index = "))["docs"]}
    found = {location.partition("#")[2] for location in sections}
    assert set(public_names().values()) - found == set()
    assert "dense layer" in sections["reference/layers.html#lingo.layers.Linear"]["text"]
    assert all(
        any(link.endswith("assets/iframe-worker.js") for link in page.loads)
        for page in pages.values()
    )


def test_the_entry_of_a_class_has_its_fields_and_defaults_and_an_example(
    site: pathlib.Path,
) -> None:
    texts: dict[str, str] = {}
    for page in (site / "reference").glob("*.html"):
        entries = re.split(r'<h2 id="([\w.]+)" class="doc', page.read_text())
        texts |= zip(entries[1::2], entries[2::2], strict=True)
    for cls, name in public_names().items():
        cells = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>((?:\s*<td>.*</td>)+)", texts[name])
        rows = {field: re.findall(r"<code>(.*?)</code>", others) for field, others in cells}
        assert list(rows) == list(fields(cls)), name
        for field, (_, default, *_) in rows.items():
            assert is_default(html.unescape(default), fields(cls)[field].default), (name, field)
        assert example(cls, public_names()) in html.unescape(re.sub("<[^>]+>", "", texts[name])), (
            name
        )


def is_default(text: str, value: object) -> bool:
    """Whether a default, as a class's source has it, is a value, as far as it is a literal."""
    if text == "required":
        return value is REQUIRED
    try:
        return ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        return text != "" and value is not REQUIRED  # the name of a constant or a template


def test_every_example_of_the_reference_makes_what_can_be_built(tmp_path: pathlib.Path) -> None:
    names, without = public_names(), set()
    for cls, name in names.items():
        if text := example(cls, names):
            lines = text.splitlines()
            assert max(map(len, lines)) <= WIDTH, text
            lines.insert(ast.parse(text).body[-1].lineno - 1, "params = \\")
            file = tmp_path / f"{name}.py"
            file.write_text("\n".join(lines))
            params = runpy.run_path(str(file))["params"]
            assert issubclass(params.cls, cls), text
            assert isinstance(params.build(), cls), text
        elif ">>>" not in (cls.__doc__ or ""):
            without.add(cls)
    for cls in without:
        assert any(issubclass(other, cls) for other in names if other is not cls), cls
    assert len(names) > 150
    assert len(without) < 25


def test_the_reference_shows_the_options_that_a_declaration_gives(site: pathlib.Path) -> None:
    reference = (site / "reference/lingo.html").read_text()
    for shown in ("Resume from a checkpoint of another configuration", "allow_change"):
        assert shown in reference
