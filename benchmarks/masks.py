"""What masks cost: a round of a real federation with and without them, 3 silos x 3 clients on loopback, mutual TLS.

The same ridge regression as in ``federation``. The kinds take turns, since the speed of a machine that others share
changes from minute to minute; a ratio is of two runs of the same turn.
"""

import statistics
import tempfile
from pathlib import Path

from benchmarks.federation import CONFIG, real_round

TURNS = 5
KINDS = {
    "plain": {},
    "mask": {"protect": "mask"},
    "mask_and_blocks": {"protect": "mask", "protect_blocks": True},
}
SILOS = [{"name": name, "clients": 3} for name in "abc"]


def _seconds(exchange: dict) -> float:
    with tempfile.TemporaryDirectory() as name:
        return real_round(Path(name), {**CONFIG, "silos": SILOS, "exchange": exchange})


def main() -> dict[str, float]:
    turns = [{kind: _seconds(exchange) for kind, exchange in KINDS.items()} for _ in range(TURNS)]
    figures = {f"{kind}_ms": 1e3 * statistics.median(turn[kind] for turn in turns) for kind in KINDS}
    for kind in [*KINDS][1:]:
        ratios = sorted(turn[kind] / turn["plain"] for turn in turns)
        figures[f"{kind}_ratio"] = statistics.median(ratios)
        print(
            f"federation of 3 silos x 3 clients, loopback, mutual TLS: a round takes {figures['plain_ms']:.2f} ms, "
            f"with {kind.replace('_', ' ')} {figures[f'{kind}_ms']:.2f} ms: {figures[f'{kind}_ratio']:.2f} times "
            f"(medians of {TURNS} turns, from {ratios[0]:.2f} to {ratios[-1]:.2f} times)",
            flush=True,
        )
    return figures
