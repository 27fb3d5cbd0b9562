"""How much an attacker recovers from longer runs, and with more known rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tdcd.audit.column_attacks import FEWEST_LEFT, ColumnAttacks
from tdcd.audit.modes import Mode
from tdcd.audit.recording import Recording

POINTS = 10


@dataclass(frozen=True)
class Sweep:
    """A curve of variance explained."""

    label: str
    x: list[int]
    y: list[float]


def over_rounds(attacks: Sequence[ColumnAttacks]) -> list[Sweep]:
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
        found = [_recovered(label, replace(attack, recording=_until(attack.recording, count))) for count in rounds]
        curves.append(Sweep(label, rounds, found))
    return curves


def over_known_rows(attacks: Sequence[ColumnAttacks]) -> list[Sweep]:
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
        found = [attack.regression("known rows", attack.seen_by(1, 0), 1, 0, count) for count in counts]
        curves.append(Sweep(label, counts, [one.recovered or 0.0 for one in found]))
        guesses = [one.guess for one in found]
    return [*curves, Sweep("guess without the transcript", counts, guesses)]


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
    )
