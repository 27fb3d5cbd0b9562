"""Times of real processes beside the predicted ones, from a file that ``python -m benchmarks stragglers`` wrote."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tdcd.report import html
from tdcd.report.figures import Curve, line_figure


class MeasuredCurve(BaseModel):
    """One run of real processes, one entry per evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    rounds: list[int]
    losses: list[float]
    seconds: list[float]
    """Measured."""
    predicted: list[float]
    """By the network model."""

    def until(self, level: float, times: Sequence[float]) -> float:
        """When the loss comes down to ``level``, between evaluations along a line; infinite if never."""
        place = next((place for place, loss in enumerate(self.losses) if loss <= level), None)
        if place is None:
            return math.inf
        if place == 0:
            return times[0]
        above, below = self.losses[place - 1 : place + 1]
        return times[place - 1] + (above - level) / (above - below) * (times[place] - times[place - 1])


class Measured(BaseModel):
    """Real federations that differ in their variant, that in step first."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    about: str
    """The federation in words."""
    curves: list[MeasuredCurve]

    def section(self) -> Iterator[html.Html]:
        """A part of a page: predicted and measured time side by side, and what a round took."""
        loss = "training loss of the global model"
        drawn = [
            (line_figure([Curve(c.label, getattr(c, x), c.losses) for c in self.curves], axis, loss), axis)
            for x, axis in (("predicted", "predicted seconds"), ("seconds", "measured seconds"))
        ]
        level = self.curves[0].losses[-1]
        rows = [_row(curve, level) for curve in self.curves]
        head = ["", "final loss", "a round, predicted", "measured", "to the loss in step, predicted", "measured"]
        yield html.section(
            "Measured: real processes with one silo four times slower",
            html.paragraph(self.about),
            html.figures(drawn),
            html.table(head, rows, numbers=True),
        )


def read_measured(path: Path) -> Measured:
    """What was measured."""
    try:
        return Measured.model_validate(json.loads(path.read_text(encoding="utf-8"))["stragglers"])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValidationError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} has no measured times: write it with python -m benchmarks stragglers --json {path}"
        ) from None


def _row(curve: MeasuredCurve, level: float) -> list[str]:
    times = (curve.predicted, curve.seconds)
    rounds = curve.rounds[-1]
    each = [f"{1e3 * (time[-1] - time[0]) / rounds:,.0f} ms" for time in times]
    until = [f"{seconds:,.1f} s" if math.isfinite(seconds := curve.until(level, time)) else "never" for time in times]
    return [curve.label, f"{curve.losses[-1]:.5f}", *each, *until]
