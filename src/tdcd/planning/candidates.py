"""Ways to spend less time on waiting and on messages: overlap, periods of slow silos, and bits of phi."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from tdcd.config.resolve import Plan
from tdcd.core.codecs.codec import Identity
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.timing import Overlap

OVERLAPS = (0, 1, 2, 4)
BITS = (32, 8, 4)
AS_IT_IS, FEWEST = max(BITS), min(BITS)


class Candidate(NamedTuple):
    """One way."""

    overlap: int
    """D."""
    periods: tuple[int, ...]
    """m of each silo."""
    phi_bits: int

    @property
    def timing(self) -> Overlap:
        """As a part of the variant."""
        return Overlap(self.overlap, self.periods if max(self.periods) > 1 else ())

    def is_simpler(self, other: "Candidate") -> bool:
        """Whether it is closer to Algorithm 1 in something, and in nothing further from it."""
        pairs = zip(self.periods, other.periods, strict=True)
        closer = self.overlap <= other.overlap and self.phi_bits >= other.phi_bits and all(m <= n for m, n in pairs)
        return closer and self != other

    def applied(self, planned: Plan) -> Plan:
        """The plan with this overlap, these periods and these bits."""
        if planned.config.exchange.protect == "mask":
            return planned._replace(variant=replace(planned.variant, timing=self.timing))
        exchange = Identity() if self.phi_bits == AS_IT_IS else Quantised(self.phi_bits)
        variant = replace(planned.variant, timing=self.timing, exchange=exchange, client_exchange=exchange)
        return planned._replace(variant=variant)

    def in_words(self, silos: Sequence[str]) -> str:
        """Such as ``overlap = 1, lab: period = 4``; ``silos`` are the names."""
        changes = [f"overlap = {self.overlap}"] * (self.overlap > 0)
        changes += [f"{name}: period = {m}" for name, m in zip(silos, self.periods, strict=True) if m > 1]
        changes += [f"phi_bits = {self.phi_bits}"] * (self.phi_bits < AS_IT_IS)
        return ", ".join(changes) or "in step, as it is"


def own_candidate(planned: Plan) -> Candidate:
    """What the configuration says."""
    silos = range(planned.federation.num_silos)
    timing = planned.variant.timing
    return Candidate(timing.depth, tuple(timing.period(silo) for silo in silos), planned.config.exchange.phi_bits)


def find_candidates(planned: Plan, slower: Mapping[str, float]) -> list[Candidate]:
    """All combinations that go with the configuration, the simplest first; its own is among them.

    Args:
        slower: how many times longer the clients of a silo compute, by its name.
    """
    own, config = own_candidate(planned), planned.config
    count, names = planned.federation.num_silos, [silo.name for silo in planned.federation.silos]
    rounds = config.train.rounds or max(OVERLAPS) + 1
    # A client that is away has sent phi of later rounds: neither goes with the grace period.
    # With labels at one silo slopes are of this round, in full.
    is_free = count > 1 and config.federation.labels is None
    may_be_late = is_free and config.federation.client_grace_s is None
    overlaps = {own.overlap, *(depth for depth in OVERLAPS if may_be_late and depth < rounds), 0}
    times = [slower.get(name, 1.0) for name in names]
    periods = {own.periods, (1,) * count}
    if may_be_late:
        periods.add(tuple(min(rounds, max(1, round(each / min(times)))) for each in times))
    # Nobody who asks for float64 is served with the fewest bits.
    bits = {own.phi_bits, *(each for each in BITS if is_free and (each > FEWEST or config.dtype == "float32"))}
    # Masks take up all bits.
    bits = {AS_IT_IS} if config.exchange.protect == "mask" else {*bits, AS_IT_IS}
    return [
        Candidate(depth, own_periods, each)
        for own_periods, depth, each in product(sorted(periods), sorted(overlaps), sorted(bits, reverse=True))
    ]
