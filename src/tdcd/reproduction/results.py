"""What experiments gave: ``results.json``, from which the page, the pictures and every verdict follow.

A figure that is run later joins those that are there, and takes the place of one of the same name.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.reproduction.experiment import NAMES, Axis

FORMAT = 2
"""Of ``results.json``."""
LAST = 5
"""Final losses are means over this many last evaluations, if there are many."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class CurveResult:
    """One curve's runs, one row per seed."""

    label: str
    rounds: NDArray[np.int64]
    """``[evaluations]``."""
    losses: Numbers
    """``[seeds, evaluations]``: the training loss of the global model; not a number after a run diverged."""
    megabytes: Numbers
    """``[evaluations]``: sent over all links."""
    hub_megabytes: Numbers
    """``[evaluations]``: sent between hubs."""
    metric: Numbers | None = None
    """``[seeds, evaluations]``: the experiment's held-out metric."""
    seconds: Numbers | None = None
    """``[evaluations]``: the predicted time until this round is over, on the configuration's network."""
    local_steps: int = 1
    """Q."""
    batch_size: int = 1
    """B."""
    step_size: float = 1.0
    """eta."""
    hub_messages: int = 0
    """Between hubs, in one round."""
    parameters: int = 0
    """Numbers in the blocks of all silos."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """``[evaluations]``: local steps so far."""
        return self.rounds * self.local_steps

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """``[seeds]``: whether a run ends above where it began, or at no number."""
        with np.errstate(invalid="ignore"):
            return np.asarray(~np.isfinite(self.losses).all(axis=1) | (self.last_losses > self.losses[:, 0]))

    @property
    def last_losses(self) -> Numbers:
        """``[seeds]``: the mean of the last evaluations, at most a quarter of all."""
        count = max(1, min(LAST, self.losses.shape[1] // 4))
        last: Numbers = self.losses[:, -count:].mean(axis=1)
        return last


class Limit(NamedTuple):
    """The largest step sizes of ridge regression with N silos and Q local steps."""

    silos: int
    local_steps: int
    stable: float
    """Beyond it, the expected round map is not stable."""
    proof: float
    """Of the condition that the proof of Theorem 1 arrives at."""
    printed: float
    """Of the condition that Theorem 1 prints."""


@dataclass(frozen=True)
class ExperimentResult:
    """All curves of an experiment, and how to show them."""

    name: str
    title: str
    data: str
    """The name of the table that was used."""
    curves: tuple[CurveResult, ...]
    optimum: float | None = None
    """The exact minimum of the objective, for ridge regression."""
    stand_in: str = ""
    """Why another table than the paper's was used; empty if it was not."""
    full_size: bool = True
    """Whether it is as large as the paper has it."""
    chosen: tuple[str, ...] = ()
    """What the paper does not give, in words."""
    inset: int | None = None
    metric: str | None = None
    against: tuple[Axis, ...] = ("rounds", "megabytes")
    made: dict[str, Any] = field(default_factory=dict)
    """Versions, hardware, precision and times; see :func:`tdcd.reproduction.provenance.made_with`."""

    limits: tuple[Limit, ...] = ()

    @property
    def num_seeds(self) -> int:
        """Of every curve."""
        return len(self.curves[0].losses)

    @property
    def mark(self) -> str:
        """To stand in every figure and row that a stand-in for the data touches."""
        return f"stand-in data: {self.data}" if self.stand_in else ""

    @property
    def size_in_words(self) -> str:
        """How large it is, beside the paper's."""
        return "the paper's size" if self.full_size else "smaller than the paper's size"


Results = Mapping[str, ExperimentResult]


def joined(*results: Results) -> dict[str, ExperimentResult]:
    """All of them in their usual order; of those with the same name, the last."""
    found = {name: result for some in results for name, result in some.items()}
    return {name: found[name] for name in NAMES if name in found}


def write_results(out: Path, results: Results, claims: list[dict[str, Any]], *, tables: bool = True) -> None:
    """Write ``results.json``, and all curves of every figure as ``NAME.csv`` unless no ``tables`` are wanted."""
    figures = {name: _plain(_entry(result)) for name, result in results.items()}
    text = json.dumps({"format": FORMAT, "claims": _plain(claims), "figures": figures}, indent=1)
    # Lists of numbers on one line each: a line of its own for every number is hard to read.
    text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(text + "\n", encoding="utf-8")
    for name, result in results.items() if tables else ():
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(_table(result))


def _entry(result: ExperimentResult) -> dict[str, Any]:
    entry = asdict(result)
    limits = entry.pop("limits")
    return {**entry, "limits": [limit._asdict() for limit in limits]} if limits else entry


def read_results(path: Path) -> dict[str, ExperimentResult]:
    """The figures of a ``results.json``; none if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("format") == FORMAT:
            return {name: _result(figure) for name, figure in found["figures"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}; move it away, and the runs beside it are read again") from None
    raise ValueError(f"{path} is of another version of tdcd: move it away, and the runs beside it are read again")


def _result(figure: dict[str, Any]) -> ExperimentResult:
    curves = tuple(_curve(curve) for curve in figure.pop("curves"))
    lists: dict[str, Any] = {name: tuple(figure.pop(name)) for name in ("chosen", "against")}
    lists["limits"] = tuple(Limit(**limit) for limit in figure.pop("limits", ()))
    return ExperimentResult(curves=curves, **lists, **figure)


def _curve(curve: dict[str, Any]) -> CurveResult:
    rounds = np.array(curve.pop("rounds"))
    # null is a loss that was not finite, and a list may be missing as a whole.
    arrays: dict[str, Any] = {name: np.array(curve.pop(name), float) for name in ARRAYS if curve[name] is not None}
    return CurveResult(rounds=rounds, **arrays, **curve)


ARRAYS = ("losses", "megabytes", "hub_megabytes", "metric", "seconds")


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _table(result: ExperimentResult) -> Iterator[list[Any]]:
    """One row per evaluation of every run."""
    yield ["curve", "seed", "round", "local_steps", "megabytes", "hub_megabytes", "loss", "metric", "data"]
    data = result.mark or result.data
    for curve in result.curves:
        for seed, losses in enumerate(curve.losses):
            metric = [""] * len(losses) if curve.metric is None else curve.metric[seed]
            for place, loss in enumerate(losses):
                row = [curve.rounds[place], curve.steps[place], curve.megabytes[place], curve.hub_megabytes[place]]
                numbers = [_plain(value) for value in (*row, loss, metric[place])]
                yield [curve.label, seed, *("" if number is None else number for number in numbers), data]
