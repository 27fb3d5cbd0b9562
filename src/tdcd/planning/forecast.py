"""What one number of local steps would take."""

from dataclasses import dataclass

from tdcd.core.ledger import Traffic
from tdcd.pages.kit.words import rounded_down
from tdcd.planning.cost import Cost


@dataclass(frozen=True)
class Forecast:
    """One Q: the rounds to the target, their bytes and their predicted time."""

    local_steps: int
    safe_step_size: float | None
    """The largest that Theorem 1's proof admits; None for a model without constants."""
    step_size: float
    """The pilot run's."""
    rounds: int | None
    """To the target, by the pilot run; None if it did not get there."""
    simulated: int
    """Rounds that the pilot run took."""
    lowest: float
    """The lowest loss that it reached."""
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
    def warning(self) -> str | None:
        """A sentence if the pilot run's step size is larger than the safe one, and by how much; else None."""
        safe = self.safe_step_size
        if safe is None or self.step_size <= safe:
            return None
        return (
            f"Warning: step_size = {rounded_down(self.step_size)} is {self.step_size / safe:.3g} times the safe one of "
            f"Q = {self.local_steps}, {rounded_down(safe)}. The pilot run says that it works; Theorem 1 does not. "
            f"With step_size = {rounded_down(safe)} or less it does."
        )

    @property
    def traffic(self) -> Traffic:
        """Of all those rounds."""
        return self.cost.ledger.traffic(self.least_rounds, "bytes")

    @property
    def seconds(self) -> float:
        """Their predicted time."""
        return self.cost.after(self.least_rounds)
