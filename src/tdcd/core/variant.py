"""The family around Algorithm 1: a member is a :class:`Variant`, made of parts whose defaults are the algorithm itself.

================= ===================================================================== =====================
part              the question that it answers                                          default
================= ===================================================================== =====================
``update``        how does a gradient move a client's block within a round?             :class:`Sgd`
``hub_update``    how does the clients' average become the hub's next block?            :class:`TakeAverage`
``exchange``      what does a silo's phi look like on the wire?                         :class:`AsItIs`
``timing``        which round's block does a silo's phi come from?                      :class:`ThisRound`
``knowledge``     what does a client know of a row, and which loss follows from it?     :class:`LabelsEverywhere`
``participation`` which clients answer in a round?                                      :class:`Everybody`
================= ===================================================================== =====================

Parts are values: frozen dataclasses, equal if they do the same, so that compiled programs can be shared. Their
functions are pure; those that run inside a compiled round are written in JAX.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core import algorithm
from tdcd.core.objective import Objective
from tdcd.core.update import HubUpdate, Sgd, TakeAverage, Update

Wire = Mapping[str, Any]
"""Named arrays, as they are sent."""
WIRE_DTYPES = ("float64", "float32", "int64", "int32", "uint32", "int8", "uint8")
"""The dtypes that real hubs can send; a simulation takes any."""


class Sending(NamedTuple):
    """Which phi a silo sends: what dither, for example, may depend on; the same for its sender and its receivers."""

    seed: Any
    """``[2]``: the run's seed, its high and its low 32 bits."""
    round: Any
    silo: int

    @property
    def key(self) -> Array:
        """A random key for this round's phi of this silo, from which everybody draws the same numbers."""
        high, low = self.seed
        key = jax.random.fold_in(jax.random.key(low), high)
        return jax.random.fold_in(jax.random.fold_in(key, self.round), self.silo)


def seed_words(seed: int) -> NDArray[np.uint32]:
    """A seed of 64 bits as :class:`Sending` has it."""
    return np.array(divmod(seed, 2**32), np.uint32)


class Exchange(Protocol):
    """What a silo's phi looks like on the wire between hubs."""

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """``[E, B, C]`` phi to what is sent."""
        ...

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """What was sent to the phi that all other silos add up."""
        ...

    def layout(self, shape: tuple[int, ...], dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of every array that is sent for phi of this shape: the ledger counts their bytes, and a
        hub refuses anything else. Real hubs send :data:`WIRE_DTYPES`.
        """
        ...


@dataclass(frozen=True)
class AsItIs:
    """Phi is sent as it is. Paper, Algorithm 1, line 12."""

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """The same array."""
        return {"phi": phi}

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """The same array."""
        phi: Array = sent["phi"]
        return phi

    def layout(self, shape: tuple[int, ...], dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """One array."""
        return {"phi": (dtype, shape)}


class Timing(Protocol):
    """Which round's block the phi comes from that the other silos step on."""

    @property
    def depth(self) -> int:
        """The largest age of a block, in rounds; this many of a hub's blocks are kept."""
        ...

    def age(self, silo: int, round_index: Array) -> Any:
        """How many rounds old the block of ``silo`` is whose phi the others use: from 0 to :attr:`depth`, and never
        older than round 0.
        """
        ...


@dataclass(frozen=True)
class ThisRound:
    """Everybody's phi comes from the block that the round began with. Paper, Algorithm 1, line 9."""

    @property
    def depth(self) -> int:
        """No earlier block is kept."""
        return 0

    def age(self, silo: int, round_index: Array) -> Any:
        """Fresh."""
        return 0


class Known(NamedTuple):
    """What a client knows of its rows of a minibatch besides their features; arrays of any leading shape."""

    labels: Any
    """``[..., P]``."""
    received: Any
    """``[..., P, C]``: what its hub passed on to it."""
    phi_start: Any = None
    """``[..., P, C]``: its own phi when the round began, if the knowledge asks for it."""


class Knowledge(Protocol):
    """What a client knows of a row, and the loss that follows from it."""

    @property
    def needs_phi_start(self) -> bool:
        """Whether :meth:`losses` needs the client's own phi of the round's start."""
        ...

    def pass_on(self, silo: int, phis: Sequence[Array], labels: Array, objective: Objective) -> Array:
        """What the hub of ``silo`` passes on to its clients, ``[E, B, C]``.

        Args:
            phis: every silo's phi as decoded, ``[E, B, C]`` each; its own among them.
            labels: ``[E, B]``.
        """
        ...

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The loss ``[...]`` of every row, as a function of the client's own phi ``[..., C]``."""
        ...


@dataclass(frozen=True)
class LabelsEverywhere:
    """Every client has the labels of its rows, and gets the sum of the other silos' phi: lines 13 and 14."""

    @property
    def needs_phi_start(self) -> bool:
        """The others' phi is enough."""
        return False

    def pass_on(self, silo: int, phis: Sequence[Array], labels: Array, objective: Objective) -> Array:
        """The sum of what the other silos sent."""
        return algorithm.sum_others(phis, silo)

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own loss, of the client's phi and that of the others."""
        return objective.losses(phi + known.received, known.labels)


class Participation(Protocol):
    """Which clients answer in a round of a simulation; with real parties, it is those who do."""

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """``[K]``; at least one of a silo's clients answers."""
        ...


@dataclass(frozen=True)
class Everybody:
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
    hub_update: HubUpdate = TakeAverage()  # noqa: RUF009
    exchange: Exchange = AsItIs()
    timing: Timing = ThisRound()
    knowledge: Knowledge = LabelsEverywhere()
    participation: Participation = Everybody()

    @property
    def changed(self) -> tuple[str, ...]:
        """The parts that are not those of Algorithm 1."""
        return tuple(part.name for part in fields(self) if getattr(self, part.name) != part.default)
