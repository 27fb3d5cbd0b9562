"""The plans of a sweep's runs, with everything that they share in memory once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config
from tdcd.config.resolve import Plan, plan
from tdcd.data import Table, load
from tdcd.federation.silos import Federation


def plan_alike(configs: Sequence[Config], devices: int | None = 1) -> Iterator[Plan]:
    """The plans of configurations that differ in nothing but seed, step size and l2.

    Those of one seed have the same federation, and all of them the same arrays of features and labels.
    """
    by_seed: dict[int, Plan] = {}
    for config in configs:
        if config.seed not in by_seed:
            new = planned(config, devices)
            first = next(iter(by_seed.values()), new)
            by_seed[config.seed] = new._replace(federation=with_arrays_of(new.federation, first.federation))
        yield tuned(by_seed[config.seed], config.train.step_size, config.model.l2)


def tuned(like: Plan, step_size: float, l2: float) -> Plan:
    """The plan with another step size and l2."""
    train = like.config.train.model_copy(update={"step_size": step_size})
    model = like.config.model.model_copy(update={"l2": l2})
    return like._replace(
        config=like.config.model_copy(update={"train": train, "model": model}),
        settings=replace(like.settings, step_size=step_size),
        objective=replace(like.objective, l2=l2),
    )


def planned(config: Config, devices: int | None = 1) -> Plan:
    """The plan of a configuration."""
    return plan(config, None if config.data.source == "files" else source_table(config), devices)


def source_table(config: Config) -> Table:
    """The table of a configuration's source; the last one is kept, for the runs that follow."""
    return _load(config.data.source, config.data.folder, config.data.seed, config.data.rows)


@lru_cache(maxsize=1)
def _load(source: str, folder: str | None, seed: int, rows: int | None) -> Table:
    return load(source, folder=folder, seed=seed, rows=rows)


def with_arrays_of(federation: Federation, first: Federation) -> Federation:
    """The federation with the arrays of ``first`` in place of its own, if they are the same."""
    pairs = list(zip(federation.silos, first.silos, strict=True))
    if not all(_alike(silo.features, same.features) for silo, same in pairs):
        return federation
    silos = tuple(replace(s, features=same.features, test_features=same.test_features) for s, same in pairs)
    return replace(federation, silos=silos, labels=first.labels, test_labels=first.test_labels)


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one is other or np.array_equal(one, other)
