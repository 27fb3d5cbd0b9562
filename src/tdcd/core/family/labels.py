r"""Labels at one silo: the others' clients step on the slope of the loss.

The hub of the silo with the labels gathers the other silos' phi. With its own it computes the slope of every row's
loss at the round's start, :math:`\delta = \partial f / \partial \phi`. That is the statistic of a row, sent to the
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
from typing import ClassVar

from tdcd.core.knowledge import Knowledge, Known
from tdcd.core.lazy import Array, jax, jnp, library_of
from tdcd.core.objective import Objective
from tdcd.core.round import Route, To


@dataclass(frozen=True)
class LabelsAt(Knowledge):
    """One silo has the labels; the others step on what follows from the loss's slope."""

    silo: int
    covered_as: ClassVar[tuple[str, ...]] = ("knowledge",)
    """Labels at one silo change no step."""

    @property
    def route(self) -> Route:
        """Phi goes to the hub with the labels."""
        return To(self.silo)

    @property
    def are_labels_everywhere(self) -> bool:
        """False: one silo alone has them."""
        return False

    def sends_phi(self, silo: int) -> bool:
        """True of all silos but that with the labels."""
        return silo != self.silo

    def scored_at(self, silo: int) -> int:
        """The silo with the labels."""
        return self.silo

    def receives_sum(self, silo: int) -> bool:
        """Whether the silo has the labels."""
        return silo == self.silo

    def needs_phi_start(self, silo: int) -> bool:
        """The statistic is of that phi."""
        return silo != self.silo

    @property
    def gives_slopes(self) -> bool:
        """The statistic is one that they follow from."""
        return True

    def start_slopes(self, received: Array, outputs: int, objective: Objective) -> Array:
        """Those of :attr:`tdcd.core.losses.Loss.change` where nothing has changed."""
        library = library_of(received)
        nothing = library.zeros((*received.shape[:-1], outputs), received.dtype)
        if objective.is_written_out:
            return objective.change_slopes(received, nothing)
        slopes: Array = jax.grad(lambda change: jnp.sum(objective.change(received, change)))(nothing)
        return slopes

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
