"""Phi on its way between simulated parties."""

from typing import Any

from jax import Array

from tdcd.core.exchange import Exchange, Sending, Wire
from tdcd.core.variant import Variant


class Exchanged:
    """What hubs send each other in a round."""

    def __init__(self, phis: list[Array], variant: Variant, seed: Any, round_index: Array) -> None:
        """Take every hub's phi."""
        exchange, self._dropout = variant.exchange, variant.dropout
        self.phis, self._exchange, self._route = phis, exchange, variant.knowledge.route
        self._sendings = [Sending(seed, round_index, silo, phi.shape) for silo, phi in enumerate(phis)]
        self._sent: list[Wire] = [exchange.encode(*both) for both in zip(phis, self._sendings, strict=True)]

    def own(self, silo: int) -> Array:
        """The hub's own phi, as it sent it; as it is, if it is not sent."""
        if not self._route.receivers(silo, len(self.phis)):
            return self.phis[silo]
        return self._dropout.decode(self._exchange, self._sent[silo], self._sendings[silo])

    def others(self, silo: int) -> Array:
        """The sum of the other silos' phi, as they sent it: lines 12 and 13."""
        return self._dropout.sum_others(self._exchange, self._sent, silo, self._sendings)


def sent(exchange: Exchange, phi: Array, sending: Sending) -> Array:
    """Phi after it was sent."""
    return exchange.decode(exchange.encode(phi, sending), sending)
