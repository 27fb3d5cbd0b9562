"""What a phase of a hub's rounds needs of every peer."""

from tdcd.core.timing import Overlap
from tdcd.runtime.protocol.evaluations import Evaluations
from tdcd.runtime.protocol.exchange import Key, begun, exchange_of, figures_of
from tdcd.runtime.protocol.hub_block import HubBlock
from tdcd.runtime.protocol.messages import Model


def awaited(
    phase: str, round_index: int, own: HubBlock, evaluations: Evaluations, timing: Overlap, last: int
) -> list[Key]:
    """The parts that have to be there before a hub leaves this phase of this round; ``last`` is the last round."""
    if phase == "exchanging":
        return [*exchange_of(round_index), *evaluations.figures_in(round_index)]
    if phase == "closing":
        waiting = [key for one in evaluations.waiting for key in figures_of(one)]
        begins = begun(own.failed_in, round_index, timing, last)
        return [*dict.fromkeys([*waiting, *(begins if own.failed else evaluations.figures_in(round_index))])]
    return [(Model, round_index)] if phase == "sharing" else []
