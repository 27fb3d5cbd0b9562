"""The protection modes that an audit compares."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Linear
from tdcd.config.resolve import Plan
from tdcd.core.codecs.codec import Identity, WholeBlock
from tdcd.core.codecs.encrypted import DEGREE
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.codecs.noise import GaussianNoise, noise_of
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.family.encrypted import EncryptedSlopes
from tdcd.core.family.labels import LabelsAt
from tdcd.core.family.overlap import Overlap
from tdcd.core.knowledge import Knowledge, LabelsEverywhere
from tdcd.core.losses import needs_labels
from tdcd.core.randomized import Response
from tdcd.core.round import Round, Widths, round_of
from tdcd.core.variant import Variant

FEWEST_TO_SUM = 3
"""The sum of two reveals to each of them the other: masks need three silos, summed blocks three clients."""

KNOWN_SLOPES = ("squared", "logistic", "softmax", "poisson", "huber")
"""The losses whose slopes :mod:`tdcd.audit.attacks` can read."""


@dataclass(frozen=True)
class Mode:
    """One way to protect what is sent."""

    name: str
    knowledge: Knowledge = LabelsEverywhere()  # noqa: RUF009  (frozen)
    """Where labels are."""
    bits: int = 32
    """The bits of phi."""
    masked: bool = False
    """Hubs see only the sum of the other silos' phi."""
    blocks_summed: bool = False
    """A hub sees only the weighted sum of its clients' blocks."""
    epsilon: float | None = None
    """Labels are randomised with this epsilon before training."""
    noise: GaussianNoise | None = None
    """Hubs add this to the phi that they send each other."""

    @property
    def is_encrypted(self) -> bool:
        """Whether only the silo with the labels can read slopes."""
        return self.knowledge.encrypted is not None

    @property
    def training(self) -> tuple[Knowledge, int, float | None, GaussianNoise | None]:
        """What changes the numbers that are trained with: masks and sums only change who sees them."""
        return self.knowledge, self.bits, self.epsilon, self.noise

    def variant(self, base: Variant) -> Variant:
        """The member of the family that trains in this mode."""
        inside = Identity() if self.bits == 32 else Quantised(self.bits)
        # Slopes are of this round's blocks.
        timing = base.timing if self.knowledge.are_labels_everywhere else Overlap()
        parts: dict[str, Any] = {
            "exchange": inside if self.noise is None else self.noise,
            "client_exchange": inside,
            "block_exchange": WholeBlock(),
            "timing": timing,
        }
        return replace(base, knowledge=self.knowledge, **parts)

    def planned(self, base: Plan) -> Plan:
        """The plan as it would be in this mode: with encrypted slopes the column of ones is where the labels are."""
        silo, federation = self.knowledge.scored_at(0), base.federation
        if not self.is_encrypted or base.config.bias_silo in (None, silo):
            return base
        silos = [*federation.silos]
        silos[base.config.bias_silo] = silos[base.config.bias_silo].without_ones()
        silos[silo] = silos[silo].with_ones()
        return base._replace(federation=replace(federation, silos=tuple(silos)))

    def round(self, num_silos: int) -> Round:
        """What parties send each other in this mode, masks and sums of blocks included."""
        parts: dict[str, Any] = {"exchange": FixedPoint(terms=num_silos)} if self.masked else {}
        if self.blocks_summed:
            parts["block_exchange"] = FixedBlocks()
        return round_of(replace(self.variant(Variant()), **parts), num_silos, Widths(1, 1))


def modes_of(planned: Plan, epsilon: float) -> list[Mode]:
    """The modes that fit a federation: with labels everywhere, then with labels at one silo."""
    silos = planned.federation.silos
    everywhere, at_one = LabelsEverywhere(), LabelsAt(planned.variant.knowledge.scored_at(0))
    has_classes = planned.objective.kind.target != "amount"
    modes: list[Mode] = []
    for at in (everywhere,) if no_slopes(planned) else (everywhere, at_one):
        modes.append(Mode("plain", at))
        if len(silos) >= FEWEST_TO_SUM:
            modes.append(Mode("masked", at, masked=True))
        if at.are_labels_everywhere:
            modes += [Mode("8 bits", bits=8), Mode("4 bits", bits=4)]
        if max(silo.num_clients for silo in silos) >= FEWEST_TO_SUM:
            modes.append(Mode("blocks summed", at, blocks_summed=True))
        if not at.are_labels_everywhere and _can_encrypt(planned):
            modes.append(Mode("encrypted slopes", EncryptedSlopes(at.scored_at(0))))
        if has_classes:
            modes.append(Mode(f"label DP, ε\u00a0=\u00a0{epsilon:g}", at, epsilon=epsilon))
        noise = noise_of(planned.variant.exchange)
        if noise is not None:
            modes.append(Mode(f"noise on phi, ε\u00a0=\u00a0{planned.config.exchange.epsilon:g}", at, noise=noise))
    return modes if any(is_configured(mode, planned) for mode in modes) else [_configured(planned), *modes]


def _can_encrypt(planned: Plan) -> bool:
    """Whether slopes can be encrypted here: of linear blocks, where a round is one step on a minibatch."""
    settings, are_linear = planned.settings, all(type(block) is Linear for block in planned.blocks)
    batch_size = settings.effective_batch_size(planned.federation.num_samples)
    mode = Mode("encrypted slopes", EncryptedSlopes(planned.variant.knowledge.scored_at(0)))
    clashes = mode.variant(planned.variant).clashes(planned.federation.num_silos, planned.objective.combine)
    return (
        find_spec("tenseal") is not None
        and are_linear
        and settings.local_steps == 1
        and batch_size <= DEGREE
        and not clashes
    )


def no_slopes(planned: Plan) -> str:
    """Why no mode has labels at one silo; empty if there are such modes."""
    loss = planned.objective.kind
    return needs_labels(loss) or (
        "" if loss.name in KNOWN_SLOPES else f"no attack knows what slopes of {loss.name} reveal"
    )


def _configured(planned: Plan) -> Mode:
    """What the configuration asks for, if it is several protections at once."""
    exchange, epsilon = planned.config.exchange, planned.config.federation.label_epsilon
    return Mode(
        "as configured",
        planned.variant.knowledge,
        exchange.phi_bits,
        exchange.protect == "mask",
        exchange.protect_blocks,
        epsilon,
        noise_of(planned.variant.exchange),
    )


def is_configured(mode: Mode, planned: Plan) -> bool:
    """Whether the configuration asks for this mode."""
    exchange, federation = planned.config.exchange, planned.config.federation
    asked = (
        planned.variant.knowledge,
        exchange.phi_bits,
        exchange.protect == "mask",
        exchange.protect_blocks,
        federation.label_epsilon,
        noise_of(planned.variant.exchange),
    )
    return asked == (mode.knowledge, mode.bits, mode.masked, mode.blocks_summed, mode.epsilon, mode.noise)


def group_of(mode: Mode, planned: Plan) -> str:
    """Who has labels, in words."""
    centre = mode.round(planned.federation.num_silos).centre
    return "labels everywhere" if centre is None else f"labels at {planned.federation.silos[centre].name}"


def randomised(labels: NDArray[np.generic], epsilon: float, seed: int) -> NDArray[np.generic]:
    """Randomised response to every label; a simulation's own draw, which anybody with the seed could repeat."""
    classes = np.unique(labels)
    generator = np.random.default_rng(seed)
    kept = generator.random(len(labels)) < Response.of(epsilon, len(classes)).keep
    other = generator.integers(1, max(len(classes), 2), len(labels))
    changed = classes[(np.searchsorted(classes, labels) + other) % len(classes)]
    return np.where(kept, labels, changed).astype(labels.dtype)
