"""The results of experiments: ``results.json``, from which the page, the pictures and every verdict follow.

With them: what the runs were made with, from their manifests, and times of real processes next to predicted ones, from
a file that ``python -m benchmarks stragglers`` wrote.

A figure that is run later joins those that are there, and takes the place of one of the same name.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from tdcd.config import Config
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder
from tdcd.reproduction.experiment import NAMES, Axis

FORMAT = 2
"""The version of ``results.json``."""
LAST = 5
"""Final losses are means over this many last evaluations, if there are many."""
SeedValues = NDArray[np.float64]


@dataclass(frozen=True)
class CurveResult:
    """One curve's runs, one row per seed."""

    label: str
    rounds: NDArray[np.int64]
    """``[evaluations]``."""
    losses: SeedValues
    """``[seeds, evaluations]``: the training loss of the global model; not a number after a run diverged."""
    megabytes: SeedValues
    """``[evaluations]``: sent over all links."""
    hub_megabytes: SeedValues
    """``[evaluations]``: sent between hubs."""
    metric: SeedValues | None = None
    """``[seeds, evaluations]``: the experiment's held-out metric."""
    seconds: SeedValues | None = None
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
    def last_losses(self) -> SeedValues:
        """``[seeds]``: the mean of the last evaluations, at most a quarter of all."""
        count = max(1, min(LAST, self.losses.shape[1] // 4))
        last: SeedValues = self.losses[:, -count:].mean(axis=1)
        return last


class Limit(NamedTuple):
    """The largest step sizes of ridge regression with N silos and Q local steps."""

    silos: int
    local_steps: int
    stable: float
    """Beyond it, the expected round map is not stable."""
    proof: float
    """The limit by the condition that the proof of Theorem 1 arrives at."""
    printed: float
    """The limit by the condition that Theorem 1 prints."""


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
    """Versions, hardware, precision and times; see :func:`tdcd.reproduction.results.made_with`."""

    limits: tuple[Limit, ...] = ()

    @property
    def num_seeds(self) -> int:
        """Seeds of every curve."""
        return len(self.curves[0].losses)

    @property
    def mark(self) -> str:
        """The mark on every figure and row that used a stand-in for the data."""
        return f"stand-in data: {self.data}" if self.stand_in else ""

    @property
    def size_in_words(self) -> str:
        """How large it is, compared with the paper's."""
        return "the paper's size" if self.full_size else "smaller than the paper's size"


Results = Mapping[str, ExperimentResult]


def joined(*results: Results) -> dict[str, ExperimentResult]:
    """All of them in their usual order; of those with the same name, the last."""
    by_name = {name: result for some in results for name, result in some.items()}
    return {name: by_name[name] for name in NAMES if name in by_name}


def write_results(out: Path, results: Results, claims: list[dict[str, Any]], *, tables: bool = True) -> None:
    """Write ``results.json``, and all curves of every figure as ``NAME.csv`` unless no ``tables`` are wanted."""
    figures = {name: _plain(_entry(result)) for name, result in results.items()}
    text = json.dumps({"format": FORMAT, "claims": _plain(claims), "figures": figures}, indent=1)
    # Lists of numbers on one line each: a line of its own for every number is hard to read.
    text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
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
        recorded = json.loads(path.read_text(encoding="utf-8"))
        if recorded.get("format") == FORMAT:
            return {name: _result(figure) for name, figure in recorded["figures"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged: {error!r}; move it away, and the runs next to it are read again"
        ) from None
    raise ValueError(f"{path} is of another version of tdcd: move it away, and the runs next to it are read again")


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
    """A value in the types of JSON."""
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


class MeasuredTimes(BaseModel):
    """Real federations that differ in their variant, that in step first."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    about: str
    """The federation in words."""
    curves: list[MeasuredCurve]


def read_measured(path: Path) -> MeasuredTimes:
    """What was measured."""
    try:
        return MeasuredTimes.model_validate(json.loads(path.read_text(encoding="utf-8"))["stragglers"])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValidationError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} has no measured times: write it with python -m benchmarks stragglers --json {path}"
        ) from None


def made_with(config: Config, folders: Iterable[Path]) -> dict[str, Any]:
    """Versions, commit, device, precision and times of an experiment's runs.

    ``with`` has an entry for every set of versions and machine, which is one unless runs were continued elsewhere.
    """
    sessions = [session for folder in folders for session in _sessions(folder)]
    sets: list[dict[str, Any]] = []
    for session in sessions:
        machine = {"versions": session["versions"], "hardware": session["hardware"]}
        if machine not in sets:
            sets.append(machine)
    return {
        "with": sets,
        "started": min((session["started"] for session in sessions), default=None),
        "ended": max((session["ended"] for session in sessions if session["ended"]), default=None),
        "precision": config.train.precision,
        "dtype": config.dtype,
    }


def _sessions(folder: Path) -> list[dict[str, Any]]:
    manifest = Manifest(RunFolder(folder))
    # Earlier versions wrote none.
    return list(manifest.read().get("sessions", [])) if manifest.exists else []


def made_in_words(made: dict[str, Any]) -> str:
    """A line below a figure."""
    parts = [_setting(each) for each in made.get("with", [])]
    if not parts:
        return "versions and device are not known"
    when = f"{made['started'] or '?'} to {made['ended'] or '?'}"
    device = made["with"][0]["hardware"]["device"]
    products = "float32" if made["dtype"] == "float64" or device.startswith("cpu") else made["precision"]
    return f"{'; then '.join(parts)}; matrix products in {products}; {when}"


def _setting(each: dict[str, Any]) -> str:
    versions, hardware = each["versions"], each["hardware"]
    commit = f" at commit {versions['commit'][:12]}" if "commit" in versions else ""
    dirty = " with changes" if versions.get("commit", "").endswith("-dirty") else ""
    kind, _, name = hardware["device"].partition(" ")
    device = hardware["cpu"] if kind == "cpu" else name
    cores = f", {hardware['cores']} cores" if kind == "cpu" else ""
    return f"tdcd {versions['tdcd']}{commit}{dirty}, JAX {versions['jax']}, {device}{cores}"
