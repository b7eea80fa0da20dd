"""TensorBoard as a server, and a headless Chromium that looks at it."""

import base64
import contextlib
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

START_SECONDS = 120  # for a server to come up: TensorBoard imports TensorFlow
SHOWN_SECONDS = 180  # for something to appear, on a busy machine
ARTIFACTS = pathlib.Path(__file__).parents[2] / "artifacts"  # kept by CI
CHROMIUM = ("chromium", "google-chrome")
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def serving(command, announced, **options):
    """Runs a server; yields the match of the pattern of what it prints when it is up."""
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    lines = queue.Queue()
    reader = threading.Thread(target=_read, args=(server.stdout, lines), daemon=True)
    reader.start()
    try:
        yield _announcement(lines, announced)
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        reader.join()
        server.stdout.close()


def _read(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put(None)


def _announcement(lines, announced):
    said, deadline = "", time.monotonic() + START_SECONDS
    while (line := lines.get(timeout=max(deadline - time.monotonic(), 0.01))) is not None:
        said += line
        if found := re.search(announced, line):
            return found
    raise AssertionError(f"the server ended: {said}")


def until(found, what):
    """Returns what a function finds, as soon as it finds something."""
    deadline = time.monotonic() + SHOWN_SECONDS
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.1)  # between two looks; nothing is won by it
    raise AssertionError(f"{what}: not seen in {SHOWN_SECONDS} seconds")


def ask(url, data=None, *, method=None, seconds=SHOWN_SECONDS):
    """Returns the bytes that a server answers; `data` is posted to it as JSON."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    with LOCAL.open(request, timeout=seconds) as answer:
        return answer.read()


# ---- TensorBoard -------------------------------------------------------------------------------


class TensorBoard:
    """A TensorBoard server."""

    def __init__(self, url):
        self.url = url

    def get(self, path):
        """Returns what its API answers in JSON: `data/plugin/scalars/tags`."""
        return json.loads(self.file(path))

    def file(self, path):
        """Returns what its API answers."""
        return ask(self.url + path)

    def rows(self):
        """Returns the HParams table: run -> `hparams`, `metrics` by `group/tag`, `status`."""
        statuses = [f"STATUS_{s}" for s in ("UNKNOWN", "SUCCESS", "FAILURE", "RUNNING")]
        asked = {"experimentName": "", "allowedStatuses": statuses, "colParams": []}
        asked |= {"startIndex": 0, "sliceSize": 100}
        answer = ask(f"{self.url}data/plugin/hparams/session_groups", asked)
        return {
            group["name"]: {
                "hparams": group["hparams"],
                "metrics": {
                    f"{m['name']['group']}/{m['name']['tag']}": m["value"]
                    for m in group["metricValues"]
                },
                "status": [session["status"] for session in group["sessions"]],
            }
            for group in json.loads(answer)["sessionGroups"]
        }


@pytest.fixture(scope="session")
def tensorboard():
    """Returns a function: `with tensorboard(logdir) as server`; all runs there have been read."""

    @contextlib.contextmanager
    def tensorboard(logdir):
        module = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}"]
        options = ["--host=127.0.0.1", "--port=0", "--reload_interval=1"]
        runs = {str(f.parent.relative_to(logdir)) for f in logdir.rglob("events.out.tfevents.*")}
        with serving([*module, *options], r"TensorBoard \S+ at (http://\S+/)") as match:
            server = TensorBoard(match[1])
            until(lambda: runs <= set(server.get("data/runs")), "all runs")
            yield server

    return tensorboard


# ---- Chromium ----------------------------------------------------------------------------------


class Browser:
    """A page in a headless Chromium, by the WebDriver protocol (W3C 2018)."""

    def __init__(self, url):
        self.url = url

    def open(self, url):
        """Goes to a page."""
        self._do("url", {"url": url})

    def script(self, script):
        """Returns what the body of a JavaScript function returns in the page.

        It may call `all(selector)`: all elements that match, also inside shadow roots.
        """
        return self._do("execute/sync", {"script": _ALL + script, "args": []})

    def until(self, script, what):
        """Returns what a script returns, as soon as that is something."""
        return until(lambda: self.script(script), what)

    def curves(self, server, tag):
        """Returns the heights, from above, of the lines that are drawn for a scalar."""
        self.open(f"{server.url}#scalars&tagFilter=^{tag}$&_smoothingWeight=0")
        card = f"all('tf-scalar-card').find(card => card.tag === '{tag}')"
        script = f"""
            const card = {card};
            const lines = card ? all('path.line', card.shadowRoot) : [];
            return lines.map(line => line.getAttribute('d')).filter(d => d && d.includes('L'));
        """
        drawn = self.until(script, f"a line for {tag}")
        return [[float(point.split(",")[1]) for point in d[1:].split("L")] for d in drawn]

    def hparams(self, server):
        """Returns the HParams table as it is drawn: run -> column -> text."""
        self.open(f"{server.url}#hparams")
        script = """
            const text = cell => cell.querySelector('slot').assignedNodes()
                .map(node => node.innerText).join('').replace(/\\s+/g, ' ').trim();
            const cells = row => row.querySelectorAll('th, td:not([part~=details-cell])');
            const rows = '#header tr:not([hidden]), #items tr:not([hidden])';
            const found = all('vaadin-grid').map(grid =>
                [...grid.shadowRoot.querySelectorAll(rows)].map(row => [...cells(row)].map(text)));
            return found.length && found[0].length > 1 && found[0][1][0] ? found[0] : null;
        """
        header, *rows = self.until(script, "the rows of the HParams table")
        return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}

    @contextlib.contextmanager
    def size(self, width, height):
        """Gives the page this many pixels, for as long as the `with` lasts."""
        before = json.loads(ask(f"{self.url}/window/rect"))["value"]
        frame = self.script("return [outerWidth - innerWidth, outerHeight - innerHeight]")
        self._do("window/rect", {"width": width + frame[0], "height": height + frame[1]})
        try:
            yield
        finally:
            self._do("window/rect", {"width": before["width"], "height": before["height"]})

    def screenshot(self, name):
        """Saves what is seen as `artifacts/<name>.png`."""
        ARTIFACTS.mkdir(exist_ok=True)
        file = ARTIFACTS / f"{name}.png"
        file.write_bytes(base64.b64decode(json.loads(ask(f"{self.url}/screenshot"))["value"]))
        return file

    def _do(self, command, data):
        return json.loads(ask(f"{self.url}/{command}", data))["value"]


_ALL = """
const all = (selector, root = document) => {
    const shadows = [...root.querySelectorAll('*')].map(e => e.shadowRoot).filter(s => s);
    return [...root.querySelectorAll(selector), ...shadows.flatMap(s => all(selector, s))];
};
"""


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; without one, the test is skipped."""
    driver = shutil.which("chromedriver")
    binary = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if driver is None or binary is None:
        missing = "chromedriver" if binary else "Chromium"
        pytest.skip(f"{missing} is not installed: apt-get install chromium chromium-driver")
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []  # root's Chromium has no sandbox
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        serving(
            [driver, "--port=0"],
            r"started successfully on port (\d+)",
            env=os.environ | {"HOME": home, "no_proxy": "127.0.0.1,localhost"},
        ) as match,
    ):
        url = f"http://127.0.0.1:{match[1]}/session"
        arguments += ["--window-size=1400,1000", f"--user-data-dir={home}/profile"]
        options = {"goog:chromeOptions": {"binary": binary, "args": arguments}}
        wanted = {"capabilities": {"alwaysMatch": options}}
        session = json.loads(ask(url, wanted, seconds=START_SECONDS))["value"]
        url = f"{url}/{session['sessionId']}"
        try:
            yield Browser(url)
        finally:
            with contextlib.suppress(urllib.error.URLError):
                ask(url, method="DELETE")
