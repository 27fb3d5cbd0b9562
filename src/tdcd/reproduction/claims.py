"""The claims: sentences and the comparisons that decide them, from the table ``claims.toml``.

A comparison comes down to numbers that are to be above zero, seed by seed. All verdicts are taken alike: a claim holds
if the t interval of every such number is above zero, it does not hold if one is below, and else these runs do not
decide it. Thresholds are part of the table.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from tdcd.reproduction.experiment import AS_PRINTED
from tdcd.reproduction.measures import MEASURES
from tdcd.reproduction.results import ExperimentResult, Results, SeedValues
from tdcd.reproduction.statistics import CONFIDENCE, Interval, slope, t_interval

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
    (found,) = _more(comparison, results)
    direction = -1.0 if found.interval.mean < 0 else 1.0
    yield Quantity(f"{found.what}, whichever way", direction * found.values)


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
            for each, found in compared
            for quantity in found
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
                yield from (f"{found.what} is {found.interval}" for found in each.quantities(results))


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
