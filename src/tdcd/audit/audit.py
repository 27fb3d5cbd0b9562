"""An audit: every attack against every party's transcript, in every protection mode."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdcd.audit.column_attacks import ColumnAttacks, RecoveryCurve, over_known_rows, over_rounds
from tdcd.audit.label_attacks import label_findings
from tdcd.audit.lines import LINES, AuditFinding
from tdcd.audit.modes import Mode, modes_of, no_slopes
from tdcd.audit.recording import Recording, record
from tdcd.config.resolve import Plan
from tdcd.core.codecs.noise import noise_of
from tdcd.core.variant import Variant
from tdcd.theory.progress import EstimateObserver, EstimateProgress, silent

ROWS = 1000
"""An audit looks at so many training samples at most, drawn by the seed."""
ROUNDS = 60
AS_IT_IS = 32
"""The bits of a number that is sent as it is."""
EPSILON = 1.0


@dataclass(frozen=True, eq=False)
class Audit:
    """The results of an audit."""

    planned: Plan
    rounds: int
    num_rows: int
    modes: list[Mode]
    findings: list[AuditFinding]
    over_rounds: list[RecoveryCurve]
    """Variance explained as a run gets longer."""
    over_known_rows: list[RecoveryCurve]
    """Variance explained as the attacker knows more rows."""
    utilities: list[float | None]
    """Of every mode: AUC, R2 or D2 on held-out samples after these rounds."""

    def worst(self, line: str, mode: Mode) -> AuditFinding | None:
        """The attack that gained most, of those on several silos; None if there is no such attack in this mode."""
        findings = [finding for finding in self.findings if finding.line == line and finding.mode == mode]
        return max(
            findings,
            key=lambda finding: (finding.recovered is not None, finding.gain, finding.recovered or 0),
            default=None,
        )

    def score(self, mode: Mode) -> float | None:
        """What a mode keeps, from 0 to 1: the mean over all lines of 1 less the part of the gap that was closed.

        A line whose party has it by the rules keeps nothing, one that there is not in the mode all. Lines that were not
        tried are not counted; None if there are no others.
        """
        kept = []
        for key in self.lines:
            finding = self.worst(key, mode)
            if finding is None:
                kept.append(1.0)
            elif finding.holds and finding.bound is None:
                kept.append(0.0)
            elif finding.recovered is not None:
                kept.append(1 - min(1.0, finding.gain))
        return sum(kept) / len(kept) if kept else None

    def utility(self, mode: Mode) -> float | None:
        """What the model of a mode is worth."""
        return self.utilities[self.modes.index(mode)]

    def distance(self, mode: Mode) -> float | None:
        """How far a mode is from keeping everything at the utility of the best mode, from 0 to 1.

        Zou et al. 2024, "VFLAIR: a research library and benchmark for vertical federated learning": the Euclidean
        distance to that ideal, with the two counting alike. None if either is not known.
        """
        score, utility = self.score(mode), self.utility(mode)
        if score is None or utility is None:
            return None
        best = max(other for other in self.utilities if other is not None)
        return math.sqrt(((1 - score) ** 2 + min(1.0, best - utility) ** 2) / 2)

    @property
    def lines(self) -> list[str]:
        """The keys of the lines that any mode has."""
        return [line.key for line in LINES if any(finding.line == line.key for finding in self.findings)]


def audit(
    planned: Plan,
    *,
    rounds: int = ROUNDS,
    epsilon: float = EPSILON,
    modes: Sequence[Mode] | None = None,
    observe: EstimateObserver = silent,
) -> Audit:
    """Train some rounds in every mode, and attack what each party saw.

    Args:
        rounds: of every run; a longer run shows an attacker more. With noise on phi, which is for the planned rounds,
            not more than those.
        epsilon: of the modes that randomise labels.
        modes: by default those that fit the federation.
        observe: called after every mode.
    """
    if noise_of(planned.variant.exchange) is not None:
        rounds = min(rounds, planned.config.train.rounds)
    refuse(planned, rounds, epsilon)
    chosen = list(modes_of(planned, epsilon) if modes is None else modes)
    generator = np.random.default_rng(planned.settings.seed)
    total = planned.federation.num_samples
    rows = np.sort(generator.permutation(total)[:ROWS]).astype(np.int64)
    order = generator.permutation(len(rows))
    recordings: dict[Hashable, Recording] = {}
    findings: list[AuditFinding] = []
    for number, mode in enumerate(chosen):
        if mode.training not in recordings:
            recordings[mode.training] = record(mode.planned(planned), mode, rounds, rows)
        of_mode = _play(mode.planned(planned), mode, recordings[mode.training], order)
        findings += of_mode
        worst = max((finding.gain for finding in of_mode if not finding.holds), default=0.0)
        centre = mode.round(planned.federation.num_silos).centre
        name = mode.name if centre is None else f"{mode.name}, labels at one silo"
        observe(EstimateProgress(f"attacks on {name}: best gain", number + 1, len(chosen), worst))
    attacks = [ColumnAttacks(mode.planned(planned), mode, recordings[mode.training], order) for mode in chosen]
    utilities = [recordings[mode.training].utility for mode in chosen]
    curves = over_rounds(attacks), over_known_rows(attacks)
    return Audit(planned, rounds, len(rows), chosen, findings, *curves, utilities)


def _play(planned: Plan, mode: Mode, recording: Recording, order: NDArray[np.intp]) -> list[AuditFinding]:
    columns = ColumnAttacks(planned, mode, recording, order).findings()
    return [*columns, *label_findings(planned, mode, recording, order)]


def refuse(planned: Plan, rounds: int, epsilon: float) -> None:
    """Say why there is nothing to audit."""
    if planned.federation.num_silos < 2:
        raise ValueError(
            "there is one silo, and no other party that could see anything: an audit needs two silos or more"
        )
    algorithm = planned.config.train.algorithm
    if algorithm != "tdcd":
        raise ValueError(
            f"train.algorithm = {algorithm!r}: an audit attacks what the parties of TDCD send each other; leave it out"
        )
    planned.federation.check_complete("an audit")
    if planned.config.train.start is not None:
        raise ValueError(
            f"train.start = {planned.config.train.start!r}: an audit attacks a run from a first block that all know; "
            "leave it out"
        )
    if planned.config.exchange.block_bits < AS_IT_IS:
        raise ValueError(
            f"exchange.block_bits = {planned.config.exchange.block_bits}: an audit takes blocks as they are, which "
            "shows at least as much; leave it out"
        )
    if planned.config.exchange.block_epsilon is not None:
        raise ValueError(
            f"exchange.block_epsilon = {planned.config.exchange.block_epsilon:g}: an audit takes blocks as they are, "
            "which shows at least as much; leave it out"
        )
    if not planned.objective.combine.is_additive:
        raise ValueError(
            f"model.head = {planned.config.model.head!r}: the attacks here read scores that are sums of phi; leave it "
            "out, and an audit of the sum says what phi of the linear part shows"
        )
    if planned.federation.weights is not None:
        raise ValueError(
            "train.class_weights, or weight under [[silos]]: no attack here looks at weights, and with labels at one "
            "silo the others get them as they are; leave them out for the audit"
        )
    if not planned.variant.knowledge.are_labels_everywhere and (problem := no_slopes(planned)):
        raise ValueError(f"labels at one silo: {problem}")
    if planned.config.train.silo_dropout:
        raise ValueError(
            f"train.silo_dropout = {planned.config.train.silo_dropout}: an audit takes phi of every sample, which "
            "shows at least as much; leave it out"
        )
    if problem := _own_wire_form(planned):
        raise ValueError(problem)
    if rounds < 2:
        raise ValueError(f"rounds = {rounds}: an audit needs 2 rounds or more")
    if not epsilon > 0:
        raise ValueError(f"epsilon = {epsilon:g}: it must be a positive number")


def _own_wire_form(planned: Plan) -> str:
    """Why a variant of the user's own cannot be audited: the modes would take the place of what it sends."""
    where, plain = planned.config.train.variant, Variant()
    for name in ("exchange", "client_exchange", "block_exchange") if where is not None else ():
        part = getattr(planned.variant, name)
        if part != getattr(plain, name):
            return (
                f"train.variant = {where!r}: it has {name} = {part}, and an audit knows only what the keys under "
                "[exchange] make of the numbers that are sent; leave that part out"
            )
    return ""
