"""``model = "auto"``: candidates are trained by TDCD itself, and compared on the held-out samples within a time limit.

Every candidate is a few keys of ``[model]``, trained as :func:`tdcd.training.train.train_plan` trains any plan. What is
compared is the loss of each held-out sample, without regularisation. The lowest mean is best; of the candidates
whose mean is above it by at most the standard error of the paired difference, the simplest is chosen.

A candidate that the time limit cuts can win, if it is clearly ahead of all that came to their end, and is then
trained to its own end. It cannot lose: where it is behind it is not compared, and the choice says so.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.config.errors import ConfigError
from tdcd.config.resolve import Plan
from tdcd.core.losses import metrics
from tdcd.core.words import counted
from tdcd.training.train import Observer, Result, train_plan

CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"block": "linear", "encoding": "standard", "bins": None, "head": "sum"},
    "bins": {"block": "linear", "encoding": "bins", "head": "sum"},
    "ensemble": {"block": "ensemble", "encoding": "piecewise", "head": "sum"},
    "ensemble with head": {"block": "ensemble", "encoding": "piecewise", "head": "pairs"},
}
"""Keys of ``[model]`` by name, the simplest first."""

WITHOUT_DROPOUT = "ensemble without dropout"
NEARLY_ALL = 0.95
"""An R2 from which on what dropout adds to the scores is no longer small next to what the columns leave open: there, an
ensemble without it is one more candidate."""

TIME_LIMIT = 300.0
"""Seconds for all candidates together, by default."""

SHOWN = ("auc", "r2", "d2", "accuracy")
"""Metrics that are shown next to the loss: the first that there is."""

NO_HELD_OUT = "compares candidates on held-out samples, and none are held out: hold out a part of them, such as 0.15"

Floats = NDArray[np.float64]


class CandidateFigures(NamedTuple):
    """The figures of a candidate of a choice."""

    name: str
    loss: float | None
    """The mean loss of the held-out samples; None if there is none."""
    metric: str
    """What :attr:`score` is."""
    score: float | None
    """The metric of the held-out samples."""
    rounds: int
    seconds: float
    problem: str = ""
    """Why it was left out, or that the time limit cut it."""
    is_cut: bool = False
    """Whether the time limit cut it, or left it no time at all."""

    @property
    def in_words(self) -> str:
        """The candidate's figures in one line."""
        if self.loss is None:
            return f"{self.name}: {self.problem}"
        score = "" if self.score is None else f"{self.metric.upper()} {self.score:.4f}, "
        cut = f"; {self.problem}" if self.problem else ""
        took = f"{counted(self.rounds, 'round')}, {self.seconds:.1f} s"
        return f"{self.name}: held-out {score}loss {self.loss:.4f} ({took}{cut})"


@dataclass(frozen=True)
class Choice:
    """The model that was chosen, and what it was compared with."""

    name: str
    """Of the candidate."""
    keys: Mapping[str, Any]
    """Of ``[model]``, as :data:`CANDIDATES` has them."""
    trials: tuple[CandidateFigures, ...]
    rival: str | None
    """The best other candidate; None if there is no other."""
    margin: float
    """How much larger the rival's mean loss is; below zero where the simpler model was chosen."""
    standard_error: float
    """Of the margin, over the held-out samples."""
    result: Result | None = field(default=None, repr=False, compare=False)
    """The training of the chosen candidate, if the time limit did not cut it."""

    @property
    def in_words(self) -> str:
        """The choice and its margin, and what the time limit kept from being compared."""
        return " ".join([self._margin_in_words, *self._cuts_in_words()])

    def _cuts_in_words(self) -> Iterator[str]:
        cut = [trial.name for trial in self.trials if trial.is_cut]
        if self.name in cut:
            yield "The time limit cut it, so it is trained again, to its end."
        if others := [name for name in cut if name != self.name]:
            yield f"Not compared, for lack of time: {', '.join(others)}; a longer time limit may choose another model."

    @property
    def _margin_in_words(self) -> str:
        if self.rival is None:
            return f"Chosen: {self.name}; no other candidate could be compared."
        difference = f"{abs(self.margin):.4f} (standard error {self.standard_error:.4f})"
        if self.margin < 0:
            return (
                f"Chosen: {self.name}; the held-out loss of {self.rival} is lower by {difference}: "
                "not clearly, so the simpler model is taken."
            )
        return f"Chosen: {self.name}; its held-out loss is lower than that of {self.rival} by {difference}."


def choose(
    planned: Callable[[Mapping[str, Any]], Plan],
    time_limit: float = TIME_LIMIT,
    *,
    candidates: Mapping[str, Mapping[str, Any]] = CANDIDATES,
    observe: Observer = lambda progress: None,
    report: Callable[[str], None] = lambda sentence: None,
) -> Choice:
    """Train every candidate, and choose.

    Each candidate may take an equal part of what is left of the time; what it does not need goes to those after it.
    One that is cut wins if the model that it has then is clearly the best, and is not compared otherwise. Candidates
    that diverge, that the other settings do not allow, or that no time is left for, are reported and left out. Ctrl-C
    ends the comparison with the candidates so far. Without a cut, the same data and settings give the same choice;
    where the limit cuts, it depends on the machine.

    Args:
        planned: what is to be trained, with these keys of ``[model]`` in place of others.
        time_limit: seconds for all candidates. A candidate that has begun takes its first rounds whatever they take.
        candidates: their keys by name, the simplest first.
        observe: called with the progress of every training.
        report: called with a line about each candidate when it is done.

    Raises:
        ConfigError: no candidate goes with the other settings.
        ValueError: no samples are held out, or every candidate diverged.
    """
    if not time_limit > 0:
        raise ValueError(f"time_limit = {time_limit}: must be greater than 0")
    ends, refused = time.monotonic() + time_limit, None
    trials: list[CandidateFigures] = []
    losses: dict[str, Floats] = {}
    cut: set[str] = set()
    leader: tuple[str, Result | None] = ("", None)
    tried = dict(candidates)
    left = [*tried]
    while left or WITHOUT_DROPOUT not in tried:
        if not left:
            if "ensemble" not in losses or not _explain_nearly_all(trials):
                break
            tried[WITHOUT_DROPOUT] = {**tried["ensemble"], "dropout": 0.0}
            left.append(WITHOUT_DROPOUT)
        name = left.pop(0)
        keys, began = tried[name], time.monotonic()
        due = began + max(0.0, ends - began) / (1 + len(left))
        if losses and began >= ends:
            trials.append(
                _reported(CandidateFigures(name, None, "", None, 0, 0.0, "not tried: no time was left", True), report)
            )
            continue
        try:
            plan = planned(keys)
        except ConfigError as error:
            refused = refused or error
            trials.append(
                _reported(
                    CandidateFigures(name, None, "", None, 0, 0.0, f"not possible: {' '.join(str(error).split())}"),
                    report,
                )
            )
            continue
        if plan.federation.test_labels is None:
            raise ValueError(f"model = 'auto' {NO_HELD_OUT}")
        clock = _TimeLimit(due)
        result = train_plan(plan, observe=observe, should_stop=clock.is_over)
        is_cut = result.status == "interrupted"
        own = None if result.status == "diverged" else _held_out(result)
        trials.append(_reported(_trial(name, result, own, time.monotonic() - began), report))
        if own is not None:
            losses[name] = own
            cut |= {name} if is_cut else set()
            best = _best(_comparable(losses, cut))[0]
            if best != leader[0]:
                leader = (best, None if is_cut or best != name else result)
        if is_cut and not clock.has_rung:
            break
    if not losses:
        if refused is not None:
            raise refused
        raise ValueError("model = 'auto': every candidate diverged; look at the scale of the columns and labels")
    chosen, rival, margin, standard_error = _best(_comparable(losses, cut))
    return Choice(chosen, tried[chosen], tuple(trials), rival, margin, standard_error, leader[1])


def _explain_nearly_all(trials: Sequence[CandidateFigures]) -> bool:
    """Whether a candidate explains nearly all of the amounts."""
    return any(trial.metric == "r2" and (trial.score or 0.0) >= NEARLY_ALL for trial in trials)


class _TimeLimit:
    """A time limit that says whether it ended a training, and that never ends one before its first rounds."""

    def __init__(self, due: float) -> None:
        self._due, self._has_begun, self.has_rung = due, False, False

    def is_over(self) -> bool:
        self.has_rung = self._has_begun and time.monotonic() >= self._due
        self._has_begun = True
        return self.has_rung


def _reported(trial: CandidateFigures, report: Callable[[str], None]) -> CandidateFigures:
    report(trial.in_words)
    return trial


def _trial(name: str, result: Result, losses: Floats | None, seconds: float) -> CandidateFigures:
    if losses is None:
        return CandidateFigures(
            name, None, "", None, result.n_iter, seconds, f"left out: {result.reason or 'it diverged'}"
        )
    federation, objective = result.federation, result.simulation.objective
    labels: Any = federation.test_labels
    scores = objective.scores(_sums(result))
    figures = metrics(objective.loss, scores, labels, federation.label_scale, objective.label_epsilon)
    metric = next((name for name in SHOWN if figures.get(name) is not None), "")
    is_cut = result.status == "interrupted"
    rounds, cut = (result.round, "cut by the time limit") if is_cut else (result.n_iter, "")
    return CandidateFigures(name, float(losses.mean()), metric, figures.get(metric), rounds, seconds, cut, is_cut)


def _held_out(result: Result) -> Floats | None:
    """``[m]``: the loss of each held-out sample, weights with mean 1 included; None if they are not finite."""
    federation, objective = result.federation, result.simulation.objective
    labels: Any = np.asarray(federation.test_labels, objective.label_dtype("float64"))
    losses = np.asarray(objective.losses(_sums(result), labels), np.float64)
    weights = federation.test_weights
    if weights is not None:
        losses = losses * np.asarray(weights, np.float64) / np.mean(weights)
    return losses if np.isfinite(losses).all() else None


def _sums(result: Result) -> Any:
    """``[m, W]``: the sums of the silos' phi for the held-out samples."""
    tables: Any = [silo.test_features for silo in result.federation.silos]
    return np.asarray(result.simulation.scores([*result.blocks.values()], tables), np.float64)


def _comparable(losses: Mapping[str, Floats], cut: Collection[str]) -> Mapping[str, Floats]:
    """The candidates that came to their end, and those that were cut and are clearly ahead of all of these.

    >>> ahead, end, behind = np.array([0.1, 0.3]), np.array([0.5, 0.9]), np.array([0.6, 0.9])
    >>> [*_comparable({"linear": end, "bins": behind, "ensemble": ahead}, {"bins", "ensemble"})]
    ['linear', 'ensemble']
    """
    ended = [losses[name] for name in losses if name not in cut]
    return {
        name: own
        for name, own in losses.items()
        if name not in cut or all((other - own).mean() > _standard_error(other - own) for other in ended)
    }


def _standard_error(differences: Floats) -> float:
    return float(differences.std() / math.sqrt(len(differences)))


def _best(losses: Mapping[str, Floats]) -> tuple[str, str | None, float, float]:
    """The chosen candidate, the best other one, by how much that is worse, and the standard error of it.

    >>> low, high = np.array([0.1, 0.3, 0.2]), np.array([0.5, 0.9, 0.6])
    >>> _best({"linear": high, "ensemble": low})[:2]
    ('ensemble', 'linear')
    >>> _best({"linear": np.array([0.1, 0.31, 0.19]), "ensemble": low})[:2]
    ('linear', 'ensemble')
    """
    names: Sequence[str] = [*losses]
    means = {name: float(own.mean()) for name, own in losses.items()}
    lowest = min(names, key=means.__getitem__)

    def error(name: str, other: str) -> float:
        return _standard_error(losses[name] - losses[other])

    chosen = next(name for name in names if means[name] - means[lowest] <= error(name, lowest))
    others = [name for name in names if name != chosen]
    if not others:
        return chosen, None, 0.0, 0.0
    rival = min(others, key=means.__getitem__)
    return chosen, rival, means[rival] - means[chosen], error(rival, chosen)
