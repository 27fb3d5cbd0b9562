"""A page of ``tdcd watch`` left open over a long run: memory of the server and of the page, and how fast it answers.

``python -m benchmarks.watch [--rounds 100000] [--minutes 60]`` trains a small ridge regression with ``tdcd run``, every
round evaluated, and has its page open in headless Chromium all along. The run would end after some minutes: it is
stopped and continued (SIGSTOP, SIGCONT) so that its rounds take nearly the whole time. At the end a second server and
page meet the whole history at once. Needs Chromium on the path, and Playwright.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

CONFIG = """
name = "long"
data.source = "diabetes"
silos = [{ name = "clinic", clients = 5 }, { name = "lab", clients = 5 }]
model.block = "linear"
train = { rounds = %d, local_steps = 5, batch_size = 32, step_size = 0.01 }
evaluate.every = 1
"""
TICK_MS = 100
LEFT_OVER = 0.03
"""The part of the time that is left to the page of the finished run."""


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ``tdcd``, ended with the block."""
    with subprocess.Popen([sys.executable, "-m", "tdcd", *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a new ``tdcd watch``, and its process."""
    with started("watch", str(folder), "--port", "0", "--no-browser") as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid


def last_round(folder: Path) -> int:
    """The round of the last whole line of a history; 0 without one."""
    try:
        with (folder / "history.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [line for line in lines[1:] if line.endswith(b"\n")]
    return json.loads(whole[-1])["round"] if whole else 0


def keep_to(due: float, process: subprocess.Popen[str], folder: Path) -> None:
    """Stop the run where it is ahead of ``due``, and continue it where it is not."""
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP if last_round(folder) > due else signal.SIGCONT)


def megabytes(pid: int, kind: str = "VmRSS") -> float:
    """Of a process: in all, or of one kind, such as ``RssFile`` for what it shares with all others of its program."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(rf"{kind}:\s+(\d+)", status)[0]) / 1024


def opened(browser: Browser, url: str) -> tuple[Page, CDPSession]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    inspector = page.context.new_cdp_session(page)
    inspector.send("Performance.enable")
    page.goto(url)
    page.wait_for_selector(".live")
    return page, inspector


def milliseconds_to_read_a_curve(page: Page) -> float:
    """From the pointer's move onto the first curve until its figures at that place are drawn."""
    box = page.locator("article svg.chart").first.bounding_box()
    assert box is not None
    page.mouse.move(0, 0)
    start = time.perf_counter()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("article path.cursor[d^=M]", state="attached")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return 1e3 * (time.perf_counter() - start)


def milliseconds_to_answer(url: str) -> float:
    """Of the server: everything that a new page needs to know."""
    start = time.perf_counter()
    with urlopen(f"{url}state") as answer:
        answer.read()
    return 1e3 * (time.perf_counter() - start)


def measured(page: Page, inspector: CDPSession, url: str, pid: int) -> dict[str, float]:
    """Of page and server as they are now. Garbage is left to the browser, as it is for a reader."""
    found = {entry["name"]: entry["value"] for entry in inspector.send("Performance.getMetrics")["metrics"]}
    renderer = largest_renderer(page)
    return {
        "server, MB": megabytes(pid),
        "page's process, MB": megabytes(renderer),
        "of it program, MB": megabytes(renderer, "RssFile"),
        "heap, MB": found["JSHeapUsedSize"] / 1e6,
        "nodes": found["Nodes"],
        "script, s": found["ScriptDuration"],
        "curve, ms": milliseconds_to_read_a_curve(page),
        "answer, ms": milliseconds_to_answer(url),
        "points": page.evaluate("document.querySelector('path.line')?.getAttribute('d').split(/[ML]/).length ?? 0"),
    }


def largest_renderer(page: Page) -> int:
    """The page's process."""
    browser = page.context.browser
    assert browser is not None
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return max((process["id"] for process in processes if process["type"] == "renderer"), key=megabytes)


def show(rounds: int, figures: dict[str, float]) -> None:
    print(f"round {rounds:>7,}  " + "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as home, sync_playwright() as driver:
        folder, config = Path(home) / "long", Path(home) / "long.toml"
        config.write_text(CONFIG % options.rounds)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        with served(folder) as (url, pid), started("run", str(config), "--out", str(folder)) as process:
            page, inspector = opened(browser, url)
            page.wait_for_selector("path.line", state="attached", timeout=120_000)
            start, shown = time.perf_counter(), 0.0
            while (elapsed := time.perf_counter() - start) < seconds:
                keep_to(options.rounds * elapsed / (seconds * (1 - LEFT_OVER)), process, folder)
                if elapsed - shown > min(60, seconds / 20):
                    shown = elapsed
                    show(last_round(folder), measured(page, inspector, url, pid))
                page.wait_for_timeout(TICK_MS)
            inspector.send("HeapProfiler.collectGarbage")
            show(last_round(folder), measured(page, inspector, url, pid))
            print(f"the page calls the run {page.inner_text('.badge')}")
            page.close()
        with served(folder) as (url, pid):
            begin = time.perf_counter()
            page, inspector = opened(browser, url)
            page.wait_for_selector("path.line", state="attached")
            print(f"a new server and page show the first of it after {time.perf_counter() - begin:.1f} s")
            page.wait_for_selector(".badge:not(.reading)", timeout=120_000)
            print(f"and all of it after {time.perf_counter() - begin:.1f} s")
            show(options.rounds, measured(page, inspector, url, pid))
        browser.close()


if __name__ == "__main__":
    main()
