"""What one number of local steps would take."""

from dataclasses import dataclass

from tdcd.core.ledger import Traffic
from tdcd.planning.cost import Cost


@dataclass(frozen=True)
class Forecast:
    """One Q: the rounds to the target, their bytes and their predicted time."""

    local_steps: int
    safe_step_size: float | None
    """The largest that Theorem 1's proof admits; None for a model without constants."""
    step_size: float
    """With which the pilot run ran."""
    rounds: int | None
    """To the target, by the pilot run; None if it did not get there."""
    simulated: int
    """Rounds that the pilot run took."""
    lowest: float
    """The least loss that it saw."""
    diverged: tuple[float, ...]
    """Step sizes with which it diverged."""
    cost: Cost
    """Of a round."""
    bound_rounds: int | None
    """To the target by Theorem 1, with a step size of its own; None if no loss follows from it."""

    @property
    def failed(self) -> bool:
        """Whether the pilot run diverged with every step size tried."""
        return self.step_size in self.diverged

    @property
    def least_rounds(self) -> int:
        """Rounds to the target, or those that were not enough."""
        return self.simulated if self.rounds is None else self.rounds

    @property
    def traffic(self) -> Traffic:
        """Of all those rounds."""
        return self.cost.ledger.traffic(self.least_rounds, "bytes")

    @property
    def seconds(self) -> float:
        """Their predicted time."""
        return self.cost.seconds * self.least_rounds
