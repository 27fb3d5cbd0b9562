r"""Presence: which silos count for which samples of a round, and what the rows weigh that are left.

``presence[silo, sample]`` is one notion for whatever may be missing:

=========================== ======================================== ================ ==============================
what is missing             the sample                               the silo's row   a row weighs, a block weighs
=========================== ======================================== ================ ==============================
a silo, dropped in training its score lacks the silo's phi           weighs nothing   M / (n_k B), n_k / M
a client, left out          leaves the minibatch, for every silo     weighs nothing   M' / (n_k B'), n_k / M'
a row, that a silo lacks    its score lacks the silo's phi           there is none    M_j / (n_k B), n_k / M_j
=========================== ======================================== ================ ==============================

So there are two masks, and one rule. The first mask says which samples are left for every silo: :class:`Remaining`.
The second says for which of those a silo's phi counts: :class:`SiloPresence`; where it does not, something else may
stand in for it, such as the intercept. The rule is the last column: :func:`row_weights`, with the rows that the silo's
clients that take part hold, and the samples that are left of the minibatch. The general engine and real parties call
the same functions here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.core import algorithm
from tdcd.core.algorithm import Apply, Minibatch
from tdcd.core.choices import Gradient
from tdcd.core.codecs.codec import Codec, Sending, SummedCodec, Wire, is_identity, sum_others
from tdcd.core.lazy import Array, jnp, library_of
from tdcd.core.trees import Tree


class Participation(Protocol):
    """Which clients a round asks: a function of seed, round and silo, so that a hub knows it without a message."""

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """``[K]``; at least one of a silo's clients answers."""
        ...


@dataclass(frozen=True)
class FullParticipation:
    """All clients answer in every round."""

    is_plain: ClassVar[bool] = True

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """True for all."""
        return np.ones(num_clients, bool)


class Remaining(NamedTuple):
    """What is left of a round's minibatches in one silo, where clients or rows are missing."""

    rows: Any
    """The rows that the silo's clients that take part hold: M if all do."""
    sizes: Any
    """How many samples each minibatch still has, ``[E]``; or B, of all of them."""
    mask: Any = None
    """``[..., E, P]``: which of the clients' rows are of those samples; None if all are."""


def row_weights(left: Remaining, counts: Array, num_rows: int, *, gradient: Gradient, held: Array) -> Array:
    r"""What the loss of each of a client's rows is multiplied by, see :func:`tdcd.core.algorithm.row_weight`.

    Args:
        counts: ``[..., E]``, the client's rows in each minibatch, those counted in that are not left.
        num_rows: P.
        held: n_k, the rows that the client holds in all.

    Returns:
        ``[..., E, P]``; zero on padding, and on rows that are not left.
    """
    rule = {"gradient": gradient, "num_samples": left.rows, "batch_size": left.sizes, "held": held}
    if left.mask is None:
        return algorithm.row_weights(counts, num_rows, **rule)
    library = library_of(counts)
    real = left.mask & (library.arange(num_rows) < counts[..., None])
    weight = algorithm.row_weight(library.sum(real, axis=-1), **rule)
    weights: Array = library.where(real, weight[..., None], 0)
    return weights


class SiloPresence(Protocol):
    """Which samples a silo's phi counts for: the part ``dropout`` of a variant."""

    def kept_rows(self, sending: Sending) -> Array | None:
        """Whether the silo of ``sending`` counts: ``[E, B]`` for all samples of the round, or ``[...]`` for those at
        its places; None if it counts for all.
        """
        ...

    def leaves_intercept(self, silo: int) -> bool:
        """Whether something of the silo's phi stays where it does not count: its column of ones."""
        ...

    def alone(self, silo: int, block: Tree, apply: Apply, num_features: int, ones: int | None = -1) -> Any:
        """What is left of the silo's phi where it does not count: 0, or the intercept ``[C]``.

        Args:
            ones: where the column of ones is, counted from the end; None if there is none that stays.
        """
        ...


def counted(phi: Array, kept: Array | None, alone: Any = 0) -> Array:
    """Phi as it counts, with ``alone`` where the silo does not count."""
    if kept is None:
        return phi
    library = library_of(phi)
    left: Array = library.where(library.asarray(kept)[..., None], phi, alone)
    return left


def counted_again(presence: SiloPresence, phi: Array, sending: Sending) -> Array:
    """Phi as its receiver uses it: few bits make small numbers of the zeros, which are put in again."""
    return phi if presence.leaves_intercept(sending.silo) else counted(phi, presence.kept_rows(sending))


def decode(presence: SiloPresence, exchange: Codec, sent: Wire, sending: Sending) -> Array:
    """What was sent to the phi that its receivers use."""
    phi = exchange.decode(sent, sending)
    return phi if is_identity(exchange) else counted_again(presence, phi, sending)


def sum_counted(
    presence: SiloPresence, exchange: Codec, sent: Sequence[Wire], silo: int, sendings: Sequence[Sending]
) -> Array:
    """The other silos' phi, summed where they count: line 13."""
    if isinstance(exchange, SummedCodec):
        return sum_others(exchange, sent, silo, sendings)
    phis = [decode(presence, exchange, wire, sending) for wire, sending in zip(sent, sendings, strict=True)]
    return algorithm.sum_others(phis, silo)


def counted_rows(
    presence: SiloPresence, minibatch: Minibatch, sending: Sending, alone: Any, ones: int | None = -1
) -> Minibatch:
    """Clients' rows ``[..., P]`` at the places of ``sending``: where the silo does not count, they weigh nothing.

    In the silo with the intercept they weigh as much as ever, but have only the column of ones.
    """
    kept = presence.kept_rows(sending)
    if kept is None:
        return minibatch
    features, known, weights, _ = minibatch
    if ones is None or not presence.leaves_intercept(sending.silo):
        return minibatch._replace(weights=jnp.where(kept, weights, 0))
    is_ones = jnp.arange(features.shape[-1]) == features.shape[-1] + ones
    if known.phi_start is not None:
        known = known._replace(phi_start=counted(known.phi_start, kept, alone))
    return minibatch._replace(features=jnp.where(kept[..., None] | is_ones, features, 0), known=known)
