"""What a hub's index of 10^7 rows takes of its memory: ids, labels and who holds each row, from the clients' messages.

Each message is checked and let go before the next one comes, as at a hub. A process of its own measures, since Python
hardly ever returns what it has taken from the system.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.config import check_config
from tdcd.runtime.compute.sample_index import Enrolment, build_index
from tdcd.runtime.messages.messages import Enrol
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import PROTOCOL

CLIENTS, ROWS = 20, (100_000, 500_000)
"""Rows per client."""


def message(client: int, rows: int) -> Enrol:
    """What a client says of its rows: ids of ten digits in no order, and labels."""
    numbers = np.random.default_rng(client).permutation(rows) * CLIENTS + client
    labels = Array.of((numbers % 2).astype(np.float64))
    return Enrol(
        sender=f"client.a.c{client}",
        receiver="hub.a",
        protocol=PROTOCOL,
        config={},
        ids=[f"{number:010d}" for number in numbers.tolist()],
        labels=labels,
        is_table=True,
        rows="",
        session="",
    )


def memory() -> int:
    """The most that this process has had."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def measure(rows: int) -> None:
    """Build the index, and print bytes and seconds."""
    config = check_config(
        {"data": {"source": "diabetes"}, "model": {"loss": "logistic"}, "silos": [{"name": "a", "clients": CLIENTS}]}
    )
    before, began = memory(), time.process_time()
    enrolments = {f"client.a.c{client}": Enrolment.read(message(client, rows)) for client in range(CLIENTS)}
    index = build_index(enrolments, config)
    index.digests(b"secret")
    print(memory() - before, memory(), time.process_time() - began)
    assert len(index.ids) == CLIENTS * rows


def main() -> dict[str, Any]:
    figures = {}
    for rows in ROWS:
        command = [sys.executable, "-c", f"from benchmarks.hub_index import measure; measure({rows})"]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        more, most, seconds = int(words[0]), int(words[1]), float(words[2])
        figures[CLIENTS * rows] = {"bytes_per_row": more / (CLIENTS * rows), "peak_bytes": most, "seconds": seconds}
        print(
            f"index of a hub with {CLIENTS * rows:,} rows: {more / (CLIENTS * rows):.0f} bytes per row, "
            f"{most / 2**20:.0f} MiB in all, {seconds:.0f} s of the processor",
            flush=True,
        )
    return {"rows": figures}
