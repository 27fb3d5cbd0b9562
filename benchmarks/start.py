"""Start-up: importing the package, and the demo's first round with and without compiled programs on disk."""

import os
import subprocess
import sys
import tempfile
import time


def seconds(*command: str, cache: str) -> float:
    began = time.perf_counter()
    env = {**os.environ, "TDCD_CACHE": cache}
    subprocess.run([sys.executable, *command], env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> dict[str, float]:
    """Seconds of whole processes."""
    with tempfile.TemporaryDirectory() as folder:

        def demo(name: str, cache: str) -> float:
            options = ["--out", f"{folder}/{name}", "--set", "train.rounds=1"]
            return seconds("-m", "tdcd", "run", *options, cache=cache)

        figures = {
            "import_s": seconds("-c", "import tdcd", cache=""),
            "no_cache_s": demo("none", ""),
            "first_s": demo("first", f"{folder}/cache"),
            "second_s": demo("second", f"{folder}/cache"),
        }
    print(
        f"start: import {figures['import_s']:.2f} s; the demo with one round {figures['no_cache_s']:.2f} s without a "
        f"cache, {figures['first_s']:.2f} s filling it, {figures['second_s']:.2f} s from it"
    )
    return figures
