"""What a trained model reaches with every subset of its silos, written into the run folder."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.absent import ones_left
from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core.losses import metrics
from tdcd.core.objective import Objective, Tree
from tdcd.core.variant import Variant
from tdcd.federation.hosts import HostLabels, Hosts
from tdcd.federation.missing_rows import labelled_silos, patterns, presence_of, test_patterns, trained_without
from tdcd.federation.silos import Federation
from tdcd.federation.weights import weighted_mean
from tdcd.prediction.interactions import HeldOut, interactions_of
from tdcd.prediction.scores import StandIns
from tdcd.prediction.subsets import GroupPhi, Phis, describe_subsets, is_calibrated, means_by_pattern, temperature_in
from tdcd.records.run_folder import RunFolder
from tdcd.simulation import evaluation
from tdcd.simulation.devices import whole
from tdcd.simulation.host_tables import phi_of_all
from tdcd.tables.preparation import preparation_of

ROWS_AT_ONCE = 4096
MOST_ROWS, FEWEST_ROWS = 2000, 30
"""The most rows, and the fewest, that importances of columns are worked out with after training."""
MOST_WORK = 10**10
"""At most so many parameters times rows times columns are worked out for them: about a second."""


class Trained(NamedTuple):
    """A trained model and its settings."""

    federation: Federation
    blocks: Sequence[Block]
    objective: Objective
    variant: Variant
    hosts: Hosts | None = None
    """The processes that trained it together, if there were several."""


def write_subsets(folder: RunFolder | None, trained: Trained, hub_blocks: Sequence[Tree]) -> dict[str, Any]:
    """Write ``subsets.json``, and return it: figures of the held-out samples or else of the training samples.

    Several processes work phi out together, and the one with the folder writes; the others get nothing.
    """
    federation, dropout = trained.federation, trained.variant.dropout
    hub_blocks = [jax.tree.map(np.asarray, block) for block in hub_blocks]
    if trained.hosts is not None:
        from tdcd.simulation.host_evaluation import EXACT  # noqa: PLC0415 - few runs have several hosts

        # They are figures of all scores, which no host has.
        if federation.num_samples > EXACT:
            return {}
    names = [silo.name for silo in federation.silos]
    three = zip(trained.blocks, hub_blocks, federation.silos, strict=True)
    phis = [_phi_of(*silo, trained.hosts) for silo in three]
    labels = federation.test_labels
    truth: NDArray[Any] = federation.labels if labels is None else labels
    if trained.hosts is not None and isinstance(truth, HostLabels):
        truth = whole(truth, truth.copied().rows, trained.hosts)
    if folder is None:
        return {}
    train: dict[tuple[str, ...], NDArray[Any]] = {(name,): phi[0] for name, phi in zip(names, phis, strict=True)}
    measured: dict[tuple[str, ...], NDArray[Any]] = {(name,): phi[1] for name, phi in zip(names, phis, strict=True)}
    known = Phis(names, train, measured, "train" if labels is None else "test")
    dropped = _dropped(trained, hub_blocks)
    objective, scale = trained.objective, federation.label_scale
    weights = federation.weights if labels is None else federation.test_weights

    def measure(scores: NDArray[Any], chosen: Any = slice(None)) -> tuple[float, dict[str, float | None]]:
        with jax.enable_x64(scores.dtype == np.float64):
            rows = np.asarray(truth[chosen], objective.label_dtype(str(scores.dtype)))
            losses = np.asarray(evaluation.losses(scores, rows, objective=objective))
            (penalty,) = evaluation.penalties([*hub_blocks], [objective])
        mean = float(weighted_mean(losses, None if weights is None else weights[chosen])) + penalty
        return mean, metrics(objective.loss, objective.scores(scores), truth[chosen], scale, objective.label_epsilon)

    if federation.is_complete:
        described = describe_subsets(known, dropout.rate, dropped, measure, objective.combine)
        only_sums = trained.variant.summed_phi is not None
        tested = interactions_of(known, HeldOut(truth, weights, scale), objective, only_sums=only_sums)
        content = {**described, "interactions": tested, **_explained(trained, hub_blocks, measure)}
    else:
        content = _by_pattern(federation, measured, measure, amounts=objective.kind.target == "amount")
        content |= {"silo_dropout": dropout.rate, "stand_in": {silo: own.tolist() for silo, own in dropped.items()}}
        content |= _of_absent(trained, train)
    total = None if labels is None else sum([*measured.values()][1:], start=next(iter(measured.values())))
    content |= _calibration(trained, total)
    folder.write_subsets(content)
    return content


def _explained(trained: Trained, hub_blocks: Sequence[Tree], measure: Any) -> dict[str, Any]:
    """The entries ``importance`` and ``effects`` of ``subsets.json``, of as many rows as take little time.

    Effects of linear blocks follow from the model alone, and are not stored.
    """
    # Training itself needs none of it.
    from tdcd.prediction.importance import SiloRows, describe_importances, shuffled  # noqa: PLC0415
    from tdcd.tables.effects import ROWS, column_slices, effects, evenly_spaced  # noqa: PLC0415

    federation, objective = trained.federation, trained.objective
    three = [*zip(federation.silos, trained.blocks, hub_blocks, strict=True)]
    if trained.hosts is not None or any(len(silo.feature_shape) > 1 for silo, _, _ in three):
        return {}
    slices = {silo.name: column_slices(preparation_of(silo)) for silo, _, _ in three}
    work = sum(len(slices[silo.name]) * sum(map(np.size, jax.tree.leaves(own))) for silo, _, own in three)
    count = federation.num_samples if federation.test_labels is None else len(federation.test_labels)
    rows = evenly_spaced(count, min(MOST_ROWS, MOST_WORK // max(1, work)))
    if len(rows) < FEWEST_ROWS:
        return {}
    silos, shown = {}, {}
    for silo, block, own in three:
        tables = [table for table in (silo.features, silo.test_features) if table is not None]
        phi = partial(_phi_of_rows, block, own, size=min(ROWS_AT_ONCE, max(map(len, tables))))
        silos[silo.name] = SiloRows(np.asarray(tables[-1][rows]), phi, slices[silo.name])
        if objective.combine.is_additive and not isinstance(block, Linear):
            averaged = np.asarray(silo.features[evenly_spaced(federation.num_samples, ROWS)])
            shown[silo.name] = [effect.to_json() for effect in effects(preparation_of(silo), phi, averaged)]
    changes = shuffled(silos, lambda phi: measure(phi, rows), 1, 0)
    return {"importance": describe_importances(changes, len(rows))} | ({"effects": shown} if shown else {})


def _phi_of_rows(model: Block, block: Tree, rows: NDArray[Any], *, size: int) -> NDArray[Any]:
    """Phi of any number of rows, by the program that chunks of ``size`` have already."""
    starts = range(0, len(rows), size)
    return np.concatenate([_chunk(model, block, rows[start : start + size], size) for start in starts])


def temperature_of(trained: Trained, hub_blocks: Sequence[Tree], folder: Path | None) -> float:
    """The temperature of the model's probabilities: what the folder says, or else fitted now."""
    # Of several processes only the first has the folder, and all of them must do the same.
    if folder is not None and trained.hosts is None:
        return temperature_in(RunFolder(folder).subsets())
    if trained.federation.test_labels is None:
        return 1.0
    three = zip(trained.blocks, hub_blocks, trained.federation.silos, strict=True)
    phis = [_phi_of(*silo, trained.hosts)[1] for silo in three]
    return temperature_in(_calibration(trained, sum(phis[1:], start=phis[0])))


def _calibration(trained: Trained, total: NDArray[Any] | None) -> dict[str, Any]:
    """The entry ``calibration`` of ``subsets.json``, from the silos' sums for the held-out samples; none if there is
    nothing to calibrate.
    """
    federation, objective = trained.federation, trained.objective
    if not is_calibrated(trained.blocks, objective):
        return {}
    from tdcd.prediction.calibration import describe_calibration  # noqa: PLC0415  (for ensembles only)

    scores = None if total is None else np.asarray(objective.scores(total))
    weights = federation.test_weights
    return {"calibration": describe_calibration(scores, federation.test_labels, weights, objective)}


def _by_pattern(
    federation: Federation, parts: Mapping[Any, NDArray[Any]], measure: Any, *, amounts: bool
) -> dict[str, Any]:
    """``subsets.json`` of a run in which silos lack samples: the figures by the silos that have them."""
    from tdcd.federation.selection import label_figures, selection_in_words  # noqa: PLC0415  (for such runs only)

    first, *others = parts.values()
    scores, has_test = np.asarray(sum(others, start=first)), federation.test_labels is not None
    trained, figures = patterns(federation), list[dict[str, Any]]()
    truth = federation.labels if federation.test_labels is None else federation.test_labels
    groups = {silos: np.asarray(federation.labels[rows], np.float64) for silos, rows in trained.items()}
    for silos, rows in (test_patterns if has_test else patterns)(federation).items():
        loss, reached = measure(scores[rows], rows)
        counts: dict[str, Any] = {"silos": [*silos], "trained": len(trained.get(silos, ())), "samples": len(rows)}
        counts |= {"labels": label_figures(federation, truth[rows], amounts=amounts)}
        figures.append({**counts, "loss": loss, "metrics": reached})
    return {
        "silos": [silo.name for silo in federation.silos],
        "silo_dropout": 0.0,
        "samples": "test" if has_test else "train",
        "mean_phi": {},
        "stand_in": {},
        "subsets": [],
        "patterns": figures,
        "selection": selection_in_words(groups, federation.num_silos, amounts=amounts),
    }


def _of_absent(trained: Trained, train: GroupPhi) -> dict[str, Any]:
    """The entries of ``subsets.json`` about silos that are missing in a prediction."""
    federation, names = trained.federation, [silo.name for silo in trained.federation.silos]
    labelled, drops_silos = labelled_silos(federation), trained.variant.dropout.drops_silos
    return {
        "trained_without": trained_without(presence_of(federation), names, labelled, drops_silos=drops_silos),
        "means": means_by_pattern(train, patterns(federation), trained.objective.combine),
    }


def stand_ins_of(trained: Trained, hub_blocks: Sequence[Tree], folder: Path | None) -> StandIns:
    """What takes the place of silos that are missing: what the folder says, or else worked out now."""
    rate = trained.variant.dropout.rate
    if not trained.federation.is_complete:
        if folder is not None:
            return StandIns.of_absence(RunFolder(folder).subsets())
        three = zip(trained.blocks, hub_blocks, trained.federation.silos, strict=True)
        train: GroupPhi = {(silo[2].name,): _phi_of(*silo, trained.hosts)[0] for silo in three}
        dropped = {silo: alone.tolist() for silo, alone in _dropped(trained, hub_blocks).items()}
        return StandIns.of_absence({**_of_absent(trained, train), "silo_dropout": rate, "stand_in": dropped})
    # Of several processes only the first has the folder, and all of them must do the same.
    if not rate and folder is not None and trained.hosts is None:
        return StandIns(RunFolder(folder).subsets().get("stand_in", {}))
    if not rate:
        three = zip(trained.blocks, hub_blocks, trained.federation.silos, strict=True)
        stand_in = trained.objective.combine.stand_in
        return StandIns(
            {
                trained_silo[2].name: stand_in(_phi_of(*trained_silo, trained.hosts)[0]).tolist()
                for trained_silo in three
            }
        )
    values = {silo: [float(value) for value in alone] for silo, alone in _dropped(trained, hub_blocks).items()}
    return StandIns(values, rate)


def _dropped(trained: Trained, hub_blocks: Sequence[Tree]) -> dict[str, NDArray[np.float64]]:
    """What is left of a silo's phi where it is dropped, ``[C]``, if anything is."""
    dropout, silos = trained.variant.dropout, trained.federation.silos
    index = next((silo for silo in range(len(silos)) if dropout.leaves_intercept(silo)), None)
    if index is None:
        return {}
    silo = silos[index]
    with jax.enable_x64(jax.tree.leaves(hub_blocks[index])[0].dtype == np.float64):
        model, ones = (
            trained.blocks[index],
            ones_left(trained.blocks[index], silo.num_rows, trained.federation.num_samples),
        )
        alone = dropout.alone(index, hub_blocks[index], model.phi, silo.feature_shape[-1], ones)
    return {} if ones is None else {silo.name: np.asarray(alone, np.float64)}


def _phi_of(model: Block, block: Tree, silo: Any, hosts: Hosts | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """A silo's phi of the training samples and of the held-out ones; the same if there are none."""
    tables = [silo.features] if silo.test_features is None else [silo.features, silo.test_features]
    if hosts is not None:
        with jax.enable_x64(jax.tree.leaves(block)[0].dtype == np.float64):
            known = [phi_of_all(block, table, model, hosts) for table in tables]
        return known[0], known[-1]
    # One size of chunks for both, so that one program does.
    size = min(ROWS_AT_ONCE, max(map(len, tables)))
    chunks = [[table[start : start + size] for start in range(0, len(table), size)] for table in tables]
    phis = [np.concatenate([_chunk(model, block, rows, size) for rows in each]) for each in chunks]
    return phis[0], phis[-1]


def _chunk(model: Block, block: Tree, rows: NDArray[Any], size: int) -> NDArray[Any]:
    dtype = jax.tree.leaves(block)[0].dtype
    if isinstance(model, Linear):
        # One product: NumPy is done before a compiled program has begun.
        return np.asarray(model.phi(jax.tree.map(np.asarray, block), np.asarray(rows, dtype)))  # type: ignore[arg-type]
    padded = np.zeros((size, *rows.shape[1:]), dtype)
    padded[: len(rows)] = rows
    with jax.enable_x64(dtype == np.float64):
        scores = evaluation.scores([block], [padded], 0, rows=size, blocks=(model,), is_batch=False)
    return np.asarray(scores)[: len(rows)]
