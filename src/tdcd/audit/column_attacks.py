"""The attacks on columns, played against one recording; also of more and more rounds and known rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tdcd.audit.attacks import (
    TINY,
    chance_above,
    features_of,
    found_in_groups,
    rows_by_inverse,
    rows_by_known_rows,
    rows_by_regression,
    rows_of_block,
    rows_of_linear,
    told_apart,
    variance_explained,
)
from tdcd.audit.lines import AuditFinding
from tdcd.audit.modes import Mode
from tdcd.audit.recording import Floats, Recording
from tdcd.audit.transcripts import Transcript, of_client, of_hub, of_own_hub
from tdcd.blocks import Linear
from tdcd.config.resolve import Plan
from tdcd.core.round import Round
from tdcd.federation.silos import Silo

MOST_SILOS = 3
"""So many silos at most are attacked one by one."""
MOST_MOMENTS, MOST_ROWS = 12, 128
"""Limits of an attack on blocks that are not linear, which costs more."""
MORE_THAN_COLUMNS, MORE_THAN_ALL = 2, 4
"""Known rows beyond the number of columns."""
FEWEST_LEFT = 10
"""Rows that must be left to attack."""
MOST_LEARNED = 256
"""Rows of its own that an attacker who learns an inverse has at most; half of all, if there are fewer."""
GROUP, GROUPS = 16, 400
"""Rows of a group whose property is attacked, and how many groups are drawn."""


@dataclass(frozen=True, eq=False)
class ColumnAttacks:
    """One mode's recording, and all attacks on columns."""

    planned: Plan
    mode: Mode
    recording: Recording
    order: NDArray[np.intp]
    """``[R]``: known rows are taken from its beginning."""

    @cached_property
    def round(self) -> Round:
        """What parties send each other."""
        return self.mode.round(self.planned.federation.num_silos)

    def findings(self) -> Iterator[AuditFinding]:
        """All of them, silo by silo."""
        federation, flows = self.planned.federation, self.round
        silos, count = range(min(federation.num_silos, MOST_SILOS)), federation.num_silos
        for silo in silos:
            yield self.own_hub(silo)
        for silo in silos:
            receivers = flows.receivers("phi", silo)
            if receivers:
                following = (silo + 1) % count
                yield from self._by_hub(following if following in receivers else receivers[0], silo)
        scoring = flows.centre
        if flows.encrypted is not None:
            # What the others get has nothing of the label silo that they could read.
            return
        if scoring is not None:
            observer = (scoring + 1) % count
            seen = self.seen_by(observer, scoring)
            yield self.regression("slopes to columns", seen, observer, scoring)
        for silo in silos if scoring is None else [scoring]:
            observer = (silo + 1) % count
            client = of_client(self.recording, federation, flows, observer, self.planned.objective.kind.name)
            yield self.regression("client", client, observer, silo)

    def _by_hub(self, observer: int, silo: int) -> Iterator[AuditFinding]:
        seen = self.seen_by(observer, silo)
        yield self.two_rows(seen, silo)
        yield self.first_block(seen, silo)
        yield self.few_known_rows(seen, observer, silo)
        yield self.regression("known rows", seen, observer, silo)
        yield from self.learned(seen, observer, silo)
        yield self._score(seen, silo)
        rivals = [other for other in range(self.planned.federation.num_silos) if other not in (silo, observer)]
        if rivals:
            yield self._split(seen, observer, silo, rivals[0])

    def seen_by(self, observer: int, silo: int) -> Transcript:
        """What another hub sees of a silo."""
        loss = self.planned.objective.kind.name
        return of_hub(self.recording, self.planned.federation, self.round, observer, silo, loss)

    def own_hub(self, silo: int) -> AuditFinding:
        """A silo's own hub."""
        seen = of_own_hub(self.recording, self.planned.federation, silo)
        return self._inverted("own hub", seen, silo, list(range(len(self.recording.moments))))

    def first_block(self, seen: Transcript, silo: int) -> AuditFinding:
        """Another hub, from round 0 alone: of a sum, it takes what the other silos add for noise."""
        zero = [t for t, moment in enumerate(self.recording.moments) if moment.round == 0]
        blocks = replace(seen, blocks=self.recording.blocks[silo])
        others = [self.recording.between[other][:, zero] for other in seen.summed if other != silo]
        spread = np.sqrt(np.sum([np.nanvar(phi) for phi in others])) if others else 0.0
        noise = seen.noise.copy()
        noise[zero] += spread
        return self._inverted("first block", replace(blocks, noise=noise), silo, zero)

    def two_rows(self, seen: Transcript, silo: int) -> AuditFinding:
        """Another hub that knows the blocks, and two rows of which one is the sample's.

        What the other silos add to a sum counts as noise, whose mean and spread are known.
        """
        expected, deviation = self._expected(silo), np.repeat(seen.noise[None], len(seen.rows), axis=0)
        phi, others = seen.phi, [self.recording.between[other] for other in seen.summed if other != silo]
        variance = deviation**2 / np.maximum(self.recording.times, 1)
        if others:
            summed = np.sum(others, axis=0)
            variance += np.nanvar(summed, axis=0).mean(axis=-1)
            phi = phi - np.nanmean(summed, axis=0)
        precision = np.where(self.recording.times > 0, 1 / np.maximum(variance, TINY), 0)
        finding = self._finding("two rows", seen, silo, np.empty(0), 0.5)
        return replace(
            finding, measure="accuracy", recovered=told_apart(phi, expected, precision), bound=self._bound_of_two_rows
        )

    def _expected(self, silo: int) -> Floats:
        """``[R, T, C]``: phi of every row by the block of every moment, as a hub sends it but for noise."""
        rows = self.planned.federation.silos[silo].features[self.recording.rows].astype(self.planned.settings.dtype)
        noise, of_block = self.mode.noise, jax.jit(self.planned.blocks[silo].phi)
        with jax.enable_x64(self.planned.settings.dtype == "float64"):
            phis = [of_block(block, jnp.asarray(rows)) for block in self.recording.blocks[silo]]
            phis = phis if noise is None else [noise.clipped(phi) for phi in phis]
        return np.stack([np.asarray(phi, np.float64) for phi in phis], axis=1)

    @property
    def _bound_of_two_rows(self) -> float | None:
        """How often a guess between two rows is right at most, by what the messages so far have spent."""
        noise = self.mode.noise
        if noise is None:
            return None
        per_round = self.planned.settings.num_exchanged
        spent = noise.epsilon(sum(1 if moment.evaluation else per_round for moment in self.recording.moments))
        return None if spent is None else 1 - (1 - noise.delta) / (1 + math.exp(spent))

    def _inverted(self, line: str, seen: Transcript, silo: int, moments: list[int]) -> AuditFinding:
        """Rows from phi whose blocks are known."""
        assert seen.blocks is not None
        block, columns = self.planned.blocks[silo], self._columns(silo)
        shape = self.planned.federation.silos[silo].feature_shape
        mean, spread = columns.mean(axis=0), columns.std(axis=0)
        if isinstance(block, Linear):
            thetas = np.stack([np.asarray(seen.blocks[t]["weight"], np.float64) for t in moments])
            recovered = rows_of_linear(seen.phi[:, moments], thetas, seen.noise[moments], mean, spread)
            return self._finding(line, seen, silo, variance_explained(columns, recovered))
        chosen = [moments[at] for at in np.unique(np.linspace(0, len(moments) - 1, MOST_MOMENTS).astype(int))]
        phi, blocks = seen.phi[:MOST_ROWS, chosen], [seen.blocks[t] for t in chosen]
        recovered = rows_of_block(phi, blocks, block.phi, seen.noise[chosen], mean, spread, shape)
        return self._finding(line, seen, silo, variance_explained(columns[:MOST_ROWS], recovered))

    def few_known_rows(self, seen: Transcript, observer: int, silo: int) -> AuditFinding:
        """Another hub that knows about as many rows as a linear silo has columns."""
        columns, line = self._columns(silo), "few known rows"
        known, rest = self._known(columns.shape[1] + MORE_THAN_COLUMNS, seen.rows)
        if not isinstance(self.planned.blocks[silo], Linear):
            return self._not_played(line, seen, silo, "it solves for a linear block, and this one is not linear")
        if len(rest) < FEWEST_LEFT:
            return self._too_few(line, seen, silo, len(known))
        mean, spread = columns.mean(axis=0), columns.std(axis=0)
        recovered = rows_by_known_rows(seen.phi, known, columns[known], seen.noise, mean, spread)
        explained = variance_explained(columns[rest], recovered[rest])
        return self._finding(line, seen, silo, explained, self._guess(observer, silo, known, rest), len(known))

    def regression(
        self, line: str, seen: Transcript, observer: int, silo: int, count: int | None = None
    ) -> AuditFinding:
        """A party that knows ``count`` rows; by default four more than all silos but its own have columns.

        Where rows are rarely seen at the same moment, a linear silo's phi is solved for its blocks instead, with as
        many more known rows as it takes to see enough of them at a time; a sum of several silos cannot be.
        """
        sizes = [prod(each.feature_shape) for each in self.planned.federation.silos]
        enough = sum(sizes) - sizes[observer] + MORE_THAN_ALL if count is None else count
        known, rest = self._known(enough, seen.rows)
        together = int((~np.isnan(seen.phi[known]).any(axis=(0, 2))).sum())
        is_rare = count is None and together * seen.phi.shape[2] < sizes[silo]
        if is_rare and (len(seen.summed) > 1 or not isinstance(self.planned.blocks[silo], Linear)):
            why = f"it needs {sizes[silo]} moments at which all known rows are seen, and there are {together}"
            return self._not_played(line, seen, silo, why)
        if is_rare:
            times = (~np.isnan(seen.phi[..., 0])).sum(axis=0)
            enough = int(enough * len(seen.rows) / max(1.0, float(np.median(times[times > 0]))))
            known, rest = self._known(enough, seen.rows)
        if len(rest) < FEWEST_LEFT:
            return self._too_few(line, seen, silo, enough)
        columns = self._columns(silo)[seen.rows]
        if is_rare:
            mean, spread = columns.mean(axis=0), columns.std(axis=0)
            recovered = rows_by_known_rows(seen.phi, known, columns[known], seen.noise, mean, spread)
        else:
            recovered = rows_by_regression(features_of(seen.phi, seen.noise, known), known, columns[known])
        explained = variance_explained(columns[rest], recovered[rest])
        guess = self._guess(observer, silo, seen.rows[known], seen.rows[rest])
        return self._finding(line, seen, silo, explained, guess, len(known))

    def learned(self, seen: Transcript, observer: int, silo: int) -> Iterator[AuditFinding]:
        """A party that has half of the rows, and learns on them what phi says of columns, and of groups of rows.

        It goes by phi and its own columns; the guess, by its own columns alone.
        """
        known, rest = self._known(min(MOST_LEARNED, len(seen.rows) // 2), seen.rows)
        lines = "inverse", "property"
        # Of as many rows as a group has, all groups are the same.
        if len(rest) <= GROUP:
            why = f"it needs {2 * GROUP + 1} rows, and the audit looks at {len(seen.rows)} that this party sees"
            yield from (self._not_played(line, seen, silo, why) for line in lines)
            return
        phi, own = features_of(seen.phi, seen.noise, known), self._own(observer)
        if not phi.shape[1]:
            why = f"there is no moment at which all of {len(known)} known rows are seen"
            yield from (self._not_played(line, seen, silo, why) for line in lines)
            return
        columns = self._columns(silo)
        level, explained, areas = columns[known].mean(axis=0), [], []
        for features in (np.hstack([phi, own]), own):
            estimates, error = rows_by_inverse(features, known, columns[known])
            explained.append(variance_explained(columns[rest], estimates[rest]))
            areas.append(self._areas(chance_above(estimates[rest], error, level), columns[rest] > level))
        yield self._finding("inverse", seen, silo, explained[0], _mean(explained[1]), len(known))
        finding = self._finding("property", seen, silo, areas[0], _mean(areas[1]), len(known))
        yield replace(finding, measure="AUC")

    def _areas(self, estimates: Floats, holds: NDArray[np.bool_]) -> Floats:
        """Per column, how well groups with many rows above the mean are found; nan where the column is constant."""
        generator = np.random.default_rng(self.planned.settings.seed)
        groups = np.array([generator.choice(len(holds), GROUP, replace=False) for _ in range(GROUPS)])
        pairs = zip(estimates[groups].mean(axis=1).T, holds[groups].mean(axis=1).T, strict=True)
        return np.where(holds.any(axis=0), [found_in_groups(*pair) for pair in pairs], np.nan)

    def _score(self, seen: Transcript, silo: int) -> AuditFinding:
        """A silo's own phi in the last round."""
        true = self.recording.to_hub[silo][:, -1]
        return self._of_phi("score", seen, silo, true, seen.phi[:, -1] / len(seen.summed))

    def _split(self, seen: Transcript, observer: int, silo: int, rival: int) -> AuditFinding:
        """Phi of two silos, compared; from a sum, as if they shared it by their numbers of columns."""
        phi = self.recording.to_hub
        true = phi[silo][:, -1] - phi[rival][:, -1]
        if len(seen.summed) == 1:
            recovered = seen.phi[:, -1] - self.seen_by(observer, rival).phi[:, -1]
        else:
            sizes = [prod(each.feature_shape) for each in self.planned.federation.silos]
            share = (sizes[silo] - sizes[rival]) / sum(sizes[other] for other in seen.summed)
            recovered = seen.phi[:, -1] * share
        return self._of_phi("split", seen, silo, true, recovered)

    def _of_phi(self, line: str, seen: Transcript, silo: int, true: Floats, recovered: Floats) -> AuditFinding:
        there = ~np.isnan(true + recovered).any(axis=1)
        finding = self._finding(line, seen, silo, np.empty(0))
        return replace(finding, recovered=_mean(variance_explained(true[there], recovered[there])))

    def _guess(self, observer: int, silo: int, known: NDArray[np.intp], rest: NDArray[np.intp]) -> float:
        """What the same known rows give without a transcript: a regression on the attacker's own columns and labels."""
        columns = self._columns(silo)
        predicted = rows_by_regression(self._own(observer), known, columns[known])
        return _mean(variance_explained(columns[rest], predicted[rest]))

    def _own(self, observer: int) -> Floats:
        """The attacker's own columns, and the labels if it has them."""
        own = self._columns(observer)
        spread = own.std(axis=0)
        own = own / np.where(spread > 0, spread, 1)
        if self.round.scored_at(observer) == observer:
            own = np.column_stack([own, self.recording.labels])
        return own

    def _known(self, count: int, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The places of known rows among ``rows``, and of the others."""
        order = np.flatnonzero(np.isin(self.order, rows))
        places = np.searchsorted(rows, self.order[order])
        return places[:count], places[count:]

    def _columns(self, silo: int) -> Floats:
        features: Any = self.planned.federation.silos[silo].features[self.recording.rows]
        flat: Floats = features.reshape(len(features), -1).astype(np.float64)
        return flat

    def _finding(
        self, line: str, seen: Transcript, silo: int, explained: Floats, guess: float = 0.0, known: int = 0
    ) -> AuditFinding:
        home = self.planned.federation.silos[silo]
        names = column_names(home)
        columns = {name: float(value) for name, value in zip(names, explained, strict=False) if not np.isnan(value)}
        recovered = _mean(explained) if columns else None
        return AuditFinding(
            line,
            self.mode,
            seen.party,
            home.name,
            seen.sees,
            "variance explained",
            recovered,
            guess,
            columns,
            None,
            known,
        )

    def _not_played(self, line: str, seen: Transcript, silo: int, why: str) -> AuditFinding:
        name = self.planned.federation.silos[silo].name
        return AuditFinding(line, self.mode, seen.party, name, seen.sees, why_not=why)

    def _too_few(self, line: str, seen: Transcript, silo: int, known: int) -> AuditFinding:
        why = f"it needs {known} known rows, and the audit looks at {len(seen.rows)} that this party sees"
        return self._not_played(line, seen, silo, why)


def column_names(silo: Silo) -> list[str]:
    """The names of a silo's features; pixels are numbered."""
    return list(silo.columns) or [f"pixel {index + 1}" for index in range(prod(silo.feature_shape))]


def _mean(explained: Floats) -> float:
    return float(np.nanmean(explained)) if not np.isnan(explained).all() else 0.0


POINTS = 10


@dataclass(frozen=True)
class RecoveryCurve:
    """A curve of variance explained."""

    label: str
    x: list[int]
    y: list[float]


def over_rounds(attacks: Sequence[ColumnAttacks]) -> list[RecoveryCurve]:
    """The first silo with labels everywhere: by its own hub, and by another hub with known rows."""
    plain = _first(attacks, masked=False)
    if plain is None:
        return []
    last = plain.recording.moments[-1].round + 1
    rounds = sorted({int(count) for count in np.geomspace(2, last, POINTS).round()})
    chosen = {"own hub": plain, "another hub, known rows": plain}
    masked = _first(attacks, masked=True)
    if masked is not None:
        chosen["another hub, known rows, masked"] = masked
    curves = []
    for label, attack in chosen.items():
        shares = [_recovered(label, replace(attack, recording=_until(attack.recording, count))) for count in rounds]
        curves.append(RecoveryCurve(label, rounds, shares))
    return curves


def over_known_rows(attacks: Sequence[ColumnAttacks]) -> list[RecoveryCurve]:
    """Another hub, with labels everywhere: as it is, masked, and the guess without a transcript."""
    plain, masked = _first(attacks, masked=False), _first(attacks, masked=True)
    if plain is None:
        return []
    sizes = [prod(silo.feature_shape) for silo in plain.planned.federation.silos]
    most = min(int(1.5 * (sum(sizes) - sizes[1])) + 4, len(plain.order) - FEWEST_LEFT)
    counts = sorted({int(count) for count in np.linspace(3, max(most, 3), POINTS + 4).round()})
    curves, guesses = [], []
    for label, attack in (("phi of the silo", plain), ("masked: the sum of all others", masked)):
        if attack is None:
            continue
        findings = [attack.regression("known rows", attack.seen_by(1, 0), 1, 0, count) for count in counts]
        curves.append(RecoveryCurve(label, counts, [finding.recovered or 0.0 for finding in findings]))
        guesses = [finding.guess for finding in findings]
    return [*curves, RecoveryCurve("guess without the transcript", counts, guesses)]


def _first(attacks: Sequence[ColumnAttacks], *, masked: bool) -> ColumnAttacks | None:
    wanted = (
        attack for attack in attacks if attack.mode.training == Mode("plain").training and attack.mode.masked == masked
    )
    return next(wanted, None)


def _recovered(label: str, attack: ColumnAttacks) -> float:
    finding = attack.own_hub(0) if label == "own hub" else attack.regression("known rows", attack.seen_by(1, 0), 1, 0)
    return finding.recovered or 0.0


def _until(recording: Recording, rounds: int) -> Recording:
    """The same, but only its first rounds."""
    count = sum(moment.round < rounds for moment in recording.moments)
    return replace(
        recording,
        moments=recording.moments[:count],
        blocks=[blocks[:count] for blocks in recording.blocks],
        to_hub=[phi[:, :count] for phi in recording.to_hub],
        between=[phi[:, :count] for phi in recording.between],
        to_clients=[sent[:, :count] for sent in recording.to_clients],
        noise=[noise[:count] for noise in recording.noise],
        noise_between=[noise[:count] for noise in recording.noise_between],
        times=recording.times[:, :count],
    )
