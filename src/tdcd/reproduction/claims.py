"""The claims: sentences and the comparisons that decide them, from the table ``claims.toml``.

A comparison comes down to numbers that are to be above zero, seed by seed. All verdicts are taken alike: a claim holds
if the t interval of every such number is above zero, it does not hold if one is below, and else these runs do not
decide it. Thresholds are part of the table.

What is measured of an experiment is a number for every curve and seed, or one for all its curves together; claims name
these in their table. A run that diverged has no number: it counts as infinite.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.reproduction.experiment import AS_PRINTED
from tdcd.reproduction.results import CurveResult, ExperimentResult, Limit, Results, SeedValues
from tdcd.reproduction.statistics import (
    CONFIDENCE,
    Interval,
    errors,
    final,
    reached,
    rounds_by_curve,
    settled,
    slope,
    spread,
    t_interval,
)
from tdcd.theory.smoothness import Constants
from tdcd.theory.step_size import IN_STEP
from tdcd.theory.theorem import noise_terms

NEAR = 0.01
"""Of the gap before training: a loss so near to the exact solution shows how fast runs get there."""


@dataclass(frozen=True)
class ExperimentMeasure:
    """A quantity of an experiment, and how it is written."""

    words: str
    """What it is; with ``{}`` for the number or numbers."""
    form: str
    compute: Callable[[ExperimentResult], SeedValues]
    """``[curves, seeds]``, or ``[1, seeds]`` for all curves together; a single column where no seed matters."""

    def in_words(self, result: ExperimentResult) -> str:
        """The mean over seeds: for every curve, or for all of them with its interval."""
        with np.errstate(invalid="ignore", divide="ignore"):
            values = self.compute(result)
        if len(values) == 1:
            mean, *ends = (f"{each:{self.form}}" for each in t_interval(values[0]))
            interval = f" ({' to '.join(ends)})" if ends[0] != ends[1] else ""
            known = np.isfinite(values).all()
            return self.words.format(f"{mean}{interval}" if known else "no number, since a curve diverged,")
        numbers = [self._number(row, curve.diverged) for curve, row in zip(result.curves, values, strict=True)]
        if len({*numbers}) == 1:
            return self.words.format(numbers[0])
        each = [f"{curve.label}: {number}" for curve, number in zip(result.curves, numbers, strict=True)]
        return self.words.format(", ".join(each))

    def _number(self, values: SeedValues, diverged: NDArray[np.bool_]) -> str:
        mean = float(np.mean(values))
        if np.isfinite(mean):
            return f"{mean:{self.form}}"
        if not diverged.any():
            return "never"
        return "diverged" if diverged.all() else f"diverged with {int(diverged.sum())} of {len(diverged)} seeds"


def _each(compute: Callable[[CurveResult], SeedValues]) -> Callable[[ExperimentResult], SeedValues]:
    return lambda result: np.stack([compute(curve) for curve in result.curves])


def _of_all(compute: Callable[[ExperimentResult], SeedValues | float]) -> Callable[[ExperimentResult], SeedValues]:
    return lambda result: np.atleast_2d(np.asarray(compute(result), np.float64))


def _exactly(compute: Callable[[CurveResult], float]) -> Callable[[ExperimentResult], SeedValues]:
    return lambda result: np.array([[compute(curve)] for curve in result.curves])


def _near(result: ExperimentResult) -> SeedValues:
    """``[seeds]``: a loss near to the exact solution."""
    assert result.optimum is not None
    level: SeedValues = result.optimum + NEAR * (result.curves[0].losses[:, 0] - result.optimum)
    return level


def _to_first_end(result: ExperimentResult, curve: CurveResult, over: SeedValues | None) -> SeedValues:
    """``[seeds]``: what a curve takes to the loss at which the first one ends."""
    assert over is not None
    return reached(curve, final(result.curves[0]), over)


def excess(curve: CurveResult, plain: CurveResult) -> SeedValues:
    """``[seeds]``: how far a curve lies above another where that ends, as a fraction of it."""
    as_long = curve.rounds <= plain.rounds[-1]
    shortened = replace(curve, rounds=curve.rounds[as_long], losses=curve.losses[:, as_long])
    above: SeedValues = final(shortened) / final(plain) - 1
    return above


def _per_step(curve: CurveResult) -> tuple[float, float]:
    """MB per local step inside the silos and between hubs."""
    hubs = float(curve.hub_megabytes[-1])
    return (float(curve.megabytes[-1]) - hubs) / curve.steps[-1], hubs / curve.steps[-1]


def _saving(result: ExperimentResult) -> float:
    return sum(_per_step(result.curves[0])) / sum(_per_step(result.curves[-1]))


def _saved_inside(result: ExperimentResult) -> float:
    pairs = zip(_per_step(result.curves[0]), _per_step(result.curves[-1]), strict=True)
    inside, between = (before - after for before, after in pairs)
    return inside / (inside + between)


def _hub_range(result: ExperimentResult) -> float:
    between = np.array([_per_step(curve)[1] for curve in result.curves])
    return float(np.ptp(between) / between.max())


def _phi(curve: CurveResult) -> float:
    """MB that a hub sends in a round."""
    return float(curve.hub_megabytes[-1]) / int(curve.rounds[-1]) / max(curve.hub_messages, 1)


def _converged_errors(result: ExperimentResult) -> tuple[SeedValues, SeedValues]:
    """``[curves, seeds]`` errors of the curves that no seed diverged with, and the quantity that is swept."""
    of_curves, over = errors(result), np.array([swept(curve) for curve in result.curves])
    converged = np.isfinite(of_curves).all(axis=1)
    return of_curves[converged], over[converged]


def swept(curve: CurveResult) -> float:
    """N, Q or K, from the label."""
    return float(curve.label.split(",")[0].split()[-1])


def _error_range(result: ExperimentResult) -> SeedValues:
    """As a multiple of the smallest error, since experiments differ in their minibatches; B must not vary."""
    converged, _ = _converged_errors(replace(result, curves=tuple(c for c in result.curves if "," not in c.label)))
    wide: SeedValues = np.ptp(converged, axis=0) / converged.min(axis=0)
    return wide


def _power(result: ExperimentResult) -> SeedValues:
    converged, over = _converged_errors(result)
    return slope(np.log(converged), np.log(over))


def _quarters(result: ExperimentResult) -> tuple[SeedValues, SeedValues]:
    """``[seeds]``: the first curve's gap to the exact solution in the third quarter of the run and in the last."""
    assert result.optimum is not None
    losses = result.curves[0].losses
    count = losses.shape[1] // 4
    third, last = (losses[:, part].mean(axis=1) for part in (slice(-2 * count, -count), slice(-count, None)))
    return third - result.optimum, last - result.optimum


def _closed(result: ExperimentResult) -> SeedValues:
    assert result.optimum is not None
    best = min(result.curves, key=lambda curve: float(settled(curve).mean()))
    start = best.losses[:, 0]
    part: SeedValues = (start - settled(best)) / (start - result.optimum)
    return part


def _bound(silos: float, local_steps: float) -> tuple[float, float]:
    """The terms of Theorem 1 that time does not make up for, with all constants 1."""
    ones = Constants(1.0, (1.0,), "exact", "")
    return noise_terms(ones, 1.0, int(local_steps), int(silos), 1.0, IN_STEP)


def _bound_power(of: Callable[[float], float]) -> Callable[[ExperimentResult], float]:
    """With which power a term of the bound grows over the range that is swept."""

    def power(result: ExperimentResult) -> float:
        least, most = swept(result.curves[0]), swept(result.curves[-1])
        return float(np.log(of(most) / of(least)) / np.log(most / least))

    return power


def _room(of: Callable[[Limit], float]) -> Callable[[ExperimentResult], float]:
    return lambda result: min(limit.stable / of(limit) for limit in result.limits)


def _metric(curve: CurveResult) -> SeedValues:
    assert curve.metric is not None
    last: SeedValues = curve.metric[:, -1]
    return last


MEASURES: Mapping[str, ExperimentMeasure] = {
    "rounds": ExperimentMeasure("{} rounds to the loss at which the slowest curve ends", ".1f", rounds_by_curve),
    "end": ExperimentMeasure("final loss {}", ".5f", _each(final)),
    "error": ExperimentMeasure("gap that stays {}", ".2e", errors),
    "near rounds": ExperimentMeasure(
        "{} rounds until 99 % of the way is done",
        ".1f",
        lambda result: np.stack([reached(curve, _near(result)) for curve in result.curves]),
    ),
    "near steps": ExperimentMeasure(
        "{} local steps until 99 % of the way is done",
        ",.0f",
        lambda result: np.stack([reached(curve, _near(result), curve.steps) for curve in result.curves]),
    ),
    "megabytes": ExperimentMeasure(
        "{} MB to the loss at which the first ends",
        ",.0f",
        lambda result: np.stack([_to_first_end(result, curve, curve.megabytes) for curve in result.curves]),
    ),
    "accuracy": ExperimentMeasure("accuracy {}", ".2%", _each(_metric)),
    "spread": ExperimentMeasure("the curves end within {} of the loss's fall", "z.2%", _of_all(spread)),
    "range of the error": ExperimentMeasure("the gap that stays varies by {}", "z.0%", _of_all(_error_range)),
    "power of the error": ExperimentMeasure("the gap that stays grows with the power {}", ".2f", _of_all(_power)),
    "third quarter": ExperimentMeasure(
        "gap {} in the third quarter of the run", ".2e", _of_all(lambda r: _quarters(r)[0])
    ),
    "last quarter": ExperimentMeasure("{} in the last", ".2e", _of_all(lambda r: _quarters(r)[1])),
    "part of the way": ExperimentMeasure("{} of the way to the exact solution", ".2%", _of_all(_closed)),
    "saving": ExperimentMeasure("{} times fewer bytes per local step with the largest Q", ".3g", _of_all(_saving)),
    "saved inside": ExperimentMeasure("{} of the saved bytes are inside the silos", ".1%", _of_all(_saved_inside)),
    "hub bytes": ExperimentMeasure(
        "{} kB between hubs per local step", ".4g", _exactly(lambda curve: 1e3 * _per_step(curve)[1])
    ),
    "range of hub bytes": ExperimentMeasure(
        "bytes between hubs per local step differ by {} over Q", ".2%", _of_all(_hub_range)
    ),
    "messages": ExperimentMeasure(
        "{} messages per local step", ".3g", _exactly(lambda c: c.hub_messages / c.local_steps)
    ),
    "phi": ExperimentMeasure("{} MB of phi that a hub sends in a round", ".3g", _exactly(_phi)),
    "model": ExperimentMeasure("{} MB of model", ".3g", _exactly(lambda curve: 4e-6 * curve.parameters)),
    "limit of the bound": ExperimentMeasure(
        "the bound's terms without T: {} with all constants 1",
        ".4g",
        _of_all(lambda result: sum(_bound(4, swept(result.curves[0])))),
    ),
    "power of N in the bound": ExperimentMeasure(
        "the bound's third term grows with the power {}", ".3g", _of_all(_bound_power(lambda n: _bound(n, 1)[1]))
    ),
    "power of Q in the bound": ExperimentMeasure(
        "the bound's third term grows with the power {}", ".3g", _of_all(_bound_power(lambda q: _bound(1, q)[1]))
    ),
    "room as printed": ExperimentMeasure(
        "the largest stable step size is down to {} times the largest that the printed condition admits",
        ".3g",
        _of_all(_room(lambda limit: limit.printed)),
    ),
    "room with N": ExperimentMeasure(
        "the largest stable step size is at least {} times the largest that the condition with N admits",
        ".3g",
        _of_all(_room(lambda limit: limit.proof)),
    ),
    "seconds": ExperimentMeasure(
        "{} s to the loss at which the run in step ends",
        ".3g",
        lambda result: np.stack([_to_first_end(result, curve, curve.seconds) for curve in result.curves]),
    ),
    "times sooner": ExperimentMeasure(
        "{} times sooner",
        ".1f",
        _of_all(
            lambda result: (
                _to_first_end(result, result.curves[0], result.curves[0].seconds)
                / _to_first_end(result, result.curves[-1], result.curves[-1].seconds)
            )
        ),
    ),
    "excess": ExperimentMeasure(
        "loss against the first: {}",
        "+z.2%",
        lambda result: np.stack([excess(curve, result.curves[0]) for curve in result.curves]),
    ),
    "hub share": ExperimentMeasure(
        "{} of the first one's bytes between hubs",
        ".3f",
        lambda result: np.array([[c.hub_megabytes[-1] / result.curves[0].hub_megabytes[-1]] for c in result.curves]),
    ),
}
"""By the names that claims give them."""


Verdict = Literal["holds", "does not hold", "not decided at this size", "not judged on stand-in data"]
STRICTER = 0.99
"""A verdict that an interval of this confidence would not give holds by a hair."""
SAME = 1e-9
"""Formulas that differ by less are the same."""


@dataclass(frozen=True)
class Quantity:
    """Something to be above zero, seed by seed."""

    what: str
    values: SeedValues
    """``[seeds]``; a single number where nothing depends on the seed, such as bytes."""

    @property
    def interval(self) -> Interval:
        """The confidence interval of the mean over seeds."""
        return t_interval(self.values)


@dataclass(frozen=True)
class Claim:
    """A sentence and what we found."""

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
    """The section of the paper; empty for a claim of ours."""
    about: Literal["runs", "bound"] = "runs"
    """What the sentence speaks of: measured runs, or the bound, which is a formula."""
    mark: str = ""
    """Says so if a stand-in for the data was used."""

    @property
    def verdict(self) -> Verdict:
        """Whether every quantity is above zero."""
        return self.at(CONFIDENCE)

    def at(self, confidence: float) -> Verdict:
        """The verdict by intervals of another confidence."""
        if self.mark:
            return "not judged on stand-in data"
        intervals = [t_interval(quantity.values, confidence) for quantity in self.quantities]
        if any(interval.high < 0 for interval in intervals):
            return "does not hold"
        return "holds" if all(interval.low > 0 for interval in intervals) else "not decided at this size"

    @property
    def by_a_hair(self) -> bool:
        """Whether a 99 % interval would decide otherwise."""
        return self.at(STRICTER) != self.verdict

    @property
    def seeds_needed(self) -> int:
        """How many seeds would decide it if mean and spread stayed; 0 if it is decided, or no number would."""
        needed = [0]
        for quantity in self.quantities if self.verdict == "not decided at this size" else ():
            mean, low, high = quantity.interval
            if low <= 0 <= high and mean and np.isfinite(high):
                needed.append(math.ceil(len(quantity.values) * ((high - low) / 2 / mean) ** 2))
        return max(needed)

    @property
    def words(self) -> str:
        """The verdict, with its qualification."""
        if seeds := self.seeds_needed:
            return f"{self.verdict}: about {float(f'{seeds:.1g}'):,.0f} seeds would be enough"
        of = "of the bound" if self.about == "bound" and not self.mark else ""
        hair = "by a hair: 99 % intervals would not decide it" if self.by_a_hair else ""
        return ", ".join(part for part in (self.verdict, of, hair) if part)

    @property
    def as_printed(self) -> bool:
        """Whether it is about the objective with lambda = 1."""
        return self.figure in AS_PRINTED

    def as_json(self) -> dict[str, Any]:
        """The claim as written to ``results.json``."""
        quantities = [
            {"what": each.what, "by_seed": each.values, **each.interval._asdict()} for each in self.quantities
        ]
        return {**asdict(self), "quantities": quantities, "verdict": self.verdict, "by_a_hair": self.by_a_hair}


def judge(results: Results) -> list[Claim]:
    """The verdict on every claim whose experiments are in ``results``, in the order of the table."""
    return [entry.judged(results) for entry in table() if all(name in results for name in entry.needs)]


def differences() -> list[tuple[str, str]]:
    """What the paper leaves open, and what we assumed."""
    return [(entry["open"], entry["assumed"]) for entry in _read()["differences"]]


def summed_up(claims: Sequence[Claim]) -> str:
    """How many claims hold, in words."""
    return f"{sum(claim.verdict == 'holds' for claim in claims)} of {len(claims)} hold"


def comparisons_in_words(claims: Sequence[Claim]) -> str:
    """How many comparisons verdicts rest on, and which verdicts would not stand if all were corrected for that."""
    sizes = [len(quantity.values) for claim in claims for quantity in claim.quantities]
    spread = sum(size > 1 for size in sizes)
    if not spread:
        return f"The {len(claims)} verdicts rest on {len(sizes)} comparisons, none of which depends on seeds."
    corrected = 1 - (1 - CONFIDENCE) / spread
    fallen = [claim.key for claim in claims if claim.at(corrected) != claim.verdict]
    which = f"all but {len(fallen)} ({', '.join(fallen)}) would" if fallen else "all would"
    return (
        f"The {len(claims)} verdicts rest on {len(sizes)} comparisons, of which {spread} have a spread over seeds; "
        f"each is taken by itself, at 95 %. With intervals wide enough for all {spread} together (Bonferroni), {which} "
        "come out the same."
    )


def marked(text: str, mark: str) -> str:
    """A name or caption with its mark, if there is one."""
    return f"{text} · {mark}" if mark else text


@dataclass(frozen=True)
class ClaimComparison:
    """An entry of ``compare``: a measure of an experiment, and what it is compared with."""

    kind: str
    measure: str
    of: str
    """The experiment."""
    says: str = ""
    """The comparison in words."""
    value: float = 0.0
    curve: str = ""
    """Which curve: a label, or one of :data:`CURVES`; all of them, or all together, if empty."""
    than: str = ""
    """The curve, or the experiment, on the other side."""
    times: float = 1.0
    """What the other side is multiplied by."""
    plus: float = 0.0
    """What is added to this side."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The experiments that it compares."""
        return (self.of, self.than) if self.kind == "wider" else (self.of,)

    def quantities(self, results: Results) -> list[Quantity]:
        """What is to be above zero."""
        # A loss that no curve reaches, or a run that diverges, leaves differences without a value.
        with np.errstate(invalid="ignore", divide="ignore"):
            return list(_KINDS[self.kind](self, results))


CURVES: Mapping[str, Callable[[ExperimentResult], int]] = {
    "first": lambda result: 0,
    "second": lambda result: 1,
    "last": lambda result: len(result.curves) - 1,
    "last but one": lambda result: len(result.curves) - 2,
    "last that converges": lambda result: max(at for at, c in enumerate(result.curves) if not c.diverged.any()),
    "cheapest": lambda result: 1 + int(np.argmin(MEASURES["megabytes"].compute(result)[1:].mean(axis=1))),
}
"""Curves that are not named by their labels."""


def _place(result: ExperimentResult, curve: str) -> int:
    labels = [each.label for each in result.curves]
    return CURVES[curve](result) if curve in CURVES else labels.index(curve)


def _values(comparison: ClaimComparison, results: Results) -> tuple[ExperimentResult, SeedValues]:
    result = results[comparison.of]
    return result, MEASURES[comparison.measure].compute(result)


def _falls(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """Every curve has less than the one before."""
    result, values = _values(comparison, results)
    for place, (a, b) in enumerate(zip(result.curves[:-1], result.curves[1:], strict=True)):
        yield Quantity(f"{comparison.measure}: {a.label} - {b.label}", values[place] - values[place + 1])


def _rises(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """The line through all curves rises, in their order."""
    _, values = _values(comparison, results)
    trend = slope(values, np.arange(len(values), dtype=float))
    yield Quantity(f"{comparison.measure}: slope from curve to curve", trend)


def _more(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """One curve has more than another."""
    result, values = _values(comparison, results)
    this, other = (_place(result, curve) for curve in (comparison.curve, comparison.than))
    times = "" if comparison.times == 1 else f"{comparison.times:g} x "
    plus = f" + {comparison.plus:g}" if comparison.plus else ""
    yield Quantity(
        f"{comparison.measure}: {result.curves[this].label} - {times}{result.curves[other].label}{plus}",
        values[this] - comparison.times * values[other] + comparison.plus,
    )


def _apart(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """Two curves differ, whichever way."""
    (difference,) = _more(comparison, results)
    direction = -1.0 if difference.interval.mean < 0 else 1.0
    yield Quantity(f"{difference.what}, whichever way", direction * difference.values)


def _above(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """A number has more than a fixed value."""
    for what, values in _against(comparison, results):
        yield Quantity(f"{what} - {comparison.value:g}", values - comparison.value)


def _below(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """A number has less than a fixed value."""
    for what, values in _against(comparison, results):
        yield Quantity(f"{comparison.value:g} - {what}", comparison.value - values)


def _equals(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """A formula has a value."""
    for what, values in _against(comparison, results):
        yield Quantity(f"{SAME:g} - |{what} - {comparison.value:g}|", SAME - np.abs(values - comparison.value))


def _against(comparison: ClaimComparison, results: Results) -> Iterator[tuple[str, SeedValues]]:
    result, values = _values(comparison, results)
    if len(values) == 1 and not comparison.curve:
        yield comparison.measure, values[0]
        return
    places = [_place(result, comparison.curve)] if comparison.curve else range(1, len(values))
    for place in places:
        yield f"{comparison.measure} of {result.curves[place].label}", values[place]


def _wider(comparison: ClaimComparison, results: Results) -> Iterator[Quantity]:
    """A number of one experiment is above that of another."""
    this, other = (MEASURES[comparison.measure].compute(results[name])[0] for name in comparison.needs)
    yield Quantity(f"{comparison.measure}: {comparison.of} - {comparison.than}", this - other)


_KINDS: Mapping[str, Callable[[ClaimComparison, Results], Iterator[Quantity]]] = {
    "falls": _falls,
    "rises": _rises,
    "more": _more,
    "apart": _apart,
    "above": _above,
    "below": _below,
    "equals": _equals,
    "wider": _wider,
}


@dataclass(frozen=True)
class ClaimEntry:
    """An entry of the table, on one figure."""

    key: str
    figure: str
    sentence: str
    compare: tuple[ClaimComparison, ...]
    shows: tuple[tuple[str, str], ...] = ()
    """Measures and experiments that are shown next to those that are compared."""
    section: str = ""
    about: Literal["runs", "bound"] = "runs"

    @property
    def needs(self) -> tuple[str, ...]:
        """The experiments that are compared or shown."""
        compared = [name for comparison in self.compare for name in comparison.needs]
        return tuple(dict.fromkeys([*compared, *(of for _, of in self.shows)]))

    def judged(self, results: Results) -> Claim:
        """The claim, by these results."""
        compared = [(each, each.quantities(results)) for each in self.compare]
        quantities = [
            quantity if each.of == self.figure else replace(quantity, what=f"{each.of}, {quantity.what}")
            for each, quantities in compared
            for quantity in quantities
        ]
        used = [results[name] for name in self.needs]
        return Claim(
            self.key,
            self.figure,
            self.sentence,
            "; ".join(dict.fromkeys(comparison.says for comparison in self.compare if comparison.says)),
            "; ".join(self._sentences(results)),
            tuple(quantities),
            self.section,
            self.about,
            "; ".join(dict.fromkeys(result.mark for result in used if result.mark)),
        )

    def _sentences(self, results: Results) -> Iterator[str]:
        """Every measure that is compared or shown, and the differences between curves that decide."""
        compared = [(each.measure, name) for each in self.compare for name in each.needs]
        for measure, name in dict.fromkeys([*compared, *self.shows]):
            sentence = MEASURES[measure].in_words(results[name])
            yield f"{name}: {sentence}" if len(self.needs) > 1 else sentence
        for each in self.compare:
            if each.kind in ("more", "apart", "rises"):
                yield from (f"{quantity.what} is {quantity.interval}" for quantity in each.quantities(results))


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(files("tdcd.reproduction").joinpath("claims.toml").read_text(encoding="utf-8"))


def table() -> tuple[ClaimEntry, ...]:
    """All entries of ``claims.toml``, those on the objective as it is printed after the others."""
    plain, printed = [], []
    for entry in _read()["claims"]:
        for figure in entry["figures"]:
            plain.append(_entry(entry, figure))
            if entry.get("printed"):
                printed.append(_with_lambda_one(plain[-1]))
    return (*plain, *printed)


def _entry(entry: Mapping[str, Any], figure: str) -> ClaimEntry:
    compare = tuple(ClaimComparison(**{"of": figure, **comparison}) for comparison in entry["compare"])
    key = entry["key"] if "/" in entry["key"] else f"{figure}/{entry['key']}"
    shows = tuple((shown["measure"], shown.get("of", figure)) for shown in entry.get("shows", ()))
    section, about = entry.get("section", ""), entry.get("about", "runs")
    return ClaimEntry(key, figure, entry["sentence"], compare, shows, section, about)


def _with_lambda_one(entry: ClaimEntry) -> ClaimEntry:
    """The same on the figures with lambda = 1, as far as there are any."""

    def named(name: str) -> str:
        return f"{name}-lambda1"

    compare = tuple(
        replace(each, of=named(each.of), than=named(each.than) if each.kind == "wider" else each.than)
        for each in entry.compare
        if all(named(name) in AS_PRINTED for name in each.needs)
    )
    shows = tuple((measure, named(of)) for measure, of in entry.shows if named(of) in AS_PRINTED)
    return ClaimEntry(
        entry.key.replace(entry.figure, named(entry.figure)),
        named(entry.figure),
        entry.sentence,
        compare,
        shows,
        entry.section,
        entry.about,
    )
