"""The family around Algorithm 1: a member is a :class:`Variant`, made of parts whose defaults are the algorithm itself.

================= ===================================================================== =====================
part              the question that it answers                                          default
================= ===================================================================== =====================
``update``        how does a gradient move a client's block within a round?             :class:`Sgd`
``hub_update``    how does the clients' average become the hub's next block?            :class:`Average`
``exchange``      what does a silo's phi look like on the wire between hubs?            :class:`Identity`
``client_exchange``  what does phi look like on the wire between a client and its hub?     :class:`Identity`
``block_exchange``   what does a client's block look like on the wire to its hub?          :class:`WholeBlock`
``timing``        which round's block does phi come from, and when does a silo step?    :class:`Overlap`
``knowledge``     what does a client know of a row, and which loss follows from it?     :class:`LabelsEverywhere`
``participation`` which clients answer in a round?                                      :class:`FullParticipation`
``dropout``       which silos does a sample's score go without in training?             none
================= ===================================================================== =====================

Parts are values: frozen dataclasses, equal if they do the same, so that compiled programs can be shared. Their
functions are pure; those that run inside a compiled round are written in JAX.
"""

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.core.centre import CentreAverage
from tdcd.core.codecs.codec import BlockCodec, Codec, Identity, NumpyBlocks, WholeBlock, is_identity, is_private
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.codecs.quantised import Quantised, QuantisedChange
from tdcd.core.dropout import SiloDropout
from tdcd.core.knowledge import Knowledge, LabelsAt, LabelsEverywhere, WrittenOut
from tdcd.core.timing import Overlap, Timing
from tdcd.core.update import Average, CarriedUpdate, HubUpdate, Sgd, Update

COVERED: dict[str, tuple[type, ...]] = {
    "timing": (Overlap,),
    "exchange": (Identity, Quantised, FixedPoint),
    "client_exchange": (Identity, Quantised),
    "block_exchange": (WholeBlock, QuantisedChange, FixedBlocks),
    "knowledge": (LabelsAt,),
}
"""Parts that may differ from Algorithm 1 under Theorem 1, and how: plain SGD, in step or with overlap, periods and few
bits. Labels at one silo change no step."""


class Participation(Protocol):
    """Which clients answer in a round of a simulation; with real parties, it is those who do."""

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """``[K]``; at least one of a silo's clients answers."""
        ...


@dataclass(frozen=True)
class FullParticipation:
    """All clients answer in every round."""

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """True for all."""
        return np.ones(num_clients, bool)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A member of the TDCD family; ``Variant()`` is Algorithm 1.

    >>> Variant().changed
    ()
    """

    update: Update = Sgd()  # noqa: RUF009  (frozen)
    hub_update: HubUpdate = Average()  # noqa: RUF009
    exchange: Codec = Identity()  # noqa: RUF009
    client_exchange: Codec = Identity()  # noqa: RUF009
    block_exchange: BlockCodec = WholeBlock()  # noqa: RUF009
    timing: Timing = Overlap()  # noqa: RUF009
    knowledge: Knowledge = LabelsEverywhere()  # noqa: RUF009
    participation: Participation = FullParticipation()
    dropout: SiloDropout = SiloDropout()  # noqa: RUF009

    @property
    def changed(self) -> tuple[str, ...]:
        """The parts that are not those of Algorithm 1."""
        return tuple(part.name for part in fields(self) if getattr(self, part.name) != part.default)

    @property
    def is_plain(self) -> bool:
        """Whether it is Algorithm 1."""
        return not self.changed

    @property
    def carried(self) -> CarriedUpdate | None:
        """The clients' update, if it has a memory that lasts from round to round."""
        return self.update if isinstance(self.update, CarriedUpdate) else None

    def carried_problem(self, num_silos: int) -> str:
        """Why clients' memories do not go with another part; empty if they do."""
        if self.carried is None:
            return ""
        if any(self.timing.period(silo) > 1 for silo in range(num_silos)):
            return f"{self.update}: memories of clients do not go with periods above 1; leave one of them out"
        if self.summed_blocks is not None:
            return f"{self.update}: a hub would see each client's memory, and sums of blocks hide it; leave one out"
        return ""

    @property
    def is_private(self) -> bool:
        """Whether hubs need a secret of their own for what they send."""
        return is_private(self.exchange)

    @property
    def summed_phi(self) -> FixedPoint | None:
        """The codec of phi, if hubs can use nothing but sums of it."""
        return self.exchange if isinstance(self.exchange, FixedPoint) else None

    @property
    def summed_blocks(self) -> FixedBlocks | None:
        """The codec of clients' blocks, if a hub can use nothing but their sum."""
        return self.block_exchange if isinstance(self.block_exchange, FixedBlocks) else None

    @property
    def all_answer(self) -> bool:
        """Whether all clients answer in every round."""
        return type(self.participation) is FullParticipation

    @property
    def is_numpy(self) -> bool:
        """Whether all that its clients compute, but for gradients, is written for NumPy as well."""
        sends_arrays = is_identity(self.client_exchange) and isinstance(self.block_exchange, NumpyBlocks)
        return self.takes_plain_steps and self.has_slopes and sends_arrays and not self.dropout.rate

    @property
    def takes_plain_steps(self) -> bool:
        """Whether a local step is exactly :class:`Sgd`'s."""
        return type(self.update) is Sgd

    @property
    def has_slopes(self) -> bool:
        """Whether a local step follows from the slopes of the loss alone, without differentiation."""
        return isinstance(self.update, Sgd) and isinstance(self.knowledge, WrittenOut)

    @property
    def label_clashes(self) -> tuple[tuple[str, str], ...]:
        """The parts that do not go with labels at one silo, each with the reason."""
        late = (("timing", "slopes are of this round's blocks"),) if self.timing != Overlap() else ()
        short = [part for part in ("exchange", "client_exchange") if isinstance(getattr(self, part), Quantised)]
        return (*late, *((part, "slopes have no short form") for part in short))

    @property
    def turns(self) -> int:
        """Rounds of an engine that are one communication round: several where hubs take turns, see ``core.centre``."""
        return self.centre[0] if self.centre else 1

    @property
    def centre(self) -> tuple[int, int] | None:
        """How many hubs average at a centre, and after how many rounds each time; None if there is none."""
        update = self.hub_update
        return (update.hubs, update.every) if isinstance(update, CentreAverage) else None

    @property
    def few_bits(self) -> tuple[int | None, int | None, int | None]:
        """The bits of phi between hubs, of phi inside a silo, and of blocks; None where numbers are as they are."""
        quantised = (self.exchange, self.client_exchange, self.block_exchange)
        found = [one.bits if isinstance(one, Quantised | QuantisedChange) else None for one in quantised]
        return found[0], found[1], found[2]

    @property
    def beyond_theorem(self) -> tuple[str, ...]:
        """The parts that Theorem 1 does not cover; among them classes that only inherit from covered ones."""
        return tuple(part for part in self.changed if type(getattr(self, part)) not in COVERED.get(part, ()))
