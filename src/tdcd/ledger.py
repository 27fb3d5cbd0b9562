"""The ledger: how many bytes a round sends over which kind of link."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

Apart = Literal["clients", "silos", "nobody"]
"""Who is on a machine of its own: every client; every silo, its rows in one place; or nobody."""


@dataclass(frozen=True)
class Traffic:
    """Payload bytes by link class; adds up and scales."""

    client_to_hub: int = 0
    """Blocks and phi, from the clients to their hub."""
    hub_to_client: int = 0
    """Blocks and the rows of the others' phi, from a hub to its clients."""
    hub_to_hub: int = 0
    """Phi, from each hub to every other."""

    def __mul__(self, times: int) -> Self:
        """The traffic of ``times`` such rounds."""
        return type(self)(*(getattr(self, link.name) * times for link in fields(self)))

    @property
    def total(self) -> int:
        """Bytes over all links."""
        return self.client_to_hub + self.hub_to_client + self.hub_to_hub


def round_traffic(
    parameters: Sequence[int],
    clients: Sequence[int],
    *,
    samples: int,
    outputs: int,
    itemsize: int,
    apart: Apart = "clients",
) -> Traffic:
    r"""What one communication round sends.

    With :math:`d_j` parameters and :math:`K_j` clients in silo j, S samples exchanged a round (E minibatches of B)
    and C outputs of s bytes each: a client gets the hub's block and returns its own, :math:`s\,d_j` each way; a hub's
    clients together send the phi of all S samples and get that of the others, :math:`s\,S\,C` each way, however
    the rows are split; and every hub sends :math:`s\,S\,C` to each of the N - 1 others. One silo alone has nothing
    to exchange, so its clients send blocks only. What parties on one machine tell each other is not sent.

    >>> round_traffic([10, 20], [5, 3], samples=100, outputs=1, itemsize=4)
    Traffic(client_to_hub=1240, hub_to_client=1240, hub_to_hub=800)
    """
    num_silos = len(parameters)
    blocks = sum(d * k for d, k in zip(parameters, clients, strict=True)) * itemsize
    phi = samples * outputs * itemsize if num_silos > 1 else 0
    inside = blocks + num_silos * phi if apart == "clients" else 0
    between = num_silos * (num_silos - 1) * phi if apart != "nobody" else 0
    return Traffic(inside, inside, between)
