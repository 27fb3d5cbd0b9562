"""The ledger: which messages a round sends over which kind of link, and how many bytes they carry."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, Self

Colocation = Literal["none", "silo", "all"]
"""Which parties share a machine: none; those of a silo; or all of them."""
Link = Literal["client_to_hub", "hub_to_client", "hub_to_hub"]


@dataclass(frozen=True)
class Traffic:
    """A count by link class, of bytes or of messages; adds up and scales."""

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
        """The count over all links."""
        return self.client_to_hub + self.hub_to_client + self.hub_to_hub


class Sent(NamedTuple):
    """All messages of one kind in a round."""

    kind: Literal["block", "phi", "phi_others"]
    link: Link
    messages: int
    bytes: int


def round_messages(
    parameters: Sequence[int],
    clients: Sequence[int],
    *,
    samples: int,
    outputs: int,
    itemsize: int,
    sent: int | None = None,
    colocation: Colocation = "none",
) -> tuple[Sent, ...]:
    r"""What one communication round sends, by kind of message.

    With :math:`d_j` parameters and :math:`K_j` clients in silo j, S samples exchanged a round (E minibatches of B)
    and C outputs of s bytes each: a client gets the hub's block and returns its own, :math:`s\,d_j` each way; a hub's
    clients together send the phi of all S samples and get that of the others, :math:`s\,S\,C` each way, however
    the rows are split; and every hub sends :math:`s\,S\,C` to each of the N - 1 others. One silo alone has nothing
    to exchange, so its clients send blocks only. What parties on one machine tell each other is not sent.

    Args:
        sent: the bytes of phi between two hubs, if they are encoded; see :func:`tdcd.core.variant.wire_bytes`.

    >>> for sent in round_messages([10, 20], [5, 3], samples=100, outputs=1, itemsize=4):
    ...     print(*sent)
    block hub_to_client 8 440
    block client_to_hub 8 440
    phi client_to_hub 8 800
    phi_others hub_to_client 8 800
    phi hub_to_hub 2 800
    """
    num_silos, num_clients = len(parameters), sum(clients)
    blocks = sum(d * k for d, k in zip(parameters, clients, strict=True)) * itemsize
    phi = samples * outputs * itemsize
    found: list[Sent] = []
    if colocation == "none":
        found += [
            Sent("block", "hub_to_client", num_clients, blocks),
            Sent("block", "client_to_hub", num_clients, blocks),
        ]
        if num_silos > 1:
            found.append(Sent("phi", "client_to_hub", num_clients, num_silos * phi))
            found.append(Sent("phi_others", "hub_to_client", num_clients, num_silos * phi))
    if colocation != "all" and num_silos > 1:
        pairs = num_silos * (num_silos - 1)
        found.append(Sent("phi", "hub_to_hub", pairs, pairs * (phi if sent is None else sent)))
    return tuple(found)


def by_link(sent: Sequence[Sent], count: Literal["bytes", "messages"]) -> Traffic:
    """The bytes, or the messages, of each link class.

    >>> by_link(round_messages([10, 20], [5, 3], samples=100, outputs=1, itemsize=4), "bytes")
    Traffic(client_to_hub=1240, hub_to_client=1240, hub_to_hub=800)
    """
    totals = {link.name: 0 for link in fields(Traffic)}
    for item in sent:
        totals[item.link] += getattr(item, count)
    return Traffic(**totals)
