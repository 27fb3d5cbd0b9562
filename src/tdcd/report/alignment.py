"""What a federation lost by keeping to the samples that all silos know, as a table."""

from collections.abc import Mapping

from tdcd.federation.silos import LabelFigures, SiloIds
from tdcd.report.text_table import TextTable
from tdcd.report.units import figure

SHOWN_CLASSES = 5
"""Of how many classes a cell names the share."""
NO_LABELS = "–"


def alignment_table(silos: Mapping[str, SiloIds]) -> TextTable:
    """One row per silo: its ids, those that all have, the rows that are left out, its labels before and after."""
    rows = [
        [
            name,
            f"{one.ids:,}",
            f"{one.common:,}",
            f"{one.lost:,} ({one.lost / max(1, one.ids):.1%})",
            _in_words(one.labels_before),
            _in_words(one.labels_after),
        ]
        for name, one in silos.items()
    ]
    return TextTable(["silo", "ids", "common ids", "rows lost", "labels before", "labels after"], rows)


def _in_words(figures: LabelFigures | None) -> str:
    if figures is None:
        return NO_LABELS
    if not isinstance(figures, dict):
        return f"mean {figure(figures)}"
    largest = sorted(figures.items(), key=lambda item: -item[1])
    shown = [f"{name} {share:.1%}" for name, share in largest[:SHOWN_CLASSES]]
    return ", ".join(shown) + (", ..." if len(largest) > SHOWN_CLASSES else "")
