"""Baselines whose clients hold all columns of their rows: FedAvg, and hierarchical local SGD.

The clients are those of all silos. Every sample is at home with one of them: it is dealt to a silo, in proportion to
the silos' clients, and there it is with the client that holds it anyway. What other silos know of it moves there first.
"""

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.compare.raw_data import to_homes
from tdcd.config.errors import ConfigError
from tdcd.federation.silos import Federation, Silo

if TYPE_CHECKING:
    from tdcd.config import Config
    from tdcd.config.resolve import Plan

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
    from tdcd.compare.centre import Centre, CentreAverage, HubsInTurn  # noqa: PLC0415 - reading a configuration needs no JAX

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


def dealt(plan: "Plan") -> Dealt:
    """The plan with one silo, whose clients hold all columns of the samples that are at home with them."""
    from tdcd.blocks import Linear  # noqa: PLC0415 - reading a configuration needs no JAX
    from tdcd.blocks.joint import Joint  # noqa: PLC0415

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
    linear = all(isinstance(block, Linear) for block in plan.blocks)
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
