r"""What a client knows of a row besides its features: its label and the others' phi, or how the loss slopes.

**Labels at one silo.** Its hub gathers the other silos' phi and computes, with its own, the slope of every row's loss
at the round's start, :math:`\delta = \partial f / \partial \phi`. That is the statistic of a row that it sends to the
others. Two losses do not follow from their slope, and have another one, :attr:`tdcd.core.losses.Loss.statistic`: of the
Huber loss the residual :math:`r = s - y`, since all slopes beyond :math:`\pm\Delta` are alike; of the Poisson loss the
expected count :math:`\mu = e^s` as well, since :math:`\mu - y` is the same for many s and y. How the loss changes from
there is :attr:`tdcd.core.losses.Loss.change`:

=========  ==============================================================================
squared    :math:`\delta d + d^2 / 2`
logistic   :math:`\log(1 - p + p\,e^d) - y d`, with :math:`\delta = p - y`
softmax    :math:`\log \sum_c p_c e^{d_c} - d_y`, with :math:`\delta = p - e_y`
poisson    :math:`\delta d + \mu\,(e^d - 1 - d)`
huber      :math:`h(r + d) - h(r)`, with h the loss of a residual
=========  ==============================================================================

for a change d of the row's own phi since the round began. So clients without labels take the very steps that they would
take with labels; nothing is approximated. The price is that a slope gives a class away to whoever looks for it: the
sign of :math:`p - y` is the label, and :math:`\mu - \delta` the count. ``federation.label_epsilon`` is what protects
classes.

What a sample weighs multiplies all of this, so it is sent with it, and clients weigh their rows with it as they do
where they have labels. With a loss that has no ``change``, labels at one silo are refused.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tdcd.core.lazy import Array
from tdcd.core.objective import Objective
from tdcd.core.round import Everyone, Route, To


class Known(NamedTuple):
    """What a client knows of its rows of a minibatch besides their features; arrays of any leading shape."""

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
    def are_silos_alike(self) -> bool:
        """Whether :meth:`losses` is the same function for every silo, so that silos can step as one."""
        return False

    def sends_phi(self, silo: int) -> bool:
        """Whether the hub of a silo sends its phi to another one."""
        return True

    def scored_at(self, silo: int) -> int:
        """The silo whose hub works out what the clients of ``silo`` receive: one with labels."""
        return silo

    def needs_phi_start(self, silo: int) -> bool:
        """Whether :meth:`losses` needs the client's own phi of the round's start."""
        return False

    def receives_sum(self, silo: int) -> bool:
        """Whether :meth:`received` is the sum of the others' phi, so that nobody needs to work it out."""
        return False

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
class LabelsEverywhere(Knowledge):
    """Every client has the labels of its rows, and gets the sum of the other silos' phi: lines 13 and 14."""

    @property
    def are_silos_alike(self) -> bool:
        """They are."""
        return True

    def receives_sum(self, silo: int) -> bool:
        """It is, unless a class that inherits from this says otherwise."""
        return type(self).received is Knowledge.received

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own loss, of the client's phi and that of the others."""
        return objective.losses(phi + known.received, known.labels)

    def slopes(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own."""
        return objective.slopes(phi + known.received, known.labels)


@dataclass(frozen=True)
class LabelsAt(Knowledge):
    """One silo has the labels; the others step on what follows from the loss's slope."""

    silo: int

    @property
    def route(self) -> Route:
        """Phi goes to the hub with the labels."""
        return To(self.silo)

    @property
    def are_labels_everywhere(self) -> bool:
        """No: at one silo."""
        return False

    def sends_phi(self, silo: int) -> bool:
        """All but that with the labels."""
        return silo != self.silo

    def scored_at(self, silo: int) -> int:
        """The silo with the labels."""
        return self.silo

    def receives_sum(self, silo: int) -> bool:
        """Where the labels are."""
        return silo == self.silo

    def needs_phi_start(self, silo: int) -> bool:
        """The statistic is of that phi."""
        return silo != self.silo

    def received(self, silo: int, own: Array, others: Array, labels: Array, objective: Objective) -> Array:
        """The others' phi for the silo with labels; for the others the statistic of every row."""
        return others if silo == self.silo else objective.statistic(own + others, labels)

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own loss where the labels are; elsewhere what it has grown by since the round began."""
        if silo == self.silo:
            return objective.losses(phi + known.received, known.labels)
        return objective.change(known.received, phi - known.phi_start)

    def slopes(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own where the labels are; elsewhere what the slope has become since the round began."""
        if silo == self.silo:
            return objective.slopes(phi + known.received, known.labels)
        return objective.change_slopes(known.received, phi - known.phi_start)
