"""The links of a federation: their latency and bandwidth."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


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
        """The seconds from the first byte sent to the last one received."""
        return self.latency_s + num_bytes / self.bytes_per_s

    def __str__(self) -> str:
        """The network in words."""
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
