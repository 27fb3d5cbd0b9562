"""Which ids the silos' tables have in common, and what is lost by keeping to those."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tdcd.config import Config, SiloSection
from tdcd.config.losses import chosen_loss
from tdcd.core.words import are, counted
from tdcd.federation.missing_rows import patterns
from tdcd.federation.silos import Federation, LabelFigures, SiloIds
from tdcd.tables.errors import TableError
from tdcd.tables.labels import canonical_label, encode
from tdcd.tables.rows import RawRows, id_order, spelt_otherwise, written_otherwise


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
            "find the common ones with tdcd align, or set data.align = true to train on them"
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
    of the next one that the first lacks, and so on. Every hub can tell this order from the order of each silo's ids.
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


def presence_in_words(federation: Federation) -> str:
    """How many training samples which silos have, and what their labels are like; nothing if all silos have all."""
    if federation.is_complete:
        return ""
    parts, is_binary = [], len(federation.classes) == 2
    for silos, rows in patterns(federation).items():
        labels = federation.labels[rows]
        where = "all silos" if len(silos) == federation.num_silos else " and ".join(f"'{silo}'" for silo in silos)
        mean = f"{labels.mean() * federation.label_scale + federation.label_mean:.4g}"
        rate = f"{labels.mean():.1%} {federation.classes[1]!r}" if is_binary else f"mean label {mean}"
        parts.append(f"{where} {len(rows):,}" + (f" ({rate})" if is_binary or not federation.classes else ""))
    return f"training samples by the silos that have them: {', '.join(parts)}"


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
