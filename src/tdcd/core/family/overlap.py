"""Overlapped rounds and slow silos: phi is sent D rounds before it is used, and a silo steps every m rounds."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tdcd.core.lazy import Array, jnp


@dataclass(frozen=True)
class Overlap:
    """In round r all silos step on the others' phi with their blocks of round r - D; slow silos step every m rounds.

    A silo can send phi of a later round's minibatches, since everybody can draw them. While it computes, what it sent
    travels; it waits only for a silo that is more than D rounds behind.

    >>> Overlap(2).sends(0, 5), Overlap(2).sends(0, 0)
    (range(7, 8), range(0, 3))
    >>> slow = Overlap(1, (4, 1))
    >>> [[*slow.sends(0, r)] for r in range(5)]
    [[0, 1, 2, 3, 4], [], [], [], [5, 6, 7, 8]]
    >>> [slow.sent_in(0, r) for r in range(9)]
    [0, 0, 0, 0, 0, 4, 4, 4, 4]
    """

    rounds: int = 0
    """D; 0, as in Algorithm 1, is this round's phi."""
    periods: tuple[int, ...] = ()
    """m of each silo; empty if all are 1."""
    covered_as: ClassVar[tuple[str, ...]] = ("timing",)

    def __post_init__(self) -> None:
        """Refuse what no federation could follow."""
        if self.rounds < 0 or min(self.periods, default=1) < 1:
            raise ValueError(f"rounds overlap by 0 or more, and periods are 1 or more, not {self}")

    @property
    def depth(self) -> int:
        """D."""
        return self.rounds

    def age(self, silo: int, round_index: Array) -> Any:
        """D, or as many rounds as there were."""
        return jnp.minimum(round_index, self.rounds)

    def period(self, silo: int) -> int:
        """The period m of a silo."""
        return self.periods[silo] if self.periods else 1

    @property
    def longest_period(self) -> int:
        """The largest m."""
        return max(self.periods, default=1)

    def steps_in(self, silo: int, round_index: int) -> bool:
        """Whether a silo begins local steps in a round."""
        return round_index % self.period(silo) == 0

    def sends(self, silo: int, round_index: int) -> range:
        """The rounds whose phi a silo sends in this one, with the block that it begins this one with."""
        if not self.steps_in(silo, round_index):
            return range(0)
        first = round_index + self.rounds
        return range(first if round_index else 0, first + self.period(silo))

    def sent_in(self, silo: int, round_index: int) -> int:
        """The round in which a silo sends phi of this one: that of the block that it comes from."""
        period = self.period(silo)
        return max(0, (round_index - self.rounds) // period * period)
