"""What a model reaches with some of its silos: figures for every subset of them, ``subsets.json`` in a run folder."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Ensemble
from tdcd.blocks.absent import without_stand_ins
from tdcd.blocks.base import Block, without_head
from tdcd.core.combine import SUM, Combine
from tdcd.core.objective import Objective

MOST_SILOS = 6
"""With more silos than these, only single ones, all but one and all of them are measured."""

FEWEST_SAMPLES = 30
"""Mean phi is kept of no fewer training samples than these, where silos lack samples."""

Scorer = Callable[[NDArray[Any]], tuple[float, dict[str, float | None]]]
"""The loss and the metrics of samples, from their scores ``[m, C]``."""
GroupPhi = Mapping[tuple[str, ...], NDArray[Any]]
"""``[n, C]``, the phi of some samples: of each silo alone or, where only sums are known, summed over several."""


class Phis(NamedTuple):
    """Statistics of the silos' phi at the end of a run."""

    silos: Sequence[str]
    """All of them, in order."""
    train: GroupPhi
    """The phi of the training samples."""
    measured: GroupPhi
    """The phi of the samples that are measured; the same groups of silos."""
    samples: Literal["test", "train"]
    """Which those are."""


def subsets_of(count: int) -> list[tuple[int, ...]]:
    """The subsets of so many things that are measured: by size, the empty one first.

    >>> subsets_of(2)
    [(), (0,), (1,), (0, 1)]
    """
    sizes = range(count + 1) if count <= MOST_SILOS else (0, 1, count - 1, count)
    return [chosen for size in sizes for chosen in combinations(range(count), size)]


def figures_by_subset(
    parts: GroupPhi, stand_in: Mapping[tuple[str, ...], NDArray[Any]], measure: Scorer
) -> list[dict[str, Any]]:
    """The figures of the model for every subset of the groups of silos whose phi is known, summed in their order.

    Args:
        stand_in: ``[C]``, what takes the place of the phi of silos that are missing.
    """
    groups, figures = [*parts], []
    for chosen in subsets_of(len(groups)):
        # In the precision of phi, as in an evaluation of the whole model.
        terms = [
            phi if index in chosen else np.broadcast_to(stand_in[group].astype(phi.dtype), phi.shape)
            for index, (group, phi) in enumerate(parts.items())
        ]
        loss, metrics = measure(np.asarray(sum(terms[1:], start=terms[0])))
        figures.append(
            {"silos": [silo for index in chosen for silo in groups[index]], "loss": loss, "metrics": metrics}
        )
    return figures


def silo_importances(parts: GroupPhi, measure: Scorer) -> list[dict[str, Any]]:
    """Permutation importance of silos: how loss and metrics change with the phi of one at other samples.

    Whoever has the scores of all silos works it out from these: nothing is sent for it. Samples that have no score
    because clients are away stay where they are.
    """
    if len(parts) < 2:
        return []
    groups, figures = [*parts], []
    known = np.flatnonzero(np.all([np.isfinite(phi).all(axis=1) for phi in parts.values()], axis=0))
    order = np.arange(len(parts[groups[0]]))
    order[known] = np.random.default_rng(0).permutation(known)
    first, *others = parts.values()
    loss, metrics = measure(np.asarray(sum(others, start=first)))
    for group in groups:
        first, *others = (phi[order] if name == group else phi for name, phi in parts.items())
        shuffled_loss, reached = measure(np.asarray(sum(others, start=first)))
        changes = {
            name: None if before is None or (after := reached.get(name)) is None else after - before
            for name, before in metrics.items()
        }
        figures.append({"silos": [*group], "loss": shuffled_loss - loss, "metrics": changes})
    return figures


def describe_subsets(
    phis: Phis, rate: float, dropped: Mapping[str, NDArray[Any]], measure: Scorer, head: Combine = SUM
) -> dict[str, Any]:
    """The content of ``subsets.json``, see :meth:`tdcd.records.run_folder.RunFolder.write_subsets`.

    A run with silo dropout was trained to do without a silo: nothing takes the place of its phi, but for the model's
    intercept. In another run its mean over the training samples does, or what the head has in its place.

    Args:
        rate: ``train.silo_dropout``.
        dropped: what is left of a silo's phi when it is dropped, if that is not zero.
    """
    means = {silos: phi.mean(axis=0, dtype=np.float64) for silos, phi in phis.train.items()}
    stand_in = {silos: head.stand_in(phi) for silos, phi in phis.train.items()}
    if rate:
        stand_in = {
            group: np.asarray(sum((np.asarray(dropped.get(silo, 0.0)) for silo in group), start=np.zeros_like(mean)))
            for group, mean in means.items()
        }
    return {
        "silos": [*phis.silos],
        "silo_dropout": rate,
        "samples": phis.samples,
        "mean_phi": _of_single(means),
        "stand_in": _of_single(stand_in),
        "subsets": figures_by_subset(phis.measured, stand_in, measure) if phis.measured else [],
        "shuffled": silo_importances(phis.measured, measure),
    }


def means_by_pattern(
    phis: GroupPhi, rows: Mapping[tuple[str, ...], NDArray[Any]], head: Combine = SUM
) -> list[dict[str, Any]]:
    """What each silo adds to the scores of the training samples, on average, by the silos that have them.

    Where a silo is missing that no other was trained to make up for, this takes its place. A mean of few samples would
    show their phi: combinations that few samples have are left out or, if all are such, taken together.

    Args:
        phis: of the training samples, with zeros for those that a silo lacks; with its stand-ins for other silos.
        rows: which samples each combination of silos has.
    """
    kept = {silos: own for silos, own in rows.items() if len(own) >= FEWEST_SAMPLES}
    return [
        {
            "silos": [*silos],
            "samples": len(own),
            "mean_phi": _of_single({group: head.stand_in(phi[own]) for group, phi in phis.items()}),
        }
        for silos, own in (kept or {(): np.concatenate([*rows.values()])}).items()
    ]


def is_calibrated(blocks: Sequence[Block], objective: Objective) -> bool:
    """Whether probabilities get a temperature, see :mod:`tdcd.prediction.calibration`: those of ensembles do.

    Linear models are calibrated on average by their loss, and their coefficients are read as log-odds.
    """
    has_ensemble = any(isinstance(without_stand_ins(without_head(block)), Ensemble) for block in blocks)
    return has_ensemble and objective.kind.name in ("logistic", "softmax")


def temperature_in(subsets: Mapping[str, Any]) -> float:
    """The temperature that ``subsets.json`` has; 1 if it has none."""
    return float(subsets.get("calibration", {}).get("temperature", 1.0))


def _of_single(figures: Mapping[tuple[str, ...], NDArray[Any]]) -> dict[str, list[float]]:
    """The subsets of silos whose phi is known by itself."""
    return {group[0]: [float(value) for value in values] for group, values in figures.items() if len(group) == 1}
