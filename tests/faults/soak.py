"""``python tests/faults/soak.py [ROUNDS]``: a long run of 3 silos x 3 clients: memory, open files and threads stay."""

import sys
import tempfile
from pathlib import Path

from processes import Processes, usage

SILOS = [{"name": name, "clients": 3} for name in ("bank", "clinic", "shop")]


def soak(folder, rounds, first):
    """What each process used at round ``first`` and near the end: MB of memory, open files, threads."""
    with Processes(folder, rounds=rounds, silos=SILOS, evaluate={"every": 10}) as parties:
        parties.start_all()
        found = []
        for stage in (first, rounds - 20):
            parties.until(lambda stage=stage: min(parties.rounds()) >= stage, f"round {stage}")
            found.append({party: usage(process) for party, process in parties.trial.processes.items()})
        parties.until(lambda: parties.is_over, "the end")
    return found


def main(rounds):
    with tempfile.TemporaryDirectory(prefix="tdcd-soak-") as home:
        early, late = soak(Path(home) / "run", rounds, min(200, rounds // 4))
    for party in early:
        numbers = [f"{a:.0f} -> {b:.0f}" for a, b in zip(early[party], late[party], strict=True)]
        print(f"{party:16}  MB {numbers[0]}, open files {numbers[1]}, threads {numbers[2]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
