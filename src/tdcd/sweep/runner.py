"""Running many settings: those of the same shapes in batches, the rest one after another.

A run that is finished is not run again, and one that was interrupted goes on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tdcd.config import Config
from tdcd.data import Table, load
from tdcd.federation import Federation
from tdcd.history import Record
from tdcd.objective import Objective
from tdcd.run import Plan, complete_history, finish, plan
from tdcd.sweep.batch import runs_at_once
from tdcd.sweep.lockstep import train_together
from tdcd.train import Progress


class Task(NamedTuple):
    """One run to do."""

    label: str
    config: Config
    folder: Path


class Step(NamedTuple):
    """News from a sweep: what is running, and how far it is."""

    label: str
    running: int
    """How many runs this is about."""
    done: int
    """Runs finished before these."""
    progress: Progress


def run_all(
    tasks: Sequence[Task],
    *,
    observe: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[Record]]:
    """The history of every task, in order. What is missing in its folder is run.

    Raises:
        Interrupted: ``should_stop`` said so; what was done is in the folders.
    """
    histories: dict[Path, list[Record]] = {}
    for group in _groups(tasks):
        pending = []
        for task, planned in _plans(group):
            history = complete_history(planned.config, task.folder)
            if history is None:
                pending.append((task, planned))
            else:
                histories[task.folder] = history
        for some in _batches(pending):
            folders, done = [task.folder for task, _ in some], len(histories)
            label = some[0][0].label + (f" and {len(some) - 1} more" if len(some) > 1 else "")

            def news(progress: Progress, label: str = label, running: int = len(some), done: int = done) -> None:
                observe(Step(label, running, done, progress))

            plans = [planned for _, planned in some]
            if len(some) > 1:
                found = train_together(plans, folders, observe=news, should_stop=should_stop)
            else:
                found = [finish(plans[0], folders[0], observe=news, should_stop=should_stop)]
            histories |= dict(zip(folders, found, strict=True))
    return [histories[task.folder] for task in tasks]


def _batches(pending: Sequence[tuple[Task, Plan]]) -> Iterator[list[tuple[Task, Plan]]]:
    """The runs that go together: those with the same arrays, as many as pay."""
    by_data: dict[int, list[tuple[Task, Plan]]] = {}
    for task, planned in pending:
        by_data.setdefault(id(planned.federation.silos[0].features), []).append((task, planned))
    for alike in by_data.values():
        plan = alike[0][1]
        size = max(1, runs_at_once(plan)) if len(alike) > 1 and _batchable(plan.config) else 1
        yield from (alike[begin : begin + size] for begin in range(0, len(alike), size))


def _groups(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that differ in nothing but seed, step size and l2; groups and tasks in their order."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(_neutral(task.config).model_dump_json(), []).append(task)
    return list(groups.values())


def _neutral(config: Config) -> Config:
    return config.model_copy(
        update={
            "seed": 0,
            "train": config.train.model_copy(update={"step_size": 1.0}),
            "model": config.model.model_copy(update={"l2": 0.0}),
        }
    )


def _batchable(config: Config) -> bool:
    """Whether runs of this kind may be batched at all, whatever their size."""
    blocks = [config.model.block] if isinstance(config.model.block, str) else config.model.block
    return "torch" not in blocks and not config.evaluate.alone


def _plans(group: Sequence[Task]) -> Iterator[tuple[Task, Plan]]:
    """A group's plans; those of one seed share their federation."""
    by_seed: dict[int, Plan] = {}
    for task in group:
        seed = task.config.seed
        if seed not in by_seed:
            new = planned(task.config)
            first = next(iter(by_seed.values()), new)
            by_seed[seed] = new._replace(federation=_sharing(new.federation, first.federation))
        yield task, _tuned(by_seed[seed], task.config)


def _tuned(like: Plan, config: Config) -> Plan:
    """The plan with the step size and l2 of ``config``, which differs in nothing else."""
    train = like.config.train.model_copy(update={"step_size": config.train.step_size})
    model = like.config.model.model_copy(update={"l2": config.model.l2})
    return like._replace(
        config=like.config.model_copy(update={"train": train, "model": model}),
        settings=replace(like.settings, step_size=config.train.step_size),
        objective=Objective(like.objective.loss, config.model.l2),
    )


def planned(config: Config) -> Plan:
    """The plan of a configuration; a source's table is loaded once for all runs that use it."""
    data = config.data
    table = None if data.source == "files" else table_of(data.source, data.folder, data.seed, data.rows)
    return plan(config, table)


@lru_cache(maxsize=1)
def table_of(source: str, folder: str | None, seed: int, rows: int | None) -> Table:
    """:func:`tdcd.load`, with the last table kept."""
    return load(source, folder=folder, seed=seed, rows=rows)


def _sharing(federation: Federation, first: Federation) -> Federation:
    """The federation with the arrays of ``first`` in place of its own, if they are the same."""
    pairs = list(zip(federation.silos, first.silos, strict=True))
    if not all(np.array_equal(silo.features, same.features) for silo, same in pairs):
        return federation
    silos = tuple(replace(s, features=same.features, test_features=same.test_features) for s, same in pairs)
    return replace(federation, silos=silos, labels=first.labels, test_labels=first.test_labels)
