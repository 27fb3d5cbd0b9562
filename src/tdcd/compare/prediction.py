"""What a plan's rounds would take on a network."""

from collections.abc import Mapping
from dataclasses import dataclass

from tdcd.compare.all_columns import NAME as ALL
from tdcd.compare.all_columns import CentreLedger
from tdcd.compare.compute import Compute
from tdcd.config.resolve import Plan
from tdcd.core.family.overlap import Overlap
from tdcd.core.ledger import Ledger, Moved
from tdcd.core.network import Network
from tdcd.core.pace import Work, round_ends, seconds_after, seconds_per_round, silo_works
from tdcd.core.timing import Timing


@dataclass(frozen=True)
class Prediction:
    """The pace of every silo, and who waits for whom."""

    works: tuple[Work, ...]
    overlap: Overlap
    moving: float = 0.0
    """The seconds before the first round: raw data on its way to where it is needed, and what clients send once."""
    centre: tuple[int, float] = (1, 0.0)
    """How many rounds there are between two averages at a centre, and what one takes."""

    @property
    def seconds_per_round(self) -> float:
        """The seconds of a round in the long run."""
        every, seconds = self.centre
        return seconds_per_round(self.works, self.overlap) + seconds / every

    def after(self, rounds: int) -> float:
        """When that many rounds are over; the start counts, in which nothing has been sent ahead."""
        every, seconds = self.centre
        return self.moving + seconds_after(self.works, self.overlap, rounds) + rounds // every * seconds

    def ends(self, rounds: int) -> list[float]:
        """When each of the first rounds is over, from round 0, which is when all data is in its place."""
        (every, seconds), ends = self.centre, round_ends(self.works, self.overlap, rounds)
        return [self.moving + end + number // every * seconds for number, end in enumerate(ends)]


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
    # Who holds all columns may be of any silo, and all wait for the slowest.
    slowest = {ALL: max(slower.values(), default=1.0), **slower}
    times = [1.0 if planned.colocation == "all" else slowest.get(silo.name, 1.0) for silo in silos]
    works = silo_works(
        network,
        ledger,
        shares=[float(silo.shares.max()) for silo in silos],
        local_steps=planned.settings.local_steps,
        slower=times,
        **compute._asdict(),
    )
    overlap, centre = _as_overlap(planned.variant.timing, len(silos)), (1, 0.0)
    if isinstance(ledger, CentreLedger):
        centre = ledger.centre.every, 2 * network.hub_hub.seconds(ledger.model_bytes)
    before = sum(moving_seconds(moved, network) for moved in ledger.moved)
    if ledger.beginning and ledger.colocation == "none":
        before += network.client_hub.seconds(sum(max(load.each) for load in ledger.beginning))
    return Prediction(works, overlap, before, centre)


def moving_seconds(moved: Moved, network: Network) -> float:
    """The time of moving raw data: all senders at once, each on a link of its own, as long as the slowest."""
    link = network.hub_hub if moved.link == "hub_to_hub" else network.client_hub
    return link.seconds(max(moved.bytes)) if any(moved.bytes) else 0.0


def _as_overlap(timing: Timing, num_silos: int) -> Overlap:
    """The overlap that waits for phi as old as a timing's oldest; of an overlap, the same."""
    return Overlap(timing.depth, tuple(timing.period(silo) for silo in range(num_silos)))
