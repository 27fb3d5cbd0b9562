"""The part of a report about silos that are missing: what each contributes, and what every subset of them reaches."""

from collections.abc import Iterator

from tdcd.records.run_folder import RunFolder
from tdcd.report.folder import Run
from tdcd.report.html import Html


def subsets(run: Run) -> Iterator[Html]:
    """Nothing yet."""
    yield from ()
