"""The part of a report about the held-out samples: how good the predictions are, beyond one number."""

from collections.abc import Iterator

from tdcd.records.run_folder import RunFolder
from tdcd.report import html
from tdcd.report.amount_section import amount_figures
from tdcd.report.class_section import class_figures
from tdcd.report.folder import Run
from tdcd.report.held_out import Amounts, read_held_out
from tdcd.report.html import Html
from tdcd.report.units import counted


def predictions(run: Run) -> Iterator[Html]:
    """Figures of what the model says of the samples that nobody trained on; nothing if the folder does not say."""
    samples = read_held_out(RunFolder(run.path).held_out_file)
    if samples is None:
        return
    shown, total = len(samples.true), run.federation.num_test
    if not shown:
        return
    of = f"{shown:,} of the {total:,} held-out samples" if shown < total else f"all {counted(shown, 'held-out sample')}"
    figures = amount_figures(samples, _label(run)) if isinstance(samples, Amounts) else class_figures(samples)
    yield html.section("Held-out predictions", html.paragraph(f"What the model says of {of}."), *figures)


def _label(run: Run) -> str:
    """What is predicted: the name of its column, where there is one."""
    names = (silo.get("label") for silo in run.config.get("silos", []))
    return next((str(name) for name in names if name), "label")
