"""``python -m benchmarks.client_group FOLDER SILO NAME ...``: several clients of a silo in one process, a thread each.

Each is the client of ``tdcd client``, with a certificate, a link and rows of its own.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tdcd.runtime.process.driver import Outcome
from tdcd.runtime.process.log import open_log
from tdcd.runtime.process.party import own_file, read_job, run_client


def main() -> None:
    """Be all of them, until the hub says that the run is over."""
    folder, silo, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    open_log(f"clients of {silo}")
    job = read_job(folder / "federation.toml")
    rows = json.loads((folder / "data" / "options.json").read_text())

    def run(name: str) -> Outcome:
        option, path = rows[f"client.{silo}.{name}"]
        assert option == "--data"
        return run_client(job, silo, name, own_file(None, certs=str(folder / "certs"), data=path), lambda: False)

    with ThreadPoolExecutor(len(names)) as threads:
        outcomes = [*threads.map(run, names)]
    sys.exit(any(outcome.status != "finished" for outcome in outcomes))


if __name__ == "__main__":
    main()
