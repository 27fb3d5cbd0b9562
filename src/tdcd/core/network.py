"""The network model: how long a communication round takes on links of a given latency and bandwidth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tdcd.core.ledger import PhiBytes


@dataclass(frozen=True)
class Link:
    """One kind of link: what a message costs, however small, and what its bytes cost."""

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        """Refuse figures that no link has."""
        if not 0 <= self.latency_s < math.inf:
            raise ValueError(f"a link's latency must be a number of at least 0, not {self.latency_s}")
        if not self.bytes_per_s > 0:
            raise ValueError(f"a link's bandwidth must be more than 0, not {self.bytes_per_s}")

    @classmethod
    def of(cls, latency_ms: float, mbit_s: float) -> Self:
        """A link in the units that people give: milliseconds one way, and megabits per second.

        >>> Link.of(30, 100)
        Link(latency_s=0.03, bytes_per_s=12500000.0)
        """
        return cls(latency_ms / 1e3, mbit_s * 1e6 / 8)

    def seconds(self, num_bytes: float) -> float:
        """From the first byte sent to the last one received."""
        return self.latency_s + num_bytes / self.bytes_per_s

    def __str__(self) -> str:
        """In words."""
        return f"{1e3 * self.latency_s:g} ms, {8e-6 * self.bytes_per_s:g} Mbit/s"


INSIDE = Link(0.0, math.inf)
"""Between two parties on one machine: a message costs nothing."""


@dataclass(frozen=True)
class Network:
    """The two kinds of link of a federation."""

    client_hub: Link
    """Between a client and its hub, inside one organisation."""
    hub_hub: Link
    """Between the hubs of two organisations."""


PRESETS: Mapping[str, Network] = {
    "lan": Network(Link.of(0.2, 1000), Link.of(0.2, 1000)),
    "wan": Network(Link.of(5, 100), Link.of(30, 100)),
    "mobile": Network(Link.of(50, 10), Link.of(30, 100)),
}
"""Round figures: one building on gigabit Ethernet; branches on their organisation's lines, and organisations in
different cities; phones and other devices on a mobile network, and hubs as before."""


def preset(name: str) -> Network:
    """The network of that name."""
    if name not in PRESETS:
        raise ValueError(f"there is no network '{name}'; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def round_seconds(
    network: Network,
    *,
    parameters: Sequence[int],
    shares: Sequence[float],
    phi: PhiBytes,
    itemsize: int,
    phi_seconds: float,
    step_seconds: float,
    local_steps: int,
) -> float:
    r"""The predicted time of one communication round, along its critical path.

    With :math:`t_c` and :math:`t_h` the time of a message between client and hub and between hubs, :math:`d_j`
    parameters in silo j's block, :math:`p_j` the share of the rows that its largest client holds, s bytes per
    number, and phi of :math:`b_c` bytes inside a silo and :math:`b_h` bytes between hubs:

    .. math:: 2 \max_j \big[ t_c(s\,d_j) + t_c(p_j\,b_c) \big] + t_{phi} + t_h((N - 1)\,b_h) + Q\,t_{step}

    that is: block down, phi computed, phi up; the exchange; the others' phi down, Q steps, block up. One silo alone
    has nothing to exchange: block down, Q steps, block up. The messages are those that
    :class:`tdcd.core.ledger.Ledger` counts. What is assumed:

    - a message takes its link's latency plus its bytes over the bandwidth, alone on the link: no headers, no
      handshakes, no loss, no other traffic;
    - every client has a link of its own to its hub, as fast both ways, and the hub serves all of them at once;
    - what a hub sends to its N - 1 peers shares its uplink; it sends while it receives;
    - a client's part of phi is its share of the rows, so the largest client is the one that all wait for;
    - silos wait for each other at the exchange and at the end of the round;
    - averaging, stacking and summing at the hubs take no time.

    Args:
        parameters: one number per silo.
        shares: for each silo, the share of the rows that its largest client holds.
        phi: see :func:`tdcd.core.ledger.phi_bytes`.
        phi_seconds: what the slowest client takes for the phi of all samples of a round.
        step_seconds: what the slowest client takes for one local step.

    >>> one = Link(latency_s=1.0, bytes_per_s=100.0)
    >>> figures = dict(phi=PhiBytes(200, 200), itemsize=4, phi_seconds=0.25, step_seconds=0.5, local_steps=3)
    >>> round_seconds(Network(one, one), parameters=[25, 50], shares=[1.0, 0.5], **figures)
    14.75
    """
    message, steps = network.client_hub.seconds, local_steps * step_seconds
    blocks = [count * itemsize for count in parameters]
    if len(blocks) == 1:
        return 2 * message(blocks[0]) + steps
    inside = [message(block) + message(share * phi.client_hub) for block, share in zip(blocks, shares, strict=True)]
    return 2 * max(inside) + phi_seconds + network.hub_hub.seconds((len(blocks) - 1) * phi.hub_hub) + steps
