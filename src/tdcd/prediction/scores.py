"""The scores of new samples: each silo scores its columns, and the scores are summed. A silo may be missing."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.combine import SUM, Combine
from tdcd.core.words import are, counted
from tdcd.federation.missing_rows import patterns_in
from tdcd.tables.errors import SHOWN, TableError, caution
from tdcd.tables.rows import written_otherwise

if TYPE_CHECKING:
    from tdcd.prediction.model import Model


AS_TRAINED = "write them alike, since the model was trained with data.ids = 'exact'"
"""What to do about ids that are written in different ways; the model knows whether that matters."""


class SiloScores(NamedTuple):
    """What one silo's columns add to the scores of some samples."""

    ids: Sequence[str]
    """``[n]``: each once."""
    phi: NDArray[Any]
    """``[n, C]``."""


def by_place(parts: Mapping[str, SiloScores]) -> NDArray[Any]:
    """``[n, C]``: the sum over the silos, whose rows are about the same samples in the same order."""
    counts = {name: len(part.phi) for name, part in parts.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' has {counted(count, 'row')}" for name, count in counts.items())
        raise ValueError(f"without ids, all tables must have the same rows in the same order: {listed}")
    first, *others = (part.phi for part in parts.values())
    return sum(others, start=first)


def by_id(parts: Mapping[str, SiloScores]) -> NDArray[Any]:
    """``[n, C]``: the sum over the silos by id, in the order of the first silo's."""
    (first, start), *others = parts.items()
    total = start.phi.copy()
    for name, part in others:
        places = {sample: place for place, sample in enumerate(part.ids)}
        lacking = [(sample, name) for sample in start.ids if sample not in places]
        lacking += [(sample, first) for sample in {*places} - {*start.ids}]
        if lacking:
            sample, silo = lacking[0]
            hint = written_otherwise({first: start.ids, name: part.ids}, AS_TRAINED)
            raise ValueError(
                f"{counted(len(lacking), 'id')} {are(len(lacking))} not in all tables: silo '{silo}' lacks {sample!r}; "
                + (hint[0] if hint else "add what is missing or leave it out")
            )
        total += part.phi[[places[sample] for sample in start.ids]]
    return total


class StandIns(NamedTuple):
    """What takes the place of a silo's phi where it is missing; of a run without ``subsets.json``, nothing does."""

    values: Mapping[str, Sequence[float]] = {}
    """``[C]`` by silo: with silo dropout the model's intercept or zeros, otherwise the mean over the training rows."""
    silo_dropout: float = 0.0
    """With which ``train.silo_dropout`` the run was trained."""
    knows_absence: bool = False
    """Whether it was trained on samples that some silos lack (``data.samples = "all"``)."""
    trained_without: Mapping[str, Sequence[str]] = {}
    """If it was: by silo, the silos that it was trained to make up for."""
    means: Sequence[Mapping[str, Any]] = ()
    """If it was, see :func:`tdcd.prediction.subsets.means_by_pattern`: what takes the place of any other silo."""

    @classmethod
    def of_absence(cls, recorded: Mapping[str, Any]) -> Self:
        """Those of a model that knows absence, from what ``subsets.json`` has."""
        return cls(
            values=recorded.get("stand_in", {}),
            silo_dropout=recorded.get("silo_dropout", 0.0),
            knows_absence=True,
            trained_without=recorded.get("trained_without", {}),
            means=recorded.get("means", ()),
        )

    def of(self, silo: str, dtype: Any, speaking: Collection[str] = ()) -> NDArray[Any]:
        """``[C]``, or a single zero, for samples that only the silos ``speaking`` have."""
        if not self.knows_absence or self.silo_dropout:
            return np.asarray(self.values.get(silo, [0.0]), dtype)
        if self.is_trained(silo, speaking):
            return np.zeros(1, dtype)
        # Of samples like these, if training had any.
        known = [mean for mean in self.means if {*speaking} <= {*mean["silos"]}] or self.means
        total = sum(mean["samples"] for mean in known)
        parts = [np.multiply(mean["mean_phi"].get(silo, [0.0]), mean["samples"] / total) for mean in known]
        return np.asarray(sum(parts, start=np.zeros(1)), dtype)

    def is_trained(self, silo: str, speaking: Collection[str]) -> bool:
        """Whether one of the silos ``speaking`` was trained to make up for a silo."""
        return any(silo in self.trained_without.get(other, ()) for other in speaking)

    def warning(self, silo: str, replaced: int = 0) -> str:
        """What there is to say of predictions without a silo; nothing if the model was trained for them.

        Args:
            replaced: of a model that knows absence: for how many samples none was trained to make up for the silo.
        """
        if self.silo_dropout or (self.knows_absence and not replaced):
            return ""
        has_mean = silo in self.values or any(silo in mean["mean_phi"] for mean in self.means)
        effect = "its phi is replaced by its mean over the training rows" if has_mean else "it adds nothing"
        if self.knows_absence:
            samples = f"{counted(replaced, 'id')}, which no silo has that was trained to stand in for it"
            return f"without silo '{silo}', {effect} for {samples}: these predictions may be far off"
        return f"without silo '{silo}', {effect}: the model was trained without train.silo_dropout, and may be far off"


def check_without(silos: Sequence[str], without: Collection[str], given: Collection[str]) -> None:
    """Refuse to go without a silo that there is not, that has a table, or without all of them."""
    for silo in without:
        if silo not in silos:
            raise ValueError(f"without '{silo}': there is no such silo; there are {', '.join(silos)}")
        if silo in given:
            raise ValueError(f"without '{silo}': there is a table of it; leave one of the two out")
    if set(without) >= set(silos):
        raise ValueError(f"without {', '.join(without)}: that is every silo, and nothing is left to predict from")


class Predictions(NamedTuple):
    """The scores of samples, in the order of the rows that they are about."""

    ids: Sequence[str]
    """``[n]``."""
    scores: NDArray[Any]
    """``[n, C]``: the silos' phi summed."""
    missing: Sequence[Sequence[str]]
    """``[n]``: the silos that lack each sample."""
    warnings: Mapping[str, str] = {}
    """By silo that samples lack: what there is to say of it, if anything."""


def no_scores(model: "Model") -> SiloScores:
    """The scores of a silo that has none of the samples."""
    return SiloScores((), np.zeros((0, model.phi_width), model.dtype))


def combine(
    parts: Mapping[str, SiloScores],
    allow_missing: bool = False,
    *,
    common_only: bool = False,
    without: Collection[str] = (),
    stand_ins: StandIns = StandIns(),  # noqa: B008  (it cannot change)
    in_order_of: str | None = None,
    head: Combine = SUM,
) -> Predictions:
    """Sum the silos' scores by id, silo after silo.

    Args:
        parts: by silo.
        allow_missing: score an id that a silo lacks without that silo's part; otherwise it is an error.
        common_only: leave such ids out instead.
        without: silos that lack all ids, and may.
        stand_ins: what takes the place of the part of a silo that lacks an id.
        in_order_of: the silo whose rows come first, as they are in its table; by default the first. Ids that it lacks
            follow, as the next silos have them.
        head: what makes scores of the sums.
    """
    if common_only:
        parts = {**parts, **in_common({silo: part for silo, part in parts.items() if silo not in without})}
    leading = [] if in_order_of is None else [parts[in_order_of]]
    ids = list(dict.fromkeys(sample for part in (*leading, *parts.values()) for sample in part.ids))
    places = {sample: place for place, sample in enumerate(ids)}
    first = next(iter(parts.values())).phi
    scores = np.zeros((len(ids), first.shape[1]), first.dtype)
    present = np.zeros((len(parts), len(ids)), bool)
    for own, part in zip(present, parts.values(), strict=True):
        own[[places[sample] for sample in part.ids]] = True
    missing: list[list[str]] = [[] for _ in ids]
    warnings: dict[str, str] = {}
    by_pattern = patterns_in(present, [*parts])
    for silo, part in parts.items():
        scores[[places[sample] for sample in part.ids]] += part.phi
        lacking, replaced = 0, 0
        for speaking, rows in by_pattern.items():
            if silo not in speaking:
                scores[rows] += stand_ins.of(silo, scores.dtype, speaking)
                lacking += len(rows)
                replaced += 0 if stand_ins.is_trained(silo, speaking) else len(rows)
                for place in rows:
                    missing[place].append(silo)
        if lacking and (warning := stand_ins.warning(silo, replaced)):
            warnings[silo] = warning
    refused = () if allow_missing else [silo for silo in parts if silo not in without]
    problems = [_lacks(silo, ids, missing) for silo in refused if any(silo in lacking for lacking in missing)]
    held = {silo: part.ids for silo, part in parts.items() if len(part.ids)}
    hints = written_otherwise(held, AS_TRAINED) if any(missing) and held else []
    if problems:
        raise TableError([*hints, *problems])
    for hint in hints:
        caution(hint)
    return Predictions(ids, np.asarray(head.scores(scores)), missing, warnings)


def in_common(parts: Mapping[str, SiloScores]) -> dict[str, SiloScores]:
    """The scores of the ids that every silo has."""
    common = set.intersection(*(set(part.ids) for part in parts.values()))
    if not common:
        raise TableError(["no id is in the tables of all silos: check that their id columns mean the same"])
    by_silo = {}
    for silo, part in parts.items():
        rows = [row for row, sample in enumerate(part.ids) if sample in common]
        by_silo[silo] = SiloScores([part.ids[row] for row in rows], part.phi[rows])
    return by_silo


def _lacks(silo: str, ids: Sequence[str], missing: Sequence[Sequence[str]]) -> str:
    absent = [sample for sample, lacking in zip(ids, missing, strict=True) if silo in lacking]
    shown = ", ".join(map(repr, absent[:SHOWN])) + (", ..." if len(absent) > SHOWN else "")
    return (
        f"silo '{silo}' lacks {len(absent)} of {len(ids)} ids: {shown}: add them to its table, score them without "
        "its part with --allow-missing, or leave them out with --common"
    )
