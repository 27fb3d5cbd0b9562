"""Which ids the silos' tables have in common, and what is lost by keeping to those."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tdcd.config import Config, SiloSection
from tdcd.config.losses import chosen_loss
from tdcd.core.words import are, counted
from tdcd.federation.selection import selection_in_words
from tdcd.federation.silos import LabelFigures, SiloIds
from tdcd.tables.errors import TableError
from tdcd.tables.labels import canonical_label, encode
from tdcd.tables.rows import RawRows, id_order, spelt_otherwise, written_otherwise

SHOWN_SHARES = 3
"""Of how many classes a line gives the share."""


def held_twice(section: SiloSection, parts: Sequence[RawRows]) -> list[TableError]:
    """Errors for the ids that two clients of the silo hold."""
    if len(parts) < 2:
        return []
    holder: dict[str, int] = {}
    problems = []
    for client, part in enumerate(parts):
        for sample in part.ids:
            first = holder.setdefault(sample, client)
            if first != client:
                problems.append(
                    f"silo '{section.name}': id {sample!r} is held by {parts[first].source} and by {part.source}: "
                    "only one client of a silo may hold a row"
                )
    return [TableError(problems)] if problems else []


def common_ids(config: Config, tables: Mapping[str, Sequence[RawRows]]) -> list[str]:
    """The ids that every silo has, in order; refuses others unless the configuration allows them."""
    held = {name: {sample for part in parts for sample in part.ids} for name, parts in tables.items()}
    common = set.intersection(*held.values())
    if not common or (not config.data.align and any(len(ids) > len(common) for ids in held.values())):
        counts = [
            f"silo '{name}' has {len(ids)}, {len(ids - common)} of which others lack" for name, ids in held.items()
        ]
        advice = (
            "set data.align = true (between organisations: tdcd align) to train on the common ones, or data.samples = "
            "'all' on every one with a label"
            if common
            else "check that the id columns mean the same"
        )
        advice += "".join(f"; {hint}" for hint in written_otherwise(held))
        count = f"{counted(len(common), 'id')} {are(len(common))} in every silo"
        raise TableError([f"{count}: {'; '.join(counts)}: {advice}"])
    ids = list(common)
    return [ids[place] for place in id_order(ids)]


def left_out_by_spelling(config: Config, tables: Mapping[str, Sequence[RawRows]]) -> list[str]:
    """Cautions of ids that are taken for different samples, where ids that a silo lacks do not stop the run."""
    if not config.data.align and config.data.samples == "common":
        return []
    return written_otherwise(
        {name: {sample for part in parts for sample in part.ids} for name, parts in tables.items()}
    )


def labelled_ids(config: Config, tables: Mapping[str, Sequence[RawRows]]) -> list[str]:
    """The ids that have a label, whichever silos know them: those of the first silo with labels in order, then those
    of the next one that the first lacks, and so on. Every hub can work this out from the order of each silo's ids.
    """
    known: dict[str, None] = {}
    for section in config.silos:
        own = [sample for part in tables[section.name] for sample in part.ids]
        if section.label is not None:
            known |= dict.fromkeys(own[place] for place in id_order(own))
    for section in config.silos:
        own = [sample for part in tables[section.name] for sample in part.ids]
        if not any(sample in known for sample in own):
            problem = f"silo '{section.name}' knows none of the {len(known)} samples that have a label"
            hint = spelt_otherwise(own, f"silo '{section.name}'", known, "the silos with labels")
            raise TableError([f"{problem}: {hint or 'check that the id columns mean the same'}"])
    return [*known]


class PatternIds(NamedTuple):
    """The ids that the same silos have."""

    silos: tuple[str, ...]
    ids: int
    labelled: int
    """How many of them have a label."""
    labels: LabelFigures | None
    """The mean of their labels, or the share of every class; None if it is unknown."""

    def in_words(self, num_silos: int) -> str:
        """How many, whose, and what their labels are like."""
        where = "all silos" if len(self.silos) == num_silos else " and ".join(f"'{silo}'" for silo in self.silos)
        if isinstance(self.labels, dict):
            # Of two classes one share is enough: that of the second, as elsewhere.
            shares = [*self.labels.items()][-1 if len(self.labels) <= 2 else 0 :][:SHOWN_SHARES]
            return f"{where} {self.ids:,} ({', '.join(f'{share:.1%} {name!r}' for name, share in shares)})"
        return f"{where} {self.ids:,}" + ("" if self.labels is None else f" (mean label {self.labels:.4g})")


class PresenceCounts(NamedTuple):
    """Which silos have which ids, see :func:`presence_by_pattern`."""

    num_silos: int
    patterns: Sequence[PatternIds]
    """The most frequent first; one if all silos have all."""
    selection: str
    """A sentence if labels differ between patterns by more than chance."""

    @property
    def in_words(self) -> str:
        """One line; nothing if all silos have all."""
        if len(self.patterns) < 2:
            return ""
        return ", ".join(pattern.in_words(self.num_silos) for pattern in self.patterns)


def presence_by_pattern(tables: Mapping[str, Sequence[RawRows]], *, amounts: bool | None) -> PresenceCounts:
    """The ids of all silos' tables by the silos that have them, and their labels.

    Args:
        amounts: as of :func:`alignment`.
    """
    held: dict[str, int] = {}
    known: dict[str, Any] = {}
    for place, parts in enumerate(tables.values()):
        for part in parts:
            for sample in part.ids:
                held[sample] = held.get(sample, 0) | 1 << place
            if amounts is not None and part.labels is not None:
                known.update(zip(part.ids, _listed(part), strict=True))
    labels: dict[int, list[Any]] = {}
    for sample, label in known.items():
        labels.setdefault(held[sample], []).append(label if amounts else canonical_label(label))
    classes = {} if amounts else {name: code for code, name in enumerate(sorted({*chain(*labels.values())}))}
    numbers = {kind: np.array([classes.get(label, label) for label in own], np.float64) for kind, own in labels.items()}
    names, patterns = [*tables], []
    for kind, count in Counter(held.values()).most_common():
        silos = tuple(name for place, name in enumerate(names) if kind >> place & 1)
        own = labels.get(kind, [])
        figures = None if amounts is None else _figures(own, amounts)
        if isinstance(figures, dict):
            figures = {name: figures.get(name, 0.0) for name in classes}
        patterns.append(PatternIds(silos, count, len(own), figures))
    groups: dict[tuple[str, ...], Any] = {(str(kind),): own for kind, own in numbers.items()}
    selection = "" if amounts is None else selection_in_words(groups, len(names), amounts=amounts)
    return PresenceCounts(len(names), patterns, selection)


def alignment(
    tables: Mapping[str, Sequence[RawRows]], common: Collection[str], *, amounts: bool | None
) -> dict[str, SiloIds]:
    """How many ids each silo has, how many of them all have, and its labels before and after the others are left out.

    Args:
        common: the ids that all silos have.
        amounts: whether labels are amounts, not classes; None to say nothing of them, as where they are randomised.
    """
    return {name: ids_of(parts, common, amounts=amounts) for name, parts in tables.items()}


def are_amounts(config: Config, parts: Sequence[RawRows]) -> bool | None:
    """Whether the labels of these tables are amounts; None if that is unknown.

    That is of labels that are randomised, or that do not fit ``model.loss``: training refuses those, with its reason.
    """
    labels = [part.labels for part in parts if part.labels is not None]
    if not labels or config.federation.label_epsilon is not None:
        return None
    if any(isinstance(some, list) for some in labels):
        return False
    try:
        return encode(np.concatenate(labels), chosen_loss(config.model), partly=True).task == "regression"
    except ValueError:
        return None


def ids_of(parts: Sequence[RawRows], common: Collection[str], *, amounts: bool | None) -> SiloIds:
    """The ids of one silo's tables that all silos have, and what leaving out the others changes of its labels."""
    silo = SiloIds(sum(len(part) for part in parts), sum(sample in common for part in parts for sample in part.ids))
    if amounts is None or any(part.labels is None for part in parts):
        return silo
    labels = [(sample, label) for part in parts for sample, label in zip(part.ids, _listed(part), strict=True)]
    before, after = [label for _, label in labels], [label for sample, label in labels if sample in common]
    return replace(silo, labels_before=_figures(before, amounts), labels_after=_figures(after, amounts))


def _figures(values: Sequence[Any], amounts: bool) -> LabelFigures | None:
    """The mean of labels that are amounts, or the share of every class; None of no labels."""
    if not values:
        return None
    if amounts:
        return float(np.mean(values))
    counts = Counter(canonical_label(value) for value in values)
    return {name: counts[name] / counts.total() for name in sorted(counts)}


def _listed(rows: RawRows) -> list[Any]:
    """The labels of a table."""
    listed: list[Any] = np.asarray(rows.labels).tolist()
    return listed
