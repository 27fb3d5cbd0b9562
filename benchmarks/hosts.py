"""A table four times larger than a process may use, trained by four processes that each have a quarter of the rows.

The limit is on a process's own data (``RLIMIT_DATA``: heap and private writable memory). One on all addresses would
count libraries and what JAX only reserves; beyond this one, an allocation fails. It is 1.3 times the share of the
features, plus the blocks, plus what a process needs for a tiny table. Stacks and what allocators reserve count too:
there are few and small ones here (Arrow's own allocator would reserve a gigabyte), so that it is close to what is used.

``TDCD_HOSTS_ROWS`` sets M, 32,000 by default: 262 MB of float32 in 2,048 columns.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = int(os.environ.get("TDCD_HOSTS_ROWS", "32000"))
TINY, COLUMNS, SILOS, CLIENTS, HOSTS, ROUNDS = 640, 2048, 2, 16, 4, 10
STACK = 1 << 20
SETTINGS = f"""
name = "hosts"
[data]
source = "files"
folder = "{{folder}}"
[federation]
bias = false
[model]
block = "linear"
loss = "squared"
[train]
rounds = {ROUNDS}
local_steps = 5
batch_size = 256
step_size = 0.0005
[evaluate]
every = 5
"""


class Peak(NamedTuple):
    """What a process needed at most, in bytes, and how it ended."""

    resident: int
    data: int
    status: int
    seconds: float
    """Of the processor."""


def write(folder: Path, rows: int) -> Path:
    """A Parquet table per client, of random numbers; the configuration."""
    rng, width = np.random.default_rng(0), COLUMNS // SILOS
    text = SETTINGS.format(folder=folder)
    for silo in range(SILOS):
        text += f'[[silos]]\nname = "silo{silo}"\n' + ('label = "y"\n' if silo == 0 else "")
        for client in range(CLIENTS):
            numbers = (
                np.arange(rows)[client::CLIENTS] if silo == 0 else np.array_split(np.arange(rows), CLIENTS)[client]
            )
            features = rng.standard_normal((len(numbers), width), np.float32)
            labels = {"y": np.sin(numbers).astype(np.float32)} if silo == 0 else {}
            columns = {"id": numbers} | labels | {f"x{place}": features[:, place] for place in range(width)}
            name = f"silo{silo}-{client}.parquet"
            pq.write_table(pa.table(columns), folder / name, row_group_size=512, compression=None, use_dictionary=False)
            text += f'[[silos.client]]\nname = "c{client}"\ntable = "{name}"\n'
    config = folder / "config.toml"
    config.write_text(text)
    return config


def train(config: Path, out: Path, processes: int, limit: int | None = None) -> list[Peak]:
    """Run the configuration in so many processes, each with at most ``limit`` bytes of data; see :class:`Peak`."""
    command, address = [sys.executable, "-m", "tdcd", "run", str(config), "--out", str(out)], free_address()
    together = ["--coordinator", address, "--processes", str(processes), "--process"]
    commands = [[*command, *together, str(process)] for process in range(processes)]
    return watched(commands if processes > 1 else [command], out, limit)


def free_address() -> str:
    """An address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def watched(commands: Sequence[Sequence[str]], out: Path, limit: int | None = None) -> list[Peak]:
    """Run these commands at the same time; their output goes to files next to ``out``, with numbers."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TDCD_CACHE": ""}
    environment |= {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    started = []
    for process, command in enumerate(commands):
        with (out.parent / f"{out.name}-{process}.log").open("w") as log, _limits(limit):
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    peaks: list[Any] = [None] * len(commands)
    watching = [threading.Thread(target=_watch, args=(peaks, place, one)) for place, one in enumerate(started)]
    for thread in watching:
        thread.start()
    for thread in watching:
        thread.join()
    words = [f"{one.resident / 1e6:.0f} MB resident, {one.data / 1e6:.0f} MB of data" for one in peaks]
    print(f"{out.name}: {'; '.join(words)}", flush=True)
    return peaks


@contextmanager
def _limits(data: int | None) -> Iterator[None]:
    """A process that is started here begins with these limits."""
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_STACK)}
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, before[resource.RLIMIT_STACK][1]))
    if data is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (data, before[resource.RLIMIT_DATA][1]))
    yield
    for kind, limits in before.items():
        resource.setrlimit(kind, limits)


def _watch(peaks: list[Any], place: int, running: "subprocess.Popen[bytes]") -> None:
    resident = data = seconds = 0
    while running.poll() is None:
        try:
            lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
            ticks = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            break
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
        resident, data = max(resident, found.get("VmHWM", 0)), max(data, found.get("VmData", 0))
        seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        time.sleep(0.01)
    peaks[place] = Peak(resident, data, running.wait(), seconds)


def losses(out: Path) -> list[float]:
    """The training loss of every line of the history."""
    return [json.loads(line)["train_loss"] for line in (out / "history.jsonl").read_text().splitlines()]


def main() -> dict[str, float]:
    """Train both ways; memory beside that for a tiny table, as a multiple of the share."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny").mkdir()
        (folder / "large").mkdir()
        tiny = train(write(folder / "tiny", TINY), folder / "tiny-run", HOSTS)
        config = write(folder / "large", ROWS)
        share, blocks = 4 * ROWS * COLUMNS // HOSTS, 4 * COLUMNS
        limit = max(one.data for one in tiny) + int(1.3 * share) + blocks
        together = train(config, folder / "together", HOSTS, limit)
        if any(one.status for one in together):
            logs = [(folder / f"together-{place}.log").read_text()[-2000:] for place in range(HOSTS)]
            raise SystemExit("\n".join(logs))
        (refused,) = train(config, folder / "refused", 1, limit)
        (alone,) = train(config, folder / "alone", 1)
        ours, theirs = losses(folder / "together"), losses(folder / "alone")
    resident = [(one.resident - least.resident) / share for one, least in zip(together, tiny, strict=True)]
    figures = {
        "features_mb": 4 * ROWS * COLUMNS / 1e6,
        "share_mb": share / 1e6,
        "limit_mb": limit / 1e6,
        "tiny_resident_mb": max(one.resident for one in tiny) / 1e6,
        "most_resident_mb": max(one.resident for one in together) / 1e6,
        "most_in_shares": max(resident),
        "alone_resident_mb": alone.resident / 1e6,
        "alone_under_the_limit_ends_with": float(refused.status),
        "largest_difference_of_losses": max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)),
        "loss_before": theirs[0],
        "loss_after": theirs[-1],
        "processor_s_together": sum(one.seconds for one in together),
        "processor_s_alone": alone.seconds,
    }
    for what, figure in figures.items():
        print(f"{what.replace('_', ' '):34} {figure:.6g}")
    return figures
