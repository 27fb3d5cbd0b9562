"""The attacks on labels and membership, played against one recording."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tdcd.audit.attacks import (
    TINY,
    by_clusters,
    by_probe,
    expected,
    found_in_groups,
    labels_from_slopes,
    labels_from_sums,
    mean_slope,
    recovery,
)
from tdcd.audit.lines import AuditFinding, RecoveryMeasure
from tdcd.audit.modes import Mode
from tdcd.audit.recording import Floats, Recording
from tdcd.audit.transcripts import Transcript, of_client, of_hub
from tdcd.config.resolve import Plan
from tdcd.core.losses import Target
from tdcd.core.losses.figures import auc
from tdcd.core.randomized import Response

MEASURES: dict[Target, RecoveryMeasure] = {"binary": "AUC", "classes": "accuracy", "amount": "squared correlation"}
KNOWN_LABELS = 20
"""So many are given to an attacker who fits a model to them."""


def label_findings(planned: Plan, mode: Mode, recording: Recording, order: NDArray[np.intp]) -> Iterator[AuditFinding]:
    """All attacks on labels, and membership."""
    flows = mode.round(planned.federation.num_silos)
    owner = flows.scored_at(0)
    observer = (owner + 1) % planned.federation.num_silos
    truth = planned.federation.labels[recording.rows]
    target = planned.objective.kind.target
    bound = None if mode.epsilon is None else Response.of(mode.epsilon, len(np.unique(planned.federation.labels))).keep
    plain = AuditFinding(
        "labels of hub", mode, measure=MEASURES[target], guess=no_knowledge(truth, target), bound=bound
    )
    loss, federation = planned.objective.kind.name, planned.federation
    hub = of_hub(recording, federation, flows, observer, owner, loss)
    client = of_client(recording, federation, flows, observer, loss)
    for line, seen in (("labels of hub", hub), ("labels of client", client)):
        own = replace(plain, line=line, party=seen.party, sees=seen.sees)
        if seen.slopes is None:
            held = recovery(recording.labels.astype(np.float64), truth, target)
            words = "the labels themselves" if mode.epsilon is None else "the randomised labels"
            yield replace(own, recovered=held, sees=words, holds=True)
        else:
            guesses = labels_from_slopes(seen.slopes, loss)
            yield replace(own, recovered=recovery(guesses, truth[seen.rows], target))
    if flows.encrypted is not None:
        yield _clusters(replace(plain, line="clusters", party=hub.party, sees=hub.sees), hub, truth, planned)
        yield _sums(replace(plain, line="sums", party=hub.party), planned, recording, observer)
        yield _shares(replace(plain, line="label property", party=hub.party), planned, recording, observer, hub)
        yield _probe(replace(plain, line="probe", party=hub.party), planned, recording, observer, order)
    elif hub.slopes is not None:
        yield _clusters(replace(plain, line="clusters", party=hub.party, sees=hub.sees), hub, truth, planned)
        share = replace(plain, line="label property", party=hub.party, sees=hub.sees)
        yield _shares(share, planned, recording, observer, hub)
        yield _probe(replace(plain, line="probe", party=hub.party), planned, recording, observer, order)
    if len(recording.test_losses):
        yield AuditFinding(
            "membership",
            mode,
            "anybody with all blocks",
            sees="the whole model, and the losses of samples",
            measure="AUC",
            recovered=by_loss(recording.train_losses, recording.test_losses),
            guess=0.5,
        )
    else:
        yield AuditFinding(
            "membership", mode, "anybody with all blocks", why_not="no samples are held out to compare with"
        )


def no_knowledge(labels: NDArray[np.generic], target: Target) -> float:
    """What an attacker recovers who knows only which label is the most frequent."""
    if target == "classes":
        return float(np.max(np.unique(labels, return_counts=True)[1]) / len(labels))
    return 0.5 if target == "binary" else 0.0


def _clusters(plain: AuditFinding, seen: Transcript, truth: NDArray[np.generic], planned: Plan) -> AuditFinding:
    target = planned.objective.kind.target
    if target == "amount":
        return replace(plain, why_not="amounts have no clusters")
    assert seen.slopes is not None
    # Directions: how long a slope is says how well the row is learned, not which class it has.
    drawn = ~np.isnan(seen.slopes).all(axis=(1, 2))
    slopes, guesses = seen.slopes[drawn], np.full(len(truth), np.nan)
    length = np.linalg.norm(slopes, axis=-1, keepdims=True)
    directions = np.nanmean(slopes / np.where(length > 0, length, 1), axis=1)
    # Of a sample that was in no minibatch there is nothing to see.
    guesses[drawn] = by_clusters(directions, truth[drawn], planned.settings.seed)
    return replace(plain, recovered=recovery(guesses, truth, target))


def _sums(plain: AuditFinding, planned: Plan, recording: Recording, observer: int) -> AuditFinding:
    """From the hub's gradients and its clients' features; the guess is from the silo's own part of the model."""
    target, silo = planned.objective.kind.target, planned.federation.silos[observer]
    truth, features = planned.federation.labels[recording.rows], silo.features.reshape(silo.num_rows, -1)
    gradients = recording.gradients[observer]
    slopes = labels_from_sums(recording.minibatches, gradients, features.astype(np.float64))[recording.rows]
    # What its part of the model says at the last evaluation.
    phi = _at_evaluations(recording, observer)[:, -slopes.shape[1] :]

    def named(numbers: Floats) -> float:
        guesses = np.argmax(numbers, axis=1).astype(np.float64) if target == "classes" else numbers[:, 0]
        return recovery(guesses, truth, target)

    return replace(
        plain,
        sees="the gradient of the silo's block in every round",
        recovered=named(-slopes),
        guess=named(phi),
        bound=None,
    )


def _shares(plain: AuditFinding, planned: Plan, recording: Recording, observer: int, seen: Transcript) -> AuditFinding:
    """The share of a class in each round's minibatch: the second of two, the most frequent of several; large amounts.

    From slopes, of the samples that the audit looks at. Where these are encrypted, from the gradients of the hub's
    block: what its part of the model expects, less the mean slope. The guess is then what that part expects alone.
    """
    target, loss, labels = planned.objective.kind.target, planned.objective.kind.name, planned.federation.labels
    names, counts = np.unique(labels, return_counts=True)
    most = int(names[counts.argmax()]) if target == "classes" else 0
    holds = labels == most if target == "classes" else labels > (0 if target == "binary" else np.median(labels))
    estimates: Floats
    if recording.gradients[observer]:
        plain = replace(plain, sees="the gradient of the silo's block in every round")
        groups = recording.minibatches
        silo, rounds = (
            planned.federation.silos[observer],
            [t for t, at in enumerate(recording.moments) if not at.evaluation],
        )
        guesses, slopes = [], []
        for t, ids, gradient in zip(rounds, groups, recording.gradients[observer], strict=True):
            rows = silo.features[ids].reshape(len(ids), -1).astype(np.float64)
            phi = rows @ np.asarray(recording.blocks[observer][t]["weight"], np.float64)
            guesses.append(expected(phi, loss)[:, most].mean())
            slopes.append(mean_slope(gradient, rows)[most])
        without, estimates = np.array(guesses), np.array(guesses) - slopes
    else:
        assert seen.slopes is not None
        labelled = labels_from_slopes(seen.slopes, loss)
        labelled = (labelled == most).astype(np.float64) if target == "classes" else labelled
        places = [np.flatnonzero(np.isin(recording.rows, ids)) for ids in recording.minibatches]
        places = [rows for rows in places if len(rows)]
        groups = [recording.rows[rows] for rows in places]
        estimates = np.array([labelled[rows].mean() for rows in places])
        without = np.zeros(len(groups))
    shares = np.array([holds[ids].mean() for ids in groups])
    if np.ptp(shares) < TINY:
        return replace(plain, why_not="all minibatches have the same share of a class")
    recovered, guess = found_in_groups(estimates, shares), found_in_groups(without, shares)
    return replace(plain, measure="AUC", recovered=recovered, guess=guess, bound=None)


def _probe(
    plain: AuditFinding, planned: Plan, recording: Recording, observer: int, order: NDArray[np.intp]
) -> AuditFinding:
    """From the hub's own phi; the guess is from its own columns."""
    target = planned.objective.kind.target
    truth = planned.federation.labels[recording.rows]
    known, rest = order[:KNOWN_LABELS], order[KNOWN_LABELS:]
    phi = _at_evaluations(recording, observer)
    own = planned.federation.silos[observer].features[recording.rows].reshape(len(truth), -1).astype(np.float64)

    def probed(features: Floats) -> float:
        return recovery(by_probe(features, known, truth)[rest], truth[rest], target)

    return replace(
        plain,
        sees="phi of its own clients' rows at evaluations",
        recovered=probed(phi),
        guess=probed(own),
        bound=None,
        known=len(known),
    )


def _at_evaluations(recording: Recording, silo: int) -> Floats:
    """``[R, F]``: phi of all samples, at the moments that have all."""
    chosen = [t for t, moment in enumerate(recording.moments) if moment.evaluation]
    return recording.to_hub[silo][:, chosen].reshape(len(recording.rows), -1)


def by_loss(train: Floats, test: Floats) -> float:
    """The AUC of telling training samples from others by their smaller loss.

    Yeom et al. 2018, "Privacy risk in machine learning: analyzing the connection to overfitting".
    """
    members = np.arange(len(train) + len(test)) < len(train)
    return auc(-np.concatenate([train, test]), members) or 0.5
