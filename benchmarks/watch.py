"""A page of ``tdcd watch`` left open over a long run: memory of the server and of the page, and how fast it answers.

``python -m benchmarks.watch [--rounds 100000] [--minutes 2]`` appends that many lines to the history of a run, evenly
over the time, with a page open in headless Chromium all along. At the end a second server and page meet the whole
history at once. Needs Chromium on the path, and Playwright.
"""

import argparse
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tdcd.core.ledger import Traffic
from tdcd.records.history import Record

SILOS = [{"name": f"silo{number}", "clients": 5} for number in (1, 2)]


def line(number: int, noise: random.Random) -> str:
    loss = 2.3 * math.exp(-number / 8000) + 0.1 + 0.05 * noise.random()
    figures = {"accuracy": 1 - loss / 3, "auc": 1 - loss / 9}
    sent = Traffic(*(number * size for size in (157_440, 157_440, 102_400)))
    split = {"train": figures, "test": figures}
    return Record(number, 10 * number, loss, 1.1 * loss, split, sent, sent, seconds=0.01 * number).to_json() + "\n"


def begin(folder: Path, rounds: int) -> None:
    folder.mkdir()
    silos = "".join(f"[[silos]]\nname = '{silo['name']}'\nclients = {silo['clients']}\n" for silo in SILOS)
    (folder / "config.toml").write_text(f"[train]\nrounds = {rounds}\n{silos}")
    described = [
        {**silo, "feature_shape": [8, 4], "columns": [], "clients": [288] * 5, "parameters": 330} for silo in SILOS
    ]
    (folder / "federation.json").write_text(json.dumps({"name": "long", "num_samples": 1440, "silos": described}))
    (folder / "history.jsonl").touch()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a new ``tdcd watch``, and its process."""
    command = [sys.executable, "-m", "tdcd", "watch", str(folder), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        try:
            yield found[0], process.pid
        finally:
            process.terminate()


def megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def opened(browser: Browser, url: str) -> tuple[Page, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    inspector = page.context.new_cdp_session(page)
    inspector.send("Performance.enable")
    page.goto(url)
    page.wait_for_selector(".live")
    return page, inspector


def measured(page: Page, inspector: Any, pid: int) -> dict[str, float]:
    """Of page and server as they are now; heaps after a collection of garbage."""
    before = {entry["name"]: entry["value"] for entry in inspector.send("Performance.getMetrics")["metrics"]}
    inspector.send("HeapProfiler.collectGarbage")
    found = {entry["name"]: entry["value"] for entry in inspector.send("Performance.getMetrics")["metrics"]}
    start = time.perf_counter()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return {
        "heap before collection, MB": before["JSHeapUsedSize"] / 1e6,
        "heap, MB": found["JSHeapUsedSize"] / 1e6,
        "nodes": found["Nodes"],
        "two frames, ms": 1e3 * (time.perf_counter() - start),
        "script, s": found["ScriptDuration"],
        "server, MB": megabytes(pid),
        "points": page.evaluate("document.querySelector('path.line')?.getAttribute('d').split(/[ML]/).length ?? 0"),
    }


def show(rounds: int, figures: dict[str, float]) -> None:
    print(f"round {rounds:>7,}  " + "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()), flush=True)


def largest_renderer(browser: Browser) -> float:
    """Megabytes of the page's process."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return max(megabytes(process["id"]) for process in processes if process["type"] == "renderer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    options = parser.parse_args()
    noise, parts = random.Random(0), 20
    with tempfile.TemporaryDirectory() as home, sync_playwright() as driver:
        folder = Path(home) / "long"
        begin(folder, options.rounds)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        with served(folder) as (url, pid):
            page, inspector = opened(browser, url)
            for part in range(parts):
                rounds = range(part * options.rounds // parts, (part + 1) * options.rounds // parts)
                step = max(1, len(rounds) // 20)
                for first in rounds[::step]:
                    with (folder / "history.jsonl").open("a") as file:
                        file.writelines(
                            line(number + 1, noise) for number in range(first, min(first + step, rounds[-1] + 1))
                        )
                    page.wait_for_timeout(60_000 * options.minutes / parts / 20)
                show(rounds[-1] + 1, measured(page, inspector, pid))
            print(f"the page's process has {largest_renderer(browser):,.0f} MB")
        with served(folder) as (url, pid):
            start = time.perf_counter()
            page, inspector = opened(browser, url)
            page.wait_for_selector("path.line", state="attached")
            print(f"a new server and page show all of it after {time.perf_counter() - start:.1f} s")
            show(options.rounds, measured(page, inspector, pid))
        browser.close()


if __name__ == "__main__":
    main()
