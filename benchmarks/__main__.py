"""``python -m benchmarks [NAME ...]``: run benchmarks and print their ratios; all of them by default."""

import argparse
import importlib
import json
from pathlib import Path

NAMES = ("ridge", "clients", "cnn", "planning", "federation")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    figures = {name: importlib.import_module(f"benchmarks.{name}").main() for name in options.names or NAMES}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
