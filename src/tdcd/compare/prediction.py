"""What a plan's rounds would take on a network."""

from collections.abc import Mapping
from dataclasses import dataclass

from tdcd.compare.compute import Compute
from tdcd.config.resolve import Plan
from tdcd.core.ledger import Ledger
from tdcd.core.network import Network
from tdcd.core.pace import Work, round_ends, seconds_per_round, silo_works
from tdcd.core.timing import Overlap, Timing


@dataclass(frozen=True)
class Prediction:
    """The pace of every silo, and who waits for whom."""

    works: tuple[Work, ...]
    overlap: Overlap

    @property
    def seconds_per_round(self) -> float:
        """What a round takes in the long run."""
        return seconds_per_round(self.works, self.overlap)

    def ends(self, rounds: int) -> list[float]:
        """When each of the first rounds is over, from round 0, which is the start."""
        return round_ends(self.works, self.overlap, rounds)


def predict(
    planned: Plan, ledger: Ledger, network: Network, compute: Compute, slower: Mapping[str, float]
) -> Prediction:
    """The pace of a plan's silos.

    Args:
        ledger: of the plan.
        slower: how many times longer the clients of a silo compute, by its name. Where all silos are in one place,
            that place is none of theirs.
    """
    silos = planned.federation.silos
    times = [1.0 if planned.colocation == "all" else slower.get(silo.name, 1.0) for silo in silos]
    works = silo_works(
        network,
        ledger,
        shares=[float(silo.shares.max()) for silo in silos],
        local_steps=planned.settings.local_steps,
        slower=times,
        **compute._asdict(),
    )
    return Prediction(works, _as_overlap(planned.variant.timing, len(silos)))


def _as_overlap(timing: Timing, num_silos: int) -> Overlap:
    """The timing itself, or of one's own, the overlap that waits for phi as old as its oldest."""
    if isinstance(timing, Overlap):
        return timing
    return Overlap(timing.depth, tuple(timing.period(silo) for silo in range(num_silos)))
