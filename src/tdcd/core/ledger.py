"""The ledger: which messages a round sends over which kind of link, and how many bytes they carry."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np

from tdcd.core.settings import Settings

if TYPE_CHECKING:
    from tdcd.core.variant import Exchange

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
        return type(self)(self.client_to_hub * times, self.hub_to_client * times, self.hub_to_hub * times)

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


class PhiBytes(NamedTuple):
    """The bytes of one silo's phi of a round."""

    client_hub: int
    """Between a hub and all its clients together, each way."""
    hub_hub: int
    """From one hub to another, as the exchange encodes it."""


def phi_bytes(settings: Settings, num_samples: int, num_outputs: int, exchange: "Exchange") -> PhiBytes:
    """What a silo's phi takes up: E minibatches of B samples with C outputs each.

    >>> from tdcd.core.variant import AsItIs
    >>> phi_bytes(Settings(local_steps=10, batch_size=100), 1000, 1, AsItIs())
    PhiBytes(client_hub=4000, hub_hub=4000)
    """
    shape = (settings.num_exchanged, settings.effective_batch_size(num_samples), num_outputs)
    return PhiBytes(math.prod(shape) * item_bytes(settings), wire_bytes(exchange, shape, settings.dtype))


def item_bytes(settings: Settings) -> int:
    """The bytes of one number."""
    return np.dtype(settings.dtype).itemsize


def wire_bytes(exchange: "Exchange", shape: tuple[int, ...], dtype: str) -> int:
    """The bytes that one hub sends another for phi of this shape."""
    arrays = exchange.layout(shape, dtype).values()
    return sum(math.prod(size) * np.dtype(kind).itemsize for kind, size in arrays)


def round_messages(
    parameters: Sequence[int],
    clients: Sequence[int],
    phi: PhiBytes,
    *,
    itemsize: int,
    colocation: Colocation = "none",
) -> tuple[Sent, ...]:
    r"""What one communication round sends, by kind of message.

    With :math:`d_j` parameters of s bytes each and :math:`K_j` clients in silo j: a client gets the hub's block and
    returns its own, :math:`s\,d_j` each way; a hub's clients together send the phi of all samples of the round and get
    that of the others, however the rows are split; and every hub sends its phi to each of the N - 1 others. One silo
    alone has nothing to exchange, so its clients send blocks only. What parties on one machine tell each other is not
    sent.

    >>> for sent in round_messages([10, 20], [5, 3], PhiBytes(400, 400), itemsize=4):
    ...     print(*sent)
    block hub_to_client 8 440
    block client_to_hub 8 440
    phi client_to_hub 8 800
    phi_others hub_to_client 8 800
    phi hub_to_hub 2 800
    """
    num_silos, num_clients = len(parameters), sum(clients)
    blocks = sum(d * k for d, k in zip(parameters, clients, strict=True)) * itemsize
    found: list[Sent] = []
    if colocation == "none":
        found += [
            Sent("block", "hub_to_client", num_clients, blocks),
            Sent("block", "client_to_hub", num_clients, blocks),
        ]
        if num_silos > 1:
            found.append(Sent("phi", "client_to_hub", num_clients, num_silos * phi.client_hub))
            found.append(Sent("phi_others", "hub_to_client", num_clients, num_silos * phi.client_hub))
    if colocation != "all" and num_silos > 1:
        pairs = num_silos * (num_silos - 1)
        found.append(Sent("phi", "hub_to_hub", pairs, pairs * phi.hub_hub))
    return tuple(found)


def by_link(sent: Sequence[Sent], count: Literal["bytes", "messages"]) -> Traffic:
    """The bytes, or the messages, of each link class.

    >>> by_link(round_messages([10, 20], [5, 3], PhiBytes(400, 400), itemsize=4), "bytes")
    Traffic(client_to_hub=1240, hub_to_client=1240, hub_to_hub=800)
    """
    totals = {link.name: 0 for link in fields(Traffic)}
    for item in sent:
        totals[item.link] += getattr(item, count)
    return Traffic(**totals)
