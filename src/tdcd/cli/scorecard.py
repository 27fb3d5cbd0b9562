"""``tdcd export --scorecard``: call, print."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.box
from rich.table import Table
from rich.text import Text

from tdcd.cli.terminal import refuse_existing, reported, screen

if TYPE_CHECKING:
    from tdcd.prediction.scorecard import Scorecard


def export_scorecard(
    folder: Path, out: Path | None, scale: Mapping[str, Any], *, allow_code: bool, force: bool
) -> None:
    """Show the scorecard of a run, or write its table and, beside it, its page.

    Args:
        scale: fields of :class:`tdcd.prediction.scorecard.PointScale` that differ from the defaults.
    """
    from tdcd.pages.scorecard import write_page
    from tdcd.prediction.model import Model
    from tdcd.prediction.scorecard import PointScale, scorecard, write_scorecard
    from tdcd.tables.writing import check_name

    with reported():
        model = Model.load(folder, allow_code=allow_code)
        card = scorecard(model, PointScale(**scale))
        if out is not None:
            page = out.with_suffix(".html")
            check_name(out)
            refuse_existing(out, force)
            refuse_existing(page, force)
            write_scorecard(out, card)
            write_page(page, card, folder.resolve().name)
    if out is None:
        _show(card)
    else:
        screen.print(f"Scorecard: {out}\nPage:      {page}", soft_wrap=True, highlight=False)
    screen.print(card.meaning, soft_wrap=True, highlight=False)
    if card.absent:
        others = ", ".join(card.absent)
        screen.print(
            Text(f"Only a part of the model: {folder} does not have that of {others}.", "yellow"), soft_wrap=True
        )


def _show(card: "Scorecard") -> None:
    from tdcd.pages.scorecard import in_words

    shown = Table(box=rich.box.SIMPLE_HEAD)
    for heading in ("silo", "column", "bin or level"):
        shown.add_column(heading, overflow="fold")
    for heading in (card.unit, "share"):
        shown.add_column(heading, justify="right")
    for line in card.lines:
        where = in_words(line.cell) if line.silo else ""
        shown.add_row(line.silo, Text(line.column), Text(where), f"{line.value:.4g}", f"{line.cell.share:.1%}")
    screen.print(shown)
