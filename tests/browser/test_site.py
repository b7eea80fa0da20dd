"""What a browser shows of the site of the documents."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("tensorboard")  # one browser at a time

ROOT = pathlib.Path(__file__).parents[2]
WHOLE = """
    const [code, picture] = ['pre code', 'img'].map(e => document.querySelector(`article ${e}`));
    return [code.scrollWidth <= code.clientWidth,
            picture.getBoundingClientRect().bottom <= innerHeight];
"""  # whether the first code is not scrolled, whether the picture ends above the window's end
TYPE = """
    const input = document.querySelector('.md-search__input');
    input.focus();
    input.value = '{text}';
    input.dispatchEvent(new KeyboardEvent('keyup'));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Builds the site; returns its folder."""
    site = tmp_path_factory.mktemp("site")
    command = [pathlib.Path(sys.executable).parent / "mkdocs", "build", "--quiet"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--site-dir", site], cwd=ROOT, env=environment, check=True)
    return site


def test_the_first_page_shows_a_picture_and_leads_to_all_parts(browser, site):
    browser.open((site / "index.html").as_uri())
    heading = "return document.querySelector('article h1')?.innerText.trim()"
    assert browser.until(heading, "a heading").startswith("lingo")
    assert (
        browser.until("return document.querySelector('article img')?.naturalWidth", "a picture")
        > 300
    )
    menu = (
        "return [...document.querySelectorAll('nav .md-nav__item--section')].map(e => e.innerText)"
    )
    shown = browser.until(menu, "the menu")
    for part in ("First steps", "Write your own", "Runs", "Scale", "Reference"):
        assert any(text.startswith(part) for text in shown), (part, shown)
    with browser.size(1280, 800):
        browser.screenshot("site")
        assert browser.script(WHOLE) == [True, True]


def test_a_search_from_disk_finds_a_class_in_the_reference(browser, site):
    browser.open((site / "index.html").as_uri())
    browser.script("document.querySelector('label[for=__search]').click()")
    browser.script(TYPE.format(text="Linear"))
    found = "return all('.md-search-result__link').map(e => e.getAttribute('href'))"
    wanted = "reference/layers.html?h=linear#lingo.layers.Linear"
    links = browser.until(found, "results of the search")
    browser.screenshot("search")
    assert any(link.endswith(wanted) for link in links), links
