"""The search of the documentation's site in a real browser: words that people type lead to the page about them.

The site is opened from a folder without a server, and from one. The test is skipped where there is no MkDocs (the extra
docs) or no Chromium, which pip cannot install (Debian: ``apt install chromium``).
"""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium on the path: apt install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: the extra dev")
pytest.importorskip("material", reason="needs MkDocs: the extra docs")

ROOT = Path(__file__).parents[1]
PATIENCE_MS, ANSWER_MS = 60_000, 10_000
PAGES = {
    "early stopping": "overfitting",
    "overfitting": "overfitting",
    "regularisation": "overfitting",
    "cross validation": "overfitting",
    "learning rate": "configuration",
    "converge": "configuration",
    "feature importance": "feature_importance",
    "missing values": "missing_values",
    "secure aggregation": "masks",
    "differential privacy": "label_privacy",
    "quantisation": "overlap",
    "class weights": "weights",
    "Jupyter": "jupyter",
    "GPU": "gpu",
    "deployment": "containers",
    "Kubernetes": "containers",
    "hyperparameter": "sweeps",
}
"""What is typed, and the page that has to come first."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(params=["folder", "server"])
def address(request, site):
    """Where the browser finds the site."""
    if request.param == "folder":
        yield site.as_uri()
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing of requests."""


def test_words_that_people_type_lead_to_the_page_about_them(address):
    requests, complaints = [], []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/index.html")
        first = {words: first_result(page, words) for words in PAGES}
        page.locator(".md-search-result__link").first.click()
        page.locator("h1", has_text="Hyperparameter sweeps").wait_for()
        browser.close()
    assert first == {words: f"{name}.html" for words, name in PAGES.items()}
    assert [url for url in requests if not url.startswith(address)] == []
    assert complaints == []


def first_result(page, words):
    """The page that is found first by typing words into the search box, once the answer to the last letter is there."""
    box = page.get_by_placeholder("Search")
    box.click()
    box.fill("")
    box.press_sequentially(words)
    first = page.locator(".md-search-result__link").first
    with contextlib.suppress(playwright.TimeoutError):
        page.wait_for_function(
            "name => document.querySelector('.md-search-result__link')?.href.split('?')[0].endsWith(`/${name}.html`)",
            arg=PAGES[words],
            timeout=ANSWER_MS,
        )
    return first.get_attribute("href").partition("?")[0].rpartition("/")[2]
