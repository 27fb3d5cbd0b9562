"""``python tests/faults/replay.py SEED [COUNT]``: trials of the laboratory, from this seed on."""

import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lab import ROUGH, Lab, prepared, reference_of


def main(first, count):
    logging.disable()
    config, data = prepared()
    total, began = Counter(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tdcd-faults-") as home:
        reference, _ = reference_of(config, data, Path(home) / "reference")
        for seed in range(first, first + count):
            lab = Lab(config, data, Path(home) / str(seed), seed, ROUGH).run(reference)
            assert set(lab.outcomes.values()) == {"finished"}, lab.outcomes
            total += lab.counts
            print(f"seed {seed}: bit-identical after {dict(lab.counts)}", flush=True)
    print(f"{count} trials in {time.monotonic() - began:.0f} s, all bit-identical: {dict(total)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
