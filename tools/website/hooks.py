"""Pages of the site that are made from other files: MkDocs calls the functions `on_...`.

README.md, CONTRIBUTING.md, CHANGELOG.md  ->  index.md, contributing.md, changelog.md
docs/notebooks/*.ipynb                    ->  notebooks/*.md
what a room exports                       ->  reference/layers.md, ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import lingo
from tools.source_tree import ROOT
from tools.website.reference import reference_pages

COPIES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the version of lingo to the name in the header of each page."""
    config.site_name = f"{config.site_name} {lingo.__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made; MkDocs calls it once, with the files of `docs`."""
    for path, text in generated_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files, **kwargs: object
) -> str:
    """Returns the text of a page with links and code blocks as the site needs them."""
    return with_titles(with_site_links(markdown))


def generated_pages() -> Iterator[tuple[str, str]]:
    """Yields path and text of each page that is not a file of `docs`."""
    for path, source in COPIES.items():
        yield path, (ROOT / source).read_text()
    for file in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        yield f"notebooks/{file.stem}.md", notebook_page(file.read_text())
    yield from reference_pages()


def with_site_links(markdown: str) -> str:
    """Returns a text whose links lead to pages of the site instead of files of the repository.

    >>> with_site_links("[a](docs/data.md#b), [c](../README.md), [d](CONTRIBUTING.md)")
    '[a](data.md#b), [c](index.md), [d](contributing.md)'
    """
    markdown = re.sub(r"\]\(docs/", "](", markdown)
    markdown = re.sub(r"(\]\(notebooks/\w+)\.ipynb", r"\1.md", markdown)
    for page, source in COPIES.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(source)}", f"]({page}", markdown)
    return markdown


def with_titles(markdown: str) -> str:
    """Returns a text whose blocks of code have the name of their file as a title.

    >>> with_titles("```python first.py")
    '```python title="first.py"'
    """
    return re.sub(r"^```(\w+) ([\w./-]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def notebook_page(notebook: str) -> str:
    """Returns the cells of a notebook, its JSON, as a page.

    >>> notebook_page('{"cells": [{"cell_type": "code", "source": ["x = 1"]}]}')
    '```python\\nx = 1\\n```\\n'
    """
    texts = [(c["cell_type"], "".join(c["source"])) for c in json.loads(notebook)["cells"]]
    blocks = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts]
    return "\n\n".join(blocks) + "\n"
