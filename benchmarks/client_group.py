"""``python -m benchmarks.client_group FOLDER SILO PER_PROCESS``: all clients of a silo, several in one process.

Each is the client of ``tdcd client``, with a certificate, a link and rows of its own, in a thread of its own. Processes
are copies of one that has imported everything.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tdcd.runtime.job import Job
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.process.log import open_log
from tdcd.runtime.process.party import own_file, read_job, run_client


def main() -> None:
    """Be all of them, until the hub says that the run is over."""
    folder, silo, per_process = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    open_log(f"clients of {silo}")
    job = read_job(folder / "federation.toml")
    names = job.config.silos[job.silo_index(silo)].client_names
    children = []
    for first in range(0, len(names), per_process):
        child = os.fork()
        if not child:
            os._exit(run(folder, job, silo, names[first : first + per_process]))
        children.append(child)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children) != 0)


def run(folder: Path, job: Job, silo: str, names: list[str]) -> bool:
    """Be some of them; whether one did not finish."""
    options = json.loads((folder / "data" / "options.json").read_text())

    def one(name: str) -> RunOutcome:
        _, path = options[f"client.{silo}.{name}"]
        return run_client(job, silo, name, own_file(None, certs=str(folder / "certs"), data=path), lambda: False)

    with ThreadPoolExecutor(len(names)) as threads:
        return any(outcome.status != "finished" for outcome in threads.map(one, names))


if __name__ == "__main__":
    main()
