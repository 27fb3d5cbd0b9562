"""What a client knows about a row in addition to its features, and the loss that follows from it.

With labels everywhere: the row's label, and the sum of the other silos' phi. Where one silo has the labels, see
:mod:`tdcd.core.family.labels`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tdcd.core.lazy import Array
from tdcd.core.objective import Objective, Tree
from tdcd.core.round import Everyone, Route

if TYPE_CHECKING:
    from tdcd.core.codecs.encrypted import EncryptedSums
    from tdcd.core.variant import Variant

THIS_ROUND, IN_FULL = "slopes are of this round's blocks", "slopes have no short form"
"""Why other blocks, and few bits, do not go with slopes in place of labels."""


class Known(NamedTuple):
    """What a client knows of its rows of a minibatch in addition to their features; arrays of any leading shape."""

    labels: Any
    """``[..., P]``; anything where the knowledge says that it has none."""
    received: Any
    """``[..., P, C]``: what its hub sent it of the exchange; W numbers in place of C where that is the statistic."""
    phi_start: Any = None
    """``[..., P, C]``: its own phi when the round began, if the knowledge asks for it."""


class Knowledge(Protocol):
    """What a client knows of a row, and the loss that follows from it. One of your own inherits from this and has
    :meth:`losses`; all else is by default as with labels everywhere.
    """

    @property
    def are_labels_everywhere(self) -> bool:
        """Whether every client has the labels of its rows."""
        return True

    @property
    def route(self) -> Route:
        """Which hubs a silo's phi goes to: all others, line 12."""
        return Everyone()

    @property
    def encrypted(self) -> "EncryptedSums | None":
        """The form of encrypted slopes, if the silos without labels get no others."""
        return None

    @property
    def are_silos_alike(self) -> bool:
        """Whether :meth:`losses` is the same function for every silo, so that silos can step as one."""
        return False

    def excludes(self, variant: "Variant", num_silos: int) -> Iterator[tuple[str, str]]:
        """The parts that it does not go with, each with the reason: where not every client has labels, phi of other
        rounds' blocks, and few bits.
        """
        if self.are_labels_everywhere:
            return
        if variant.timing.depth or any(variant.timing.period(silo) > 1 for silo in range(num_silos)):
            yield "timing", THIS_ROUND
        for part, bits in zip(("exchange", "client_exchange"), variant.few_bits, strict=False):
            if bits is not None:
                yield part, IN_FULL

    def sends_phi(self, silo: int) -> bool:
        """Whether the hub of a silo sends its phi to another one."""
        return True

    def scored_at(self, silo: int) -> int:
        """The silo whose hub works out what the clients of ``silo`` receive: one with labels."""
        return silo

    def applied(self, silo: int, phi: Callable[[Tree, Array], Array]) -> Callable[[Tree, Array], Array]:
        """A block's phi as the silo's local steps differentiate it."""
        return phi

    def needs_phi_start(self, silo: int) -> bool:
        """Whether :meth:`losses` needs the client's own phi of the round's start."""
        return False

    def receives_sum(self, silo: int) -> bool:
        """Whether :meth:`received` is the sum of the others' phi, so that no party needs to compute it."""
        return False

    @property
    def gives_slopes(self) -> bool:
        """Whether :meth:`start_slopes` follow from what the clients of silos without labels receive."""
        return False

    def start_slopes(self, received: Array, outputs: int, objective: Objective) -> Array:
        """The slope of every sample's loss at the round's start, ``[..., C]``, from what such clients receive."""
        return received

    def received(self, silo: int, own: Array, others: Array, labels: Array, objective: Objective) -> Array:
        """What the clients of ``silo`` receive of the exchange, ``[E, B, ...]``; worked out by the hub of
        :meth:`scored_at`: by default the sum of what the other silos sent.

        Args:
            own: that hub's phi, ``[E, B, C]``.
            others: the sum of the other silos', as they sent it.
            labels: ``[E, B]``.
        """
        return others

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The loss ``[...]`` of every row, as a function of the client's own phi ``[..., C]``."""
        ...


@runtime_checkable
class WrittenOut(Knowledge, Protocol):
    """Knowledge whose derivative is written out, so that a client need not differentiate."""

    def slopes(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The derivative of :meth:`losses` by phi, ``[..., C]``; of an objective where that is written out."""
        ...


@dataclass(frozen=True)
class SlopesAlone(Knowledge):
    """A client knows the slope of its rows' losses at the round's start, which is all that a single step needs."""

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """Losses that have the received slope everywhere."""
        losses: Array = (known.received * phi).sum(axis=-1)
        return losses

    def slopes(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The slopes that it received."""
        slopes: Array = known.received
        return slopes


@dataclass(frozen=True)
class LabelsEverywhere(Knowledge):
    """Every client has the labels of its rows, and gets the sum of the other silos' phi: lines 13 and 14."""

    @property
    def are_silos_alike(self) -> bool:
        """True: every client has labels, and receives the others' phi."""
        return True

    def receives_sum(self, silo: int) -> bool:
        """It is, unless a class that inherits from this says otherwise."""
        return type(self).received is Knowledge.received

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own loss, of the client's phi and that of the others."""
        return objective.losses(phi + known.received, known.labels)

    def slopes(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The slopes of the objective, of the client's phi and that of the others."""
        return objective.slopes(phi + known.received, known.labels)
