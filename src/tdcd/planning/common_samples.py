r"""What more common samples would buy: a learning curve of trainings on fewer of them.

The plan is trained on parts of the common samples, drawn at random, and every model is evaluated on the same held-out
samples. Through the held-out losses goes, by least squares,

.. math:: \ell(n) = a + b / n

which is how the excess loss of a well-specified model falls with n samples. It is read off at 1.1 n. The standard error
of the gain is that of b, from the residuals. It supposes that further common samples would be like those there are.

With ``data.samples = "all"`` every training has all samples, and n is the overlap: the rows of silos that lack samples,
where another silo that has labels has the row, too. In a part of it the other rows are taken away from these silos.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.config.resolve import Plan, plan
from tdcd.core.words import counted
from tdcd.federation.missing_rows import Presence, labelled_silos, presence_of
from tdcd.federation.silos import Federation, Silo
from tdcd.theory.progress import EstimateObserver, Meter, silent
from tdcd.training.train import train_plan

PARTS = (0.4, 0.6, 0.8, 1.0)
"""The parts of the common samples that are trained on."""
DRAWS = 3
"""How many times each part is drawn; all samples are trained on once."""
FEWEST = 50
"""With fewer common samples than these, or rows of overlap, nothing is estimated."""
COMMON, OVERLAP = "common samples", "overlapping rows"
"""What n counts."""
MORE = 1.1
STREAM = 10
"""Which of a seed's random streams draws the parts."""


class CurvePoint(NamedTuple):
    """One training."""

    samples: int
    loss: float
    """Held out."""


class MoreSamples(NamedTuple):
    """What a tenth more common samples would buy."""

    points: Sequence[CurvePoint]
    gain: float
    """How much lower the held-out loss would be."""
    error: float
    """The standard error of the gain."""
    counted: str = COMMON
    """What the points count."""

    @property
    def in_words(self) -> str:
        """Two sentences: the gain, and where it comes from."""
        last = self.points[-1]
        added = round(last.samples * (MORE - 1))
        gain = (
            f"lower by about {self.gain:.2g} (standard error {self.error:.1g})"
            if self.gain > self.error
            else f"hardly lower: {self.gain:.2g}, with a standard error of {self.error:.1g}"
        )
        return (
            f"Another 10 % of {self.counted} ({added:,} more) would make the held-out loss {last.loss:.4g} {gain}. An "
            f"estimate: a + b/n through {counted(len(self.points), 'training')} on {self.points[0].samples:,} to "
            f"{last.samples:,} {self.counted}, as if further ones were like these."
        )


def more_samples(planned: Plan, *, seconds: float = 30.0, observe: EstimateObserver = silent) -> MoreSamples | str:
    """The gain of another tenth of common samples; or why there is no estimate, in a sentence.

    Args:
        seconds: a time limit. A training that has begun takes its first rounds whatever they take.
    """
    federation, is_common = planned.federation, planned.federation.is_complete
    if federation.test_labels is None:
        return _without("no samples are held out: set evaluate.holdout", is_common)
    overlap = None if is_common else overlap_of(federation)
    count = federation.num_samples if overlap is None else int(overlap.sum())
    if count * PARTS[0] < FEWEST:
        there = counted(count, "common training sample" if is_common else "overlapping training row")
        return _without(f"there are {there}, and at least {FEWEST} are trained on", is_common)
    # Not the stream that dealt rows to clients: parts would be whole clients.
    draw = np.random.default_rng([planned.settings.seed, STREAM])
    meter = Meter(1 + DRAWS * (len(PARTS) - 1), seconds, observe)
    ends, points = time.monotonic() + seconds, []
    for part in PARTS:
        for _ in range(1 if part == 1 else DRAWS):
            chosen = np.sort(draw.permutation(count)[: round(part * count)])
            smaller = _on(planned, chosen) if overlap is None else _with_overlap(planned, overlap, chosen)
            result = train_plan(smaller, should_stop=lambda: time.monotonic() > ends)
            if result.status == "interrupted":
                limit = f"its trainings take more than {seconds:.0f} s here: give it more with --seconds"
                return _without(limit, is_common)
            if result.status == "diverged" or result.final.test_loss is None:
                return _without(f"a training on {len(chosen):,} {COMMON if is_common else OVERLAP} diverged", is_common)
            points.append(CurvePoint(len(chosen), result.final.test_loss))
            meter.report(COMMON if is_common else OVERLAP, points[-1].loss, finished=True)
    return fitted(points)._replace(counted=COMMON if is_common else OVERLAP)


def fitted(points: Sequence[CurvePoint]) -> MoreSamples:
    """The least squares fit of a + b/n, b at least 0, and what it says of a tenth more than the most samples."""
    inverse = np.array([1 / point.samples for point in points])
    losses = np.array([point.loss for point in points])
    off = inverse - inverse.mean()
    slope = float(off @ losses / (off @ off))
    residuals = losses - losses.mean() - slope * off
    error = float(np.sqrt(residuals @ residuals / (len(points) - 2) / (off @ off)))
    step = (1 - 1 / MORE) / points[-1].samples
    return MoreSamples(points, max(0.0, slope) * step, error * step)


def _without(reason: str, is_common: bool) -> str:
    return f"What more {COMMON if is_common else OVERLAP} would buy was not estimated: {reason}."


def overlap_of(federation: Federation) -> Presence:
    """``[N, M]``: the training rows of silos that lack samples, where an earlier silo with labels has the row, too."""
    present, labelled = presence_of(federation), labelled_silos(federation)
    overlap = np.zeros_like(present)
    for silo, own in enumerate(present):
        known = [other for other in labelled if other < silo or silo not in labelled]
        if not own.all():
            overlap[silo] = own & present[known].any(axis=0)
    return overlap


def _with_overlap(planned: Plan, overlap: Presence, chosen: NDArray[np.int64]) -> Plan:
    """The plan without the rows of the overlap that are not chosen."""
    assembled = planned.assembled
    assert assembled is not None
    silo_of, sample_of = np.nonzero(overlap)
    lost = np.zeros_like(overlap)
    lost[silo_of, sample_of] = True
    lost[silo_of[chosen], sample_of[chosen]] = False
    federation = assembled.federation
    places = np.arange(federation.num_samples)
    silos = tuple(
        _with_rows(silo, places, np.where(own, -1, places)) for silo, own in zip(federation.silos, lost, strict=True)
    )
    return plan(planned.config, assembled._replace(federation=replace(federation, silos=silos)))


def _on(planned: Plan, chosen: NDArray[np.int64]) -> Plan:
    """The plan on some of its training samples, in order."""
    federation, count = planned.federation, len(chosen)
    places = np.full(federation.num_samples, -1)
    places[chosen] = np.arange(count)
    silos = tuple(_with_rows(silo, chosen, places) for silo in federation.silos)
    weights = None if federation.weights is None else federation.weights[chosen]
    smaller: Federation = replace(federation, silos=silos, labels=federation.labels[chosen], weights=weights)
    settings = planned.settings
    if settings.minibatches == "full" or settings.batch_size > count:
        settings = replace(settings, batch_size=count)
    return planned._replace(federation=smaller, settings=settings)


def _with_rows(silo: Silo, chosen: NDArray[np.int64], places: NDArray[np.int64]) -> Silo:
    """The silo with these samples only; clients that hold none of them are left out."""
    held = [np.sort(places[rows][places[rows] >= 0]) for rows in silo.rows]
    kept = [client for client, rows in enumerate(held) if len(rows)]
    return replace(
        silo,
        features=silo.features[chosen],
        rows=tuple(held[client] for client in kept),
        clients=tuple(silo.clients[client] for client in kept),
        test_rows=tuple(silo.test_rows[client] for client in kept),
    )
