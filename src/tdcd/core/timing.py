"""When a silo's phi is sent, and how often its block moves."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tdcd.core.lazy import Array, jnp


class Timing(Protocol):
    """Which round's block the phi comes from that the other silos step on, and which rounds a silo steps in."""

    @property
    def depth(self) -> int:
        """The largest age of a block, in rounds; this many of a hub's blocks are kept."""
        ...

    def age(self, silo: int, round_index: Array) -> Any:
        """How many rounds old the block of ``silo`` is whose phi the others use: from 0 to :attr:`depth`, and never
        older than round 0.
        """
        ...

    def period(self, silo: int) -> int:
        """m: the silo steps in rounds 0, m, 2m ... with a step m times as large, and its block moves m rounds later."""
        ...


@runtime_checkable
class HubTiming(Protocol):
    """A timing as real hubs follow it: who sends phi of which rounds when."""

    @property
    def rounds(self) -> int:
        """D: by how many rounds phi may be sent before it is used."""
        ...

    @property
    def longest_period(self) -> int:
        """The largest m."""
        ...

    def period(self, silo: int) -> int:
        """The period m of a silo."""
        ...

    def steps_in(self, silo: int, round_index: int) -> bool:
        """Whether a silo begins local steps in a round."""
        ...

    def sends(self, silo: int, round_index: int) -> range:
        """The rounds whose phi a silo sends in this one, with the block that it begins this one with."""
        ...

    def sent_in(self, silo: int, round_index: int) -> int:
        """The round in which a silo sends phi of this one: that of the block that it comes from."""
        ...


@dataclass(frozen=True)
class Followed:
    """Any timing as real hubs follow it: phi of round r is sent ``age`` rounds before r."""

    timing: Timing
    num_silos: int

    @property
    def rounds(self) -> int:
        """The largest age."""
        return self.timing.depth

    @property
    def longest_period(self) -> int:
        """The largest m."""
        return max(self.timing.period(silo) for silo in range(self.num_silos))

    def period(self, silo: int) -> int:
        """The period m of a silo."""
        return self.timing.period(silo)

    def steps_in(self, silo: int, round_index: int) -> bool:
        """Whether a silo begins local steps in a round."""
        return round_index % self.period(silo) == 0

    def sends(self, silo: int, round_index: int) -> range:
        """Consecutive rounds, since a later round's phi is never sent before an earlier one's."""
        last = round_index + self.rounds + self.longest_period
        sent = [later for later in range(round_index, last + 1) if self.sent_in(silo, later) == round_index]
        return range(sent[0], sent[-1] + 1) if sent else range(0)

    def sent_in(self, silo: int, round_index: int) -> int:
        """The last round before that in which the silo stepped, and whose block is old enough."""
        age, period = int(self.timing.age(silo, jnp.asarray(round_index))), self.period(silo)
        return max(0, (round_index - age) // period * period)


def followed(timing: Timing, num_silos: int) -> HubTiming:
    """The timing as real hubs follow it."""
    return timing if isinstance(timing, HubTiming) else Followed(timing, num_silos)
