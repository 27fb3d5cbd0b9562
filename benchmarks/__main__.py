"""``python -m benchmarks [NAME ...]``: run benchmarks and print their ratios; all of them by default."""

import argparse
import importlib
import json
import os
from contextlib import nullcontext
from pathlib import Path

import jax

NAMES = (
    "ridge",
    "clients",
    "cnn",
    "wide",
    "ensemble",
    "torch_block",
    "evaluation",
    "loading",
    "defaults",
    "blocks",
    "automatic",
    "certificate",
    "other_systems",
    "large",
    "start",
    "sweep",
    "planning",
    "federation",
    "parties",
    "hub_clients",
    "hub_index",
    "metrics",
    "masks",
    "encrypted_slopes",
    "stragglers",
    "hosts",
    "mapped_hosts",
    "missing_rows",
    "align",
)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="also write a trace for TensorBoard or Perfetto")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    # Read when JAX first uses a GPU, whose memory PyTorch's baselines need too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with jax.profiler.trace(str(options.profile)) if options.profile else nullcontext():
        figures = {name: importlib.import_module(f"benchmarks.{name}").main() for name in options.names or NAMES}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
