"""``tdcd watch`` in a real browser: a live run's curve grows, a killed client is missing, names are texts.

One test, since starting a browser takes longer than all of it. It is skipped where there is no Chromium: pip cannot
install one (Debian: ``apt install chromium``).
"""

import re
import shutil
import signal
import subprocess
import sys

import pytest
from lab import Lab, prepared

from tdcd.config import check_config
from tdcd.pages.report import write_report
from tdcd.training.run import run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium on the path: apt install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: the extra dev")

PATIENCE_MS = 60_000
MARKUP = "<img src=x onerror=alert(1)>"
TITLE = "<script>alert(2)</script>"
NORTH, LAB = "client.lab.north", "hub.lab"
LIVE = {
    "name": TITLE,
    "data": {"source": "diabetes"},
    "silos": [{"name": "clinic", "clients": 2}, {"name": "lab", "clients": ["north", "south"]}],
    "model": {"block": "linear"},
    "train": {"rounds": 8, "local_steps": 3, "batch_size": 32, "step_size": 0.05},
    "evaluate": {"every": 4},
}


@pytest.fixture
def page():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


@pytest.fixture
def watch():
    """Starts ``tdcd watch``: a process of its own, as only another one can tell that a hub lives."""
    started = []

    def start(*folders):
        command = [sys.executable, "-m", "tdcd", "watch", *map(str, folders), "--port", "0", "--no-browser"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return re.search(r"http://127\.0\.0\.1:\d+/", started[-1].stdout.readline())[0]

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == ""
        assert process.returncode == 0


def test_runs_in_a_browser(page, watch, tmp_path):
    alarms, requests = [], []
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: alarms.append(str(error)))
    page.on("console", lambda message: alarms.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    url = watch(tmp_path / "runs" / MARKUP, tmp_path / "trial")
    page.goto(url)
    live, trial = page.locator("article[data-run='0']"), page.locator("article[data-run='1']")
    a_live_runs_curve_grows(live, tmp_path / "runs" / MARKUP)
    names_are_texts(page, live)
    a_killed_client_is_missing(trial, tmp_path / "trial")
    the_page_fits_a_phone(page)
    a_run_is_closed_and_opened(page, live)
    a_curve_says_its_figures(page, live.locator("[data-chart]").first, "round 8 training: ")
    assert alarms == []
    assert {re.match(r"\w+://[^/]+/", request)[0] for request in requests} == {url}
    reports_fit_a_phone(page, [tmp_path / "runs" / MARKUP, tmp_path / "trial" / "silos" / "hub.clinic"])
    assert alarms == []


def a_live_runs_curve_grows(article, folder):
    """The training waits in every evaluation until the page shows it."""
    numbers = []

    def observe(progress):
        if progress.record is not None:
            article.get_by_text(f"{progress.round} of 8", exact=True).wait_for()
            line = article.locator("figure:first-of-type path.line").first
            numbers.append(len(re.findall("[ML]", line.get_attribute("d"))))
            line.evaluate("(node) => { node.drawn = (node.drawn ?? 0) + 1; }")

    article.get_by_text("is not there yet; a run in it is shown here as soon as it begins.").wait_for()
    assert run(check_config(LIVE), folder, observe=observe).status == "finished"
    assert numbers == [1, 2, 3]
    # Thrown away, elements would fill the memory of a page that stays open.
    assert article.locator("figure:first-of-type path.line").first.evaluate("(node) => node.drawn") == 3
    article.locator(".badge", has_text="finished").wait_for()


def names_are_texts(page, article):
    assert article.locator("h2").inner_text().startswith(MARKUP)
    assert TITLE in article.locator(".facts").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("body script").count() == 0


def a_killed_client_is_missing(article, folder):
    """The hubs of the laboratory write their folders as real ones do."""
    lab = Lab(*prepared(train={**LIVE["train"], "rounds": 50}), folder / "silos", 0).begin()
    hub = lab.drivers[LAB]
    lab.until(lambda: hub.hub.round == 3)
    article.locator(".pill.connected", has_text="6 connected").wait_for()
    assert article.locator("svg .party.connected").count() == 4
    lab.crash(NORTH)
    lab.down[NORTH] = lab.now + 1e6
    lab.until(lambda: hub._waiting().get(NORTH, 0) > 20)
    article.locator("svg .party.waited-for title", has_text="north: waited for").wait_for(state="attached")
    assert article.locator(".missing").inner_text().startswith("north of lab: waited for, ")
    assert "client.lab.north" in article.locator(".notice").first.inner_text()
    lab.start(NORTH)
    lab.until(lambda: hub.hub.round > 5)
    article.locator(".pill.connected", has_text="6 connected").wait_for()
    for driver in (lab.drivers[party] for party in lab.job.hubs):
        driver.folder.close()
    article.locator(".badge", has_text="stopped").wait_for()
    assert "is gone: give the same command again" in article.locator(".notice").first.inner_text()


def the_page_fits_a_phone(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def reports_fit_a_phone(page, folders):
    """Curves, bars, tables and the federation of a simulation and of real parties: wide ones scroll in their place."""
    for folder in folders:
        page.goto(write_report(folder).as_uri())
        assert page.locator(".bar").count() > 2
        the_page_fits_a_phone(page)
    a_curve_says_its_figures(page, page.locator("[data-chart]").first, "round ")


def a_run_is_closed_and_opened(page, article):
    """By a click on its name in the table of all runs, in which a figure is chosen."""
    button = page.locator("#together button").first
    for state, expanded in (("detached", "false"), ("attached", "true")):
        button.click()
        page.locator(f"#together button[aria-expanded={expanded}]").first.wait_for()
        article.wait_for(state=state)
    page.locator("#together select").select_option("r2.test")
    page.locator("#together figcaption", has_text="Held-out R²").wait_for()


def a_curve_says_its_figures(page, chart, words):
    """Where the pointer is: the numbers, and a line."""
    chart.scroll_into_view_if_needed()
    # The event of the scroll, which hides figures, comes with the next frame.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + box["height"] / 2)
    assert " ".join(page.locator(".hint").inner_text().split()).startswith(words)
    assert chart.locator(".cursor").get_attribute("d").startswith("M")
