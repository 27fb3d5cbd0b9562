"""A claim, and the quantities that decide it: each is to be above zero, on the mean over seeds.

All verdicts are taken alike. A claim holds if the t interval of every quantity is above zero; it does not hold if one
is below zero; else it is not decided by these runs. Thresholds are part of the quantities.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from tdcd.reproduction.results import ExperimentResult, Numbers
from tdcd.reproduction.statistics import Interval, t_interval

Verdict = Literal["holds", "does not hold", "not decided at this size"]


@dataclass(frozen=True)
class Quantity:
    """Something to be above zero, seed by seed."""

    what: str
    values: Numbers
    """``[seeds]``; a single number where nothing depends on the seed, such as bytes."""

    @property
    def interval(self) -> Interval:
        """Of the mean over seeds."""
        return t_interval(self.values)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and what we found."""

    key: str
    """What it is called in ``results.json``."""
    figure: str
    sentence: str
    """The paper's words."""
    check: str
    """What is computed."""
    measured: str
    quantities: tuple[Quantity, ...]
    section: str = "5"
    """Of the paper; empty for a promise of ours."""
    mark: str = ""
    """Says so if a stand-in for the data was used."""

    @property
    def verdict(self) -> Verdict:
        """Whether every quantity is above zero."""
        intervals = [quantity.interval for quantity in self.quantities]
        if any(interval.high < 0 for interval in intervals):
            return "does not hold"
        return "holds" if all(interval.low > 0 for interval in intervals) else "not decided at this size"

    def as_json(self) -> dict[str, Any]:
        """For ``results.json``."""
        quantities = [
            {"what": each.what, "by_seed": each.values, **each.interval._asdict()} for each in self.quantities
        ]
        return {**asdict(self), "quantities": quantities, "verdict": self.verdict}


def summed_up(claims: Sequence[Claim]) -> str:
    """How many claims hold, in words; of those on the paper's bound, with how many the measured errors agree."""
    held = sum(claim.verdict == "holds" for claim in claims)
    if all(claim.section == "4" for claim in claims):
        return f"its bound, and measured errors that agree with {held} of {len(claims)}"
    return f"{held} of {len(claims)} hold"


def exactly(what: str, value: float) -> Quantity:
    """A quantity that does not depend on the seed."""
    return Quantity(what, np.array([float(value)]))


def listed(result: ExperimentResult, values: Sequence[float] | Numbers, form: str, otherwise: str = "never") -> str:
    """A number for each curve, in words; ``otherwise`` where it is not finite."""
    told = [f"{value:{form}}" if np.isfinite(value) else otherwise for value in values]
    return ", ".join(f"{curve.label}: {value}" for curve, value in zip(result.curves, told, strict=True))


def marked(text: str, mark: str) -> str:
    """A name or caption with its mark, if there is one."""
    return f"{text} · {mark}" if mark else text


def marks(*results: ExperimentResult) -> str:
    """What must be said about the data of a claim."""
    return "; ".join(dict.fromkeys(result.mark for result in results if result.mark))
