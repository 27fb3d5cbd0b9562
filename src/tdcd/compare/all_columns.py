r"""Baselines whose clients hold all columns of their rows: FedAvg, and hierarchical local SGD.

The clients are those of all silos. Every sample is at home with one of them: it is dealt to a silo, in proportion to
the silos' clients, and there it is with the client that holds it anyway. What other silos know of it moves there first.

In hierarchical local SGD hubs average their clients every round, a centre the hubs now and then. In a simulation all
clients are clients of one silo, and each belongs to a hub:

.. math:: \theta_h \leftarrow \sum_{k \in h} \frac{n_k}{M_h} \theta_k, \qquad
          \theta \leftarrow \sum_h \frac{M_h}{M} \theta_h \text{ after every P-th round}

An engine's round has one model to begin with, and averages it over the clients that answer. So the hubs take turns: G
rounds of the engine, in each of which one hub's clients answer, are one round here.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block, with_heads
from tdcd.blocks.linear import Linear
from tdcd.compare.raw_data import to_homes
from tdcd.config.errors import ConfigError
from tdcd.core.combine import Combine
from tdcd.core.lazy import Array, jax, jnp
from tdcd.core.ledger import Ledger, Sent
from tdcd.core.objective import Tree
from tdcd.core.update import UpdateState
from tdcd.federation.silos import Federation, Silo

if TYPE_CHECKING:
    from tdcd.config import Config
    from tdcd.config.resolve import Plan


@dataclass(frozen=True)
class HubsInTurn:
    """In each turn the clients of one hub answer; see :class:`tdcd.core.presence.Participation`.

    >>> HubsInTurn((2, 1)).answering(0, 3, 0, 3)
    array([False, False,  True])
    """

    clients: tuple[int, ...]
    """The number of clients per hub, in the silo's order."""

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """``[K]``: the clients of the hub whose turn it is."""
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
        """G, the number of hubs."""
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

    def evaluations(self, rounds: int, every: int, last: int, certificates: int = 0) -> tuple[Sent, ...]:
        """All messages of the evaluations; every hub sends its clients' scores to the centre."""
        times = self.num_evaluations(rounds, every, last)
        scores = Sent("scores", "hub_to_hub", times * self.centre.turns, times * self.scores_bytes)
        return (*super().evaluations(rounds, every, last, certificates), scores)

    @cached_property
    def is_even(self) -> bool:
        """Never: the centre averages after every P-th round only."""
        return False


STREAM = 0x686F6D65
"""Separates this draw from all others of the same seed."""
MOST_ROUNDS = 5
"""Rounds of the hubs between two averages at the centre, at most."""
NAME = "all"
"""The name of the only silo that is left."""


class Dealt(NamedTuple):
    """A plan whose clients hold all columns, and whose they are."""

    plan: "Plan"
    clients: tuple[int, ...]
    """The number of clients of each silo that has any."""
    shares: tuple[float, ...]
    """Each of these silos' share of the samples."""


def fedavg(plan: "Plan") -> "Plan":
    """One server and the clients of all silos."""
    return dealt(plan).plan


def hierarchical(plan: "Plan") -> "Plan":
    """Every silo's hub with its clients, and a centre.

    The centre averages hubs often enough for every evaluation to be of its model.
    """
    from tdcd.compare.all_columns import Centre, CentreAverage, HubsInTurn  # noqa: PLC0415 - reading a configuration needs no JAX

    plan, clients, shares = dealt(plan)
    train = plan.config.train
    centre = Centre(len(clients), rounds_between(plan.config))
    average = CentreAverage(shares, centre.every)
    variant = replace(plan.variant, participation=HubsInTurn(clients), hub_update=average)
    if train.schedule != "constant":
        from tdcd.core.family.optimizers import schedule  # noqa: PLC0415 - the same

        # The schedule made it an optimiser with a factor; an engine counts turns.
        update: Any = variant.update
        steps = max(1, centre.turns * train.rounds * train.local_steps)
        variant = replace(variant, update=replace(update, factor=schedule(train.schedule, steps)))
    keys = {"participation": 1.0, "hub_optimizer": "average", "hub_step_size": 1.0}
    config = plan.config.model_copy(update={"train": train.model_copy(update=keys)})
    return plan._replace(variant=variant, config=config, tier=centre)


def rounds_between(config: "Config") -> int:
    """P: after every P-th round the centre averages the hubs, and so before every evaluation."""
    often = gcd(config.evaluate.every, config.train.rounds)
    return max(number for number in range(1, MOST_ROUNDS + 1) if often % number == 0)


def check_resumed(before: "Config", after: "Config") -> None:
    """Refuse other rounds if the centre would average at other times: that would be another run."""
    if after.train.algorithm != "hierarchical-sgd" or rounds_between(before) == rounds_between(after):
        return
    words = f"the centre has averaged after every {rounds_between(before)} rounds, before each evaluation"
    raise ConfigError([f"train.rounds = {after.train.rounds}: {words}; choose a multiple of that"])


@dataclass(frozen=True)
class Joint:
    r"""The same summed model in one place: :math:`\Phi = \sum_j \Phi_{(j)}`, each of its own columns.

    A sample's features are those of all silos, flat, one silo after the other.
    """

    blocks: tuple[Block, ...]
    shapes: tuple[tuple[int, ...], ...]
    """The shape of a sample in each silo."""

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """Every block's own, from a key of its own."""
        return [
            block.init(jax.random.fold_in(key, index), shape, num_outputs)
            for index, (block, shape) in enumerate(zip(self.blocks, self.shapes, strict=True))
        ]

    def phi(self, block: Tree, features: Array) -> Array:
        """The sum of what the blocks add to a sample's scores."""
        begin, phis = 0, []
        for model, own, shape in zip(self.blocks, block, self.shapes, strict=True):
            columns = features[:, begin : begin + prod(shape)]
            phis.append(model.phi(own, columns.reshape(-1, *shape)))
            begin += prod(shape)
        return sum(phis[1:], start=phis[0])

    def behind(self, combine: Combine) -> "Joint":
        """Every block behind the head: what a head makes of one silo's numbers, it makes of one silo's."""
        return replace(self, blocks=with_heads(self.blocks, combine))


def dealt(plan: "Plan") -> Dealt:
    """The plan with one silo, whose clients hold all columns of the samples that are at home with them."""
    federation = plan.federation
    homes = _homes(federation, plan.settings.seed)
    by_silo = [
        {f"{silo.name}-{name}": rows[homes[rows] == number] for name, rows in zip(silo.clients, silo.rows, strict=True)}
        for number, silo in enumerate(federation.silos)
    ]
    held = [{name: rows for name, rows in own.items() if len(rows)} for own in by_silo]
    clients = {name: rows for own in held for name, rows in own.items()}
    only = _joined(federation, clients)
    shapes = tuple(silo.feature_shape for silo in federation.silos)
    # A head that makes more of what a block gives makes it of every silo's own.
    linear = all(isinstance(block, Linear) for block in plan.blocks) and not plan.objective.combine.extends_phi
    block = Linear() if linear else Joint(plan.blocks, shapes)
    here = [own for own in held if own]
    return Dealt(
        plan._replace(federation=replace(federation, silos=(only,)), blocks=(block,), moved=to_homes(plan, homes)),
        tuple(len(own) for own in here),
        tuple(sum(map(len, own.values())) / federation.num_samples for own in here),
    )


def _homes(federation: Federation, seed: int) -> NDArray[np.int64]:
    """``[M]``: the silo that each sample is at home in."""
    counts = np.array([silo.num_clients for silo in federation.silos])
    ends = np.round(np.cumsum(counts) / counts.sum() * federation.num_samples).astype(np.int64)
    homes = np.empty(federation.num_samples, np.int64)
    order = np.random.default_rng([seed, STREAM]).permutation(federation.num_samples)
    homes[order] = np.searchsorted(ends, np.arange(federation.num_samples), side="right")
    return homes


def _joined(federation: Federation, clients: dict[str, NDArray[np.int64]]) -> Silo:
    """All silos' columns side by side, flat; a column is called after its silo too."""

    def flat(tables: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        return np.concatenate([table.reshape(len(table), -1) for table in tables], axis=1)

    silos = federation.silos
    held_out = [silo.test_features for silo in silos if silo.test_features is not None]
    named = all(silo.columns for silo in silos)
    columns = [f"{silo.name}.{name}" for silo in silos for name in silo.columns] if named else []
    return Silo(
        NAME,
        flat([silo.features for silo in silos]),
        tuple(clients.values()),
        tuple(columns),
        flat(held_out) if held_out else None,
        tuple(clients),
    )
