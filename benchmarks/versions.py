"""Another checkout of the package against this one: ``python -m benchmarks.versions FOLDER WHAT [TURNS]``.

FOLDER is a checkout with its own ``.venv``. Both run the same workload at the same time, turn by turn, so that the load
of a machine that others share hits both alike. Processor time is next to the time that passed. WHAT is

- ``real``: a round of ``benchmarks.federation``, in processor time of all eight processes;
- ``simulated``: a round of ``benchmarks.ridge`` in the fastest engine and in the general one, of linear blocks and of
  small networks;
- ``parties``: the start and memory of a light party.
"""

import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

REAL = """
import json, os, sys, tempfile
from pathlib import Path
from benchmarks import parties
from benchmarks.federation import CONFIG
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
def busy(rounds):
    # What all parties took; what a start takes is in a short run and in a long one.
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as sys.stdout:
        parties.EXAMPLE = Path(folder) / "config.toml"
        config = {**CONFIG, "train": {**CONFIG["train"], "rounds": rounds}}
        parties.EXAMPLE.write_text(toml_text(config))
        figures = parties.main()
    sys.stdout = sys.__stdout__
    return 2 * figures["hub_cpu_s"] + 6 * figures["client_cpu_s"]
for _ in sys.stdin:
    print(json.dumps({"round_busy_ms": busy(1500) - busy(500)}), flush=True)
"""
SIMULATED = """
import json, sys, time
from benchmarks.ridge import LOCAL_STEPS, advance, federation
from tdcd import Linear, Mlp, Objective, Settings, Simulation
from tdcd.core.execution import Execution
data, settings = federation(), Settings(local_steps=LOCAL_STEPS, batch_size=100, step_size=1e-3)
kinds = {"fastest": (Linear(), "auto", 640), "general": (Linear(), "clients", 320), "networks": (Mlp(), "clients", 64)}
engines = {
    kind: (Simulation(data, [block] * 4, Objective("squared"), settings, Execution(engine=engine)), rounds)
    for kind, (block, engine, rounds) in kinds.items()
}
for engine in engines.values():
    advance(*engine)
for _ in sys.stdin:
    figures = {}
    for kind, (engine, rounds) in engines.items():
        began, busy = time.perf_counter(), time.process_time()
        advance(engine, rounds)
        figures[f"{kind}_us"] = 1e6 * (time.perf_counter() - began) / rounds
        figures[f"{kind}_busy_us"] = 1e6 * (time.process_time() - busy) / rounds
    print(json.dumps(figures), flush=True)
"""
PARTIES = """
import json, os, sys
from benchmarks.parties import main
for _ in sys.stdin:
    printed, sys.stdout = sys.stdout, open(os.devnull, "w")
    figures, sys.stdout = main(), printed
    kept = ("client_memory_mb", "client_start_cpu_s", "client_cpu_s")
    print(json.dumps({name: figures[name] for name in kept}), flush=True)
"""
PROGRAMS = {"real": (REAL, 4), "simulated": (SIMULATED, 40), "parties": (PARTIES, 5)}
"""Each begins a turn when it reads a line; with the turns by default."""

MANY = 20
"""Turns, for which quartiles say more than extremes."""


def main(other: Path, what: str, turns: int | None = None) -> None:
    """Print the medians of both, and of their ratio turn by turn with its range."""
    program, usual = PROGRAMS[what]
    pairs: list[list[dict[str, float]]] = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [checkout / ".venv" / "bin" / "python", "-c", program],
                    cwd=checkout,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for checkout in (Path(__file__).parent.parent, other.absolute())
        ]
        for _ in range(turns or usual):
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            pairs.append([json.loads(process.stdout.readline()) for process in processes if process.stdout is not None])
    for name in pairs[0][0]:
        here, there = ([pair[index][name] for pair in pairs] for index in (0, 1))
        ratios = [own / others for own, others in zip(here, there, strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        if len(ratios) >= MANY:
            low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"{what}, {name}: here {statistics.median(here):.4g}, there {statistics.median(there):.4g}; here / there "
            f"{middle:.3f} (median of {len(pairs)} turns, {'half of them' if len(ratios) >= MANY else 'all'} from "
            f"{low:.3f} to {high:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None)
