r"""Labels at one silo, and slopes that no other party can read: federation.protect_labels = "encrypt".

As in :mod:`tdcd.core.family.labels`, the hub with the labels gathers the other silos' phi and works out the slope
:math:`\delta` of every sample's loss. It sends the slopes encrypted, with a key that it alone has. The gradient of a
linear block is :math:`\frac1B \sum_i x_i \delta_i`, a sum that can be worked out without reading the slopes:

=========  ========================  ====================================================================
flow       link                      what a message carries
=========  ========================  ====================================================================
slope      label hub to hubs         the slopes of the minibatch, encrypted
sealed     hub to clients            the same
share      client to hub             the sum of x times slope over the client's rows, still encrypted
masked     hub to label hub          the sum of its clients' sums and of a random mask, still encrypted
sums       label hub to hubs         what it decrypted: every hub takes its own, and its mask off
=========  ========================  ====================================================================

Then the hub, not its clients, takes the step. No party but the label silo sees a slope, no party sees a client's
gradient, and the label silo sees numbers in which the mask is uniform. One exchange gives one gradient, so a round has
one local step: with Q steps on frozen slopes it would take as many exchanges per round as there are steps, and be
further from the minimum. With Q = 1 a round is a step of central minibatch SGD, up to fixed point.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tdcd.core.codecs.codec import is_identity, sends_whole
from tdcd.core.codecs.encrypted import EncryptedSums
from tdcd.core.family.labels import LabelsAt
from tdcd.core.knowledge import Known
from tdcd.core.lazy import Array
from tdcd.core.objective import Objective, Tree

if TYPE_CHECKING:
    from tdcd.core.variant import Variant

IN_THE_CLEAR = "slopes and sums are encrypted, and this is another form of what is sent"
ONE_GRADIENT = "the hub gets one encrypted gradient per round, and takes a plain step along it"
EVERYBODY = "an encrypted sum is of all clients, so that it shows no client's part"


@dataclass(frozen=True)
class EncryptedSlopes(LabelsAt):
    """One silo has the labels; the others' hubs step on encrypted sums of features times slopes."""

    encrypted: ClassVar[EncryptedSums] = EncryptedSums()
    covered_as: ClassVar[tuple[str, ...]] = ("knowledge",)
    """Fixed point aside, the steps are those of labels everywhere."""

    def excludes(self, variant: "Variant", num_silos: int) -> Iterator[tuple[str, str]]:
        """Other forms of phi and blocks, other steps of clients, and clients that do not take part."""
        yield from super().excludes(variant, num_silos)
        if not is_identity(variant.exchange):
            yield "exchange", IN_THE_CLEAR
        if not sends_whole(variant.block_exchange):
            yield "block_exchange", IN_THE_CLEAR
        if not variant.takes_plain_steps:
            yield "update", ONE_GRADIENT
        if not variant.all_answer:
            yield "participation", EVERYBODY
        if variant.dropout.rate:
            yield "dropout", "an encrypted sum is of every sample of the minibatch"

    def needs_phi_start(self, silo: int) -> bool:
        """The gradient is that of the round's start."""
        return False

    def received(self, silo: int, own: Array, others: Array, labels: Array, objective: Objective) -> Array:
        """The others' phi for the silo with labels; for the others the slopes, in fixed point."""
        if silo == self.silo:
            return others
        return self.encrypted.slopes(objective.score_slopes(own + others, labels))

    def losses(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own loss where the labels are; elsewhere the linear function with these slopes."""
        if silo == self.silo:
            return super().losses(silo, phi, known, objective)
        linear: Array = (known.received * phi).sum(axis=-1)
        return linear

    def slopes(self, silo: int, phi: Array, known: Known, objective: Objective) -> Array:
        """The objective's own where the labels are; elsewhere those that were sent."""
        if silo == self.silo:
            return super().slopes(silo, phi, known, objective)
        received: Array = known.received
        return received

    def applied(self, silo: int, phi: Callable[[Tree, Array], Array]) -> Callable[[Tree, Array], Array]:
        """The gradient is of features in fixed point, but where the labels are."""
        if silo == self.silo:
            return phi
        return lambda block, features: phi(block, self.encrypted.rounded(features))
