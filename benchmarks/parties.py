"""Start and memory of real parties: 2 hubs and 6 clients with linear blocks, each a process of its own, mutual TLS.

Ridge regression on scikit-learn's diabetes table (``examples/federation.toml``). A start is from the process's first
moment to its first word to the others; processor time next to it, since several start at once.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tdcd.runtime.process.forking import environment
from tdcd.runtime.process.trial import Trial

EXAMPLE = Path(__file__).parent.parent / "examples" / "federation.toml"


class Party:
    """A process, and what it took."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.began, self.log = time.time(), log
        command = [sys.executable, "-m", "tdcd", *arguments]
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=environment())

    def until_heard(self) -> None:
        """Wait until it says that it is there; its seconds so far."""
        while not (said := self._said("dialling", "listening")):
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        ticks = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        self.start_s, self.start_cpu_s = said - self.began, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def look(self) -> None:
        """Note the most memory that it has needed so far: what the system tells at its end counts its parent's too."""
        if found := re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text()):
            self.memory_mb = int(found[1]) / 1e3

    def is_over(self) -> bool:
        """Whether it has ended, as it should."""
        ended, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if not ended:
            self.look()
            return False
        self._process.returncode = os.waitstatus_to_exitcode(status)
        assert self._process.returncode == 0, self.log.read_text()
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return True

    def _said(self, *words: str) -> float | None:
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and (said := json.loads(line))["event"] in words:
                return datetime.fromisoformat(said["time"]).timestamp()
        return None


def main() -> dict[str, float]:
    """Medians over the hubs and over the clients."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "trial"
        trial = Trial.prepare(EXAMPLE, [], folder)
        logs, shared, certs = Path(name), str(folder / "federation.toml"), str(folder / "certs")
        rows = json.loads((folder / "data" / "options.json").read_text())
        hubs, clients = [], []
        for index, silo in enumerate(trial.job.config.silos):
            options = [shared, "--silo", silo.name, "--certs", certs]
            out = str(folder / "silos" / silo.name)
            hubs.append(Party(["hub", *options, "--out", out], logs / f"{silo.name}.log"))
            # One after the other, as machines of their own would start.
            hubs[-1].until_heard()
            for party, client in zip(trial.job.clients(index), silo.client_names, strict=True):
                clients.append(Party(["client", *options, "--client", client, *rows[party]], logs / f"{party}.log"))
                clients[-1].until_heard()
        running = [*hubs, *clients]
        while running := [party for party in running if not party.is_over()]:
            time.sleep(0.01)
    figures = {}
    for kind, parties in (("hub", hubs), ("client", clients)):
        for what in ("start_s", "start_cpu_s", "memory_mb", "cpu_s"):
            figures[f"{kind}_{what}"] = statistics.median(getattr(party, what) for party in parties)
        start, busy, memory, whole = (
            figures[f"{kind}_{what}"] for what in ("start_s", "start_cpu_s", "memory_mb", "cpu_s")
        )
        print(
            f"parties: a {kind} with a linear block starts in {start:.2f} s ({busy:.2f} s of processor time), needs "
            f"{memory:.0f} MB, and {whole:.2f} s of processor time for 40 rounds"
        )
    return figures


if __name__ == "__main__":
    main()
