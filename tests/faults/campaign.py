"""``python tests/faults/campaign.py [--federations 10] [--kills 30]``: SIGKILL of real processes at random.

Every federation is 2 silos x 2 clients over mutual TLS, in six processes; modes with masks, and with labels at one of
three silos, have more. A trial is one blow: one to six parties are killed at once at a random moment and their commands
given again; then the histories on all disks are compared with the reference, and in most trials the next blow waits
until every hub is a round further.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from lab import IN_STEP, MODES, NOISE_OF_CLIENTS, in_mode
from processes import campaign, reference


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--federations", type=int, default=10)
    options.add_argument("--kills", type=int, default=30, help="in each federation, at least")
    options.add_argument("--rounds", type=int, default=4000, help="enough for most blows to fall before the end")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--mode", choices=[*MODES], default=IN_STEP, help="which member of the family")
    given = options.parse_args()
    total, times, blows, began = Counter(), [], 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tdcd-campaign-") as home:
        keys = in_mode(given.mode, evaluate={"every": 10})
        # Clients that add noise draw it from secrets of their own: every federation has a reference of its own.
        is_shared = given.mode != NOISE_OF_CLIENTS
        expected = reference(Path(home) / "reference", rounds=given.rounds, **keys) if is_shared else None
        for seed in range(given.seed, given.seed + given.federations):
            found = campaign(Path(home) / str(seed), expected, seed, given.kills, rounds=given.rounds, **keys)
            total += found.kills
            times += found.recoveries
            blows += found.blows
            print(f"seed {seed}: bit-identical after {dict(found.kills)} in {found.blows} trials", flush=True)
    ordered = sorted(times)
    print(f"{blows} trials, {dict(total)} SIGKILLs in {time.monotonic() - began:.0f} s, all histories bit-identical")
    print(f"back in the next round after {ordered[len(ordered) // 2]:.1f} s (median), {ordered[-1]:.1f} s (longest)")


if __name__ == "__main__":
    main()
