"""What TDCD is compared with, by name: each a rewriting of a plan, so that every algorithm runs on the same engine.

All of them take as many local steps as the plan, and are evaluated at the same ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tdcd.compare.all_columns import fedavg, hierarchical
from tdcd.compare.raw_data import to_hubs, to_one_place
from tdcd.config.schema import ExchangeSection

if TYPE_CHECKING:
    from tdcd.config.resolve import Plan


class Baseline(NamedTuple):
    """An algorithm that TDCD is compared with."""

    words: str
    needs: str = ""
    """What TDCD leaves where it is, and this needs in another place."""


ALL_COLUMNS = "all columns of a row with one client"
BASELINES: Mapping[str, Baseline] = {
    "sgd": Baseline(
        "Centralised minibatch SGD on the same model, one step at a time. All raw data and every label move to one "
        "place first; after that nothing is sent.",
        "all data in one place",
    ),
    "distributed-sgd": Baseline("The same federation with Q = 1: it communicates after every step."),
    "fedbcd": Baseline(
        "FedBCD: one client per silo, and one minibatch for all Q local steps. Clients move their rows and labels to "
        "their hub first; after that hubs send phi.",
        "each silo's rows in one place",
    ),
    "fedavg": Baseline(
        "FedAvg on all columns: the clients of all silos, each with all columns of its rows, take Q local steps on the "
        "whole model, and one server averages them. What the other silos know of a row moves to its client first.",
        ALL_COLUMNS,
    ),
    "hierarchical-sgd": Baseline(
        "Hierarchical local SGD on all columns: as FedAvg, but each silo's hub averages its own clients after every "
        "round, and a centre averages the hubs after every few.",
        ALL_COLUMNS,
    ),
    "local-sgd": Baseline("Local SGD (FedAvg) inside one silo that sees only its own columns: what it could do alone."),
    "tdcd-reused": Baseline(
        "TDCD with one minibatch for all Q local steps instead of Q fresh ones: Q times less phi is sent."
    ),
}
"""By name."""


def baseline_plans(name: str, plan: "Plan") -> dict[str, "Plan"]:
    """The runs of a baseline by label: one called ``name``, or ``local-sgd/SILO`` for each silo.

    Args:
        plan: of TDCD.
    """
    if name not in BASELINES:
        raise ValueError(f"there is no baseline '{name}'; there are {', '.join(BASELINES)}")
    if name == "local-sgd":
        return {f"{name}/{silo}": rewrite(plan, name, silo) for silo in labelled_silos(plan)}
    return {name: rewrite(plan, name)}


def labelled_silos(plan: "Plan") -> list[str]:
    """The silos that could train alone: those that have labels."""
    knowledge = plan.variant.knowledge
    return [silo.name for index, silo in enumerate(plan.federation.silos) if knowledge.scored_at(index) == index]


def rewrite(plan: "Plan", algorithm: str, silo: str | None = None) -> "Plan":
    """The plan as another algorithm. What was rewritten so already stays as it is.

    Args:
        silo: which one trains alone, for ``"local-sgd"``.
    """
    # With every sample in each minibatch there is but one, and it is reused anyway.
    reused = "full" if plan.settings.minibatches == "full" else "reused"
    if algorithm != "tdcd":
        plan.federation.check_complete(f"train.algorithm = {algorithm!r}")
        plan = _in_step(plan)
    if algorithm == "sgd":
        plan = _set(_gathered(plan), local_steps=1)._replace(colocation="all", moved=to_one_place(plan))
    elif algorithm == "distributed-sgd":
        plan = _set(plan, local_steps=1)
    elif algorithm == "fedbcd":
        plan = _set(_gathered(plan), minibatches=reused)._replace(colocation="silo", moved=to_hubs(plan))
    elif algorithm == "fedavg":
        plan = fedavg(plan)
    elif algorithm == "hierarchical-sgd":
        plan = hierarchical(plan)
    elif algorithm == "tdcd-reused":
        plan = _set(plan, minibatches=reused)
    elif algorithm == "local-sgd":
        assert silo is not None
        plan = _silo_only(plan, silo)
    return _noted(plan, algorithm=algorithm, silo=silo)


def _set(plan: "Plan", **changes: Any) -> "Plan":
    """Other settings for as many local steps in all, evaluated at the same ones."""
    settings = replace(plan.settings, **changes)
    times = plan.settings.local_steps // settings.local_steps
    every = plan.config.evaluate.every * times
    noted = _noted(plan, rounds=plan.config.train.rounds * times, **changes)
    evaluate = noted.config.evaluate.model_copy(update={"every": every})
    return noted._replace(config=noted.config.model_copy(update={"evaluate": evaluate}), settings=settings)


def _in_step(plan: "Plan") -> "Plan":
    """What TDCD is compared with has labels everywhere, waits for everybody, drops none, and sends plain numbers."""
    # Only here: reading a configuration needs no JAX.
    from tdcd.core.variant import Variant  # noqa: PLC0415

    plain, config = Variant(), plan.config
    parts = ("exchange", "client_exchange", "block_exchange", "timing", "knowledge", "dropout")
    variant = replace(plan.variant, **{part: getattr(plain, part) for part in parts})
    if variant == plan.variant:
        return plan
    updates = {
        "federation": config.federation.model_copy(update={"labels": None}),
        "train": config.train.model_copy(update={"overlap": 0, "silo_dropout": 0.0}),
        "exchange": ExchangeSection(),
        "silos": [silo.model_copy(update={"period": 1}) for silo in config.silos],
    }
    return plan._replace(variant=variant, config=config.model_copy(update=updates))


def _noted(plan: "Plan", **changes: Any) -> "Plan":
    """The plan with other keys under ``[train]`` of its configuration."""
    train = plan.config.train.model_copy(update=changes)
    return plan._replace(config=plan.config.model_copy(update={"train": train}))


def _gathered(plan: "Plan") -> "Plan":
    """Each silo's rows with a single client."""
    everything = (np.arange(plan.federation.num_samples),)
    silos = tuple(replace(silo, rows=everything, clients=()) for silo in plan.federation.silos)
    return plan._replace(federation=replace(plan.federation, silos=silos))


def _silo_only(plan: "Plan", name: str) -> "Plan":
    """One silo by itself. A linear model gets the column of ones that one silo of the federation carries."""
    from tdcd.blocks import Linear  # noqa: PLC0415 - it needs JAX, and the names above do not

    names = [silo.name for silo in plan.federation.silos]
    if name not in names:
        raise ValueError(f"there is no silo '{name}'; there are {', '.join(names)}")
    index = names.index(name)
    silo, block = plan.federation.silos[index], plan.blocks[index]
    if plan.config.bias_silo not in (None, index) and isinstance(block, Linear):
        silo = silo.with_ones()
    return plan._replace(federation=replace(plan.federation, silos=(silo,)), blocks=(block,))
