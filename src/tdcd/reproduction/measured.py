"""Times of real processes beside the predicted ones, from a file that ``python -m benchmarks stragglers`` wrote."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError


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
