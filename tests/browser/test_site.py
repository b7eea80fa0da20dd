"""What a browser shows of the site of the documents."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("tensorboard")  # one browser at a time

ROOT = pathlib.Path(__file__).parents[2]


def test_the_first_page_shows_a_picture_and_leads_to_all_parts(browser, tmp_path):
    site = tmp_path / "site"
    command = [pathlib.Path(sys.executable).parent / "mkdocs", "build", "--quiet"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--site-dir", site], cwd=ROOT, env=environment, check=True)
    browser.open((site / "index.html").as_uri())
    heading = "return document.querySelector('article h1')?.innerText.trim()"
    assert browser.until(heading, "a heading").startswith("lingo")
    assert browser.until("return document.images[0]?.naturalWidth", "a picture") > 300
    menu = (
        "return [...document.querySelectorAll('nav .md-nav__item--section')].map(e => e.innerText)"
    )
    shown = browser.until(menu, "the menu")
    for part in ("First steps", "Write your own", "Runs", "Scale", "Reference"):
        assert any(text.startswith(part) for text in shown), (part, shown)
    browser.screenshot("site")
