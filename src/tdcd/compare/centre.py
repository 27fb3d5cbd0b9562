r"""Hierarchical local SGD in a simulation: hubs average their clients every round, a centre the hubs now and then.

All clients hold the same columns, so that they are clients of one silo, and each belongs to a hub:

.. math:: \theta_h \leftarrow \sum_{k \in h} \frac{n_k}{M_h} \theta_k, \qquad
          \theta \leftarrow \sum_h \frac{M_h}{M} \theta_h \text{ after every P-th round}

An engine's round has one model to begin with, and averages it over the clients that answer. So the hubs take turns: G
rounds of the engine, in each of which one hub's clients answer, are one round here.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array, jax, jnp
from tdcd.core.ledger import Ledger, Sent
from tdcd.core.objective import Tree
from tdcd.core.update import UpdateState


@dataclass(frozen=True)
class HubsInTurn:
    """In each turn the clients of one hub answer; see :class:`tdcd.core.presence.Participation`.

    >>> HubsInTurn((2, 1)).answering(0, 3, 0, 3)
    array([False, False,  True])
    """

    clients: tuple[int, ...]
    """The number of clients per hub, in the silo's order."""

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """``[K]``."""
        hubs = np.repeat(np.arange(len(self.clients)), self.clients)
        answers: NDArray[np.bool_] = hubs == round_index % len(self.clients)
        return answers


@dataclass(frozen=True)
class CentreAverage:
    """A hub takes its clients' average; after every P-th round all hubs take that of the centre.

    Its state has the models of the other hubs, the one whose turn is next first, and the turns so far.
    """

    shares: tuple[float, ...]
    """M_h / M, what each hub weighs at the centre."""
    every: int
    """P."""

    @property
    def hubs(self) -> int:
        """G."""
        return len(self.shares)

    def start(self, block: Tree) -> UpdateState:
        """All hubs have the same model."""
        return [block] * (self.hubs - 1), jnp.zeros((), jnp.int32)

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """The model of the hub whose turn is next."""
        others, turns = state[0], state[1] + 1
        models = [*others, average]
        meets = turns % (self.hubs * self.every) == 0

        def mean(*leaves: Array) -> Array:
            # Added up one by one: the same on every device.
            total = self.shares[0] * leaves[0]
            for share, leaf in zip(self.shares[1:], leaves[1:], strict=True):
                total = total + share * leaf
            return total

        centre = jax.tree.map(mean, *models)
        models = [jax.tree.map(lambda new, old: jnp.where(meets, new, old), centre, model) for model in models]
        return models[0], (models[1:], turns)


@dataclass(frozen=True)
class Centre:
    """Where the models of several hubs are averaged: the :class:`tdcd.config.resolve.Tier` of a plan."""

    turns: int
    """G: the hubs, whose clients answer in one round of the engine each."""
    every: int
    """P: rounds between two averages."""

    def ledger(self, ledger: Ledger) -> "CentreLedger":
        """The ledger, with what hubs and their centre exchange."""
        own = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
        return CentreLedger(**own, centre=self)


@dataclass(frozen=True, kw_only=True)
class CentreLedger(Ledger):
    """A ledger of one silo whose clients are those of several hubs, which average at a centre."""

    centre: Centre

    def after(self, rounds: int) -> tuple[Sent, ...]:
        """All messages of the first rounds; models go up to the centre and down again."""
        models = 2 * self.centre.turns * (rounds // self.centre.every)
        return (*super().after(rounds), Sent("block", "hub_to_hub", models, models * self.model_bytes))

    def evaluations(self, rounds: int, every: int, last: int) -> tuple[Sent, ...]:
        """All messages of the evaluations; every hub sends its clients' scores to the centre."""
        times = self.num_evaluations(rounds, every, last)
        scores = Sent("scores", "hub_to_hub", times * self.centre.turns, times * self.scores_bytes)
        return (*super().evaluations(rounds, every, last), scores)

    @cached_property
    def is_even(self) -> bool:
        """Never: the centre averages after every P-th round only."""
        return False
