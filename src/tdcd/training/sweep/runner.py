"""Running many settings: those of the same shapes in one compiled program, the rest one after another.

What the plans of a sweep share is in memory once, and every run has a folder of its own.

A run that is finished is not run again, and one that was interrupted continues.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.linear import is_linear
from tdcd.config import Config, resolve
from tdcd.config.resolve import Plan
from tdcd.core.execution import Interrupted
from tdcd.core.settings import AUTO
from tdcd.data import Table, load
from tdcd.federation.placement import Placer
from tdcd.federation.silos import Federation
from tdcd.prediction.predictions import scores_of
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.engines.base import ROUNDS_PER_CALL
from tdcd.simulation.simulate import FITS_WELL
from tdcd.training.recording import TrainingRun
from tdcd.training.run import complete_history, finish
from tdcd.training.train import Progress, Training, ledger_of, simulate


def plan_alike(configs: Sequence[Config], devices: int | None = 1) -> Iterator[Plan]:
    """The plans of configurations that differ in nothing but seed, step size and l2.

    Those of one seed have the same federation, and all of them the same arrays of features and labels.
    """
    by_seed: dict[int, Plan] = {}
    for config in configs:
        step_size, l2 = config.train.step_size, config.model.l2
        if config.seed not in by_seed or step_size == AUTO:
            new = planned(config, devices)
            first = next(iter(by_seed.values()), new)
            by_seed[config.seed] = new._replace(federation=with_arrays_of(new.federation, first.federation))
        own = by_seed[config.seed]
        if isinstance(step_size, str):
            yield own
        else:
            yield tuned(own, step_size, own.objective.l2 if isinstance(l2, str) else l2)


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
    return resolve.plan(config, None if config.data.source == "files" else source_table(config), devices)


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


def _alike(first: NDArray[Any], other: NDArray[Any]) -> bool:
    return first is other or np.array_equal(first, other)


CELLS = 1 << 15
"""Linear blocks are batched in groups if a silo's clients times the rows of a minibatch are no more than this."""
TINY = 1 << 14
"""Other blocks are batched on a CPU if all clients' rows of a minibatch are fewer numbers than this."""
AT_ONCE_ON_CPU, AT_ONCE = 1 << 17, 1 << 28
"""Most cells, or numbers, of all runs of a batch of runs: a CPU's cache holds few, an accelerator's memory many."""


def runs_at_once(plan: Plan) -> int:
    """How many runs like this one go into one batch of runs; at most 1 if it had better run by itself."""
    federation, settings = plan.federation, plan.settings
    rows, cpu = settings.effective_batch_size(federation.num_samples), jax.default_backend() == "cpu"
    if _stays_on_host(plan):
        return 1
    if all(is_linear(block) for block in plan.blocks):
        cells = rows * max(silo.num_clients for silo in federation.silos)
        return (AT_ONCE_ON_CPU if cpu else AT_ONCE) // cells if cells <= CELLS else 1
    numbers = max(
        silo.num_clients * Placer(silo.holders, rows).usual * prod(silo.feature_shape) for silo in federation.silos
    )
    if cpu:
        return AT_ONCE_ON_CPU // numbers if numbers < TINY else 1
    return AT_ONCE // (numbers * federation.num_silos * settings.num_exchanged)


def _stays_on_host(plan: Plan) -> bool:
    """Whether the data is to stay in a file, or outside an accelerator's memory: a batch of runs puts it there."""
    tables = [silo.features for silo in plan.federation.silos]
    if any(isinstance(table, np.memmap) for table in tables):
        return True
    if jax.default_backend() == "cpu" or plan.config.data.keep != "auto":
        return plan.config.data.keep == "host"
    memory = jax.local_devices()[0].memory_stats()["bytes_limit"]
    return bool(sum(table.nbytes for table in tables) > FITS_WELL * memory)


def train_together(
    plans: Sequence[Plan],
    folders: Sequence[Path],
    *,
    observe: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[Record]]:
    """The histories of runs of the same data and settings but for seed, step size and l2.

    They are begun or resumed in their folders; those whose checkpoints are of different rounds, as after a crash,
    continue in batches of their own.
    """
    runs = _attached(plans, folders)
    every = plans[0].config.evaluate.every
    for begin in sorted({run.round for run in runs}):
        alike = [index for index, run in enumerate(runs) if run.round == begin]
        simulation = simulate(*(plans[index] for index in alike), most_rounds=min(every, ROUNDS_PER_CALL))
        training = Training(simulation, [runs[index] for index in alike])
        if training.train(observe, should_stop) == "interrupted":
            raise Interrupted
    for plan, run in zip(plans, runs, strict=True):
        has_held_out = plan.federation.test_labels is not None
        run.conclude(scores_of(plan.federation, plan.models, run.model[0]) if has_held_out else None)
    return [run.history for run in runs]


def _attached(plans: Sequence[Plan], folders: Sequence[Path]) -> list[TrainingRun]:
    """The runs as they stand in their folders."""
    simulation, runs = simulate(*plans), []
    states = simulation.part(simulation.init())
    ledger = ledger_of(simulation, states[0].blocks, plans[0])
    for plan, folder, state in zip(plans, folders, states, strict=True):
        run = TrainingRun(plan, state, ledger, simulation.engine)
        run.attach(folder, resume=RunFolder(folder).is_begun, by="sweep")
        runs.append(run)
    return runs


MOST_WORKERS, BYTES_SIDE_BY_SIDE = 8, 1 << 30
"""Groups that run side by side on a CPU, and bytes of their tables, at most."""


class RunTask(NamedTuple):
    """One run to do."""

    label: str
    config: Config
    folder: Path


Planned = tuple[RunTask, Plan]


class SweepProgress(NamedTuple):
    """News from a sweep: which runs it is about, how far they are, and how far the whole is."""

    label: str
    running: int
    """How many runs, all at the same round."""
    progress: Progress
    done: float
    """Runs done of all, what others have done so far counted in."""


class SweepWatch:
    """The progress of a sweep's runs, collected from their threads, and the request to stop, passed to them."""

    def __init__(self, observe: Callable[[SweepProgress], None], should_stop: Callable[[], bool]) -> None:
        """Pass news on to ``observe``, one at a time, and ask ``should_stop``."""
        self._observe, self._asked = observe, should_stop
        self._lock, self._given_up = threading.Lock(), threading.Event()
        self._done: dict[Path, float] = {}

    def should_stop(self) -> bool:
        """Whether the user asked for the end, or one of the others failed."""
        return self._given_up.is_set() or self._asked()

    def give_up(self) -> None:
        """Ask all runs to stop."""
        self._given_up.set()

    def finished(self, task: RunTask) -> None:
        """Count a task as done."""
        with self._lock:
            self._done[task.folder] = 1.0

    def progress(self, tasks: Sequence[RunTask], news: Progress) -> None:
        """Report how far these tasks are."""
        label = tasks[0].label + (f" and {len(tasks) - 1} more" if len(tasks) > 1 else "")
        with self._lock:
            self._done |= dict.fromkeys((task.folder for task in tasks), news.round / max(news.rounds, 1))
            self._observe(SweepProgress(label, len(tasks), news, sum(self._done.values())))


def run_all(
    tasks: Sequence[RunTask],
    *,
    devices: int | None = 1,
    observe: Callable[[SweepProgress], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[Record]]:
    """The history of every task, in order. What is missing in its folder is run.

    Groups of tasks with the same shapes run side by side on a CPU, whose cores a single one does not fill, and one
    after another on an accelerator.

    Args:
        devices: over which clients are spread; on several, the runs go one after another.

    Raises:
        Interrupted: ``should_stop`` returned True; what was done is in the folders.
    """
    watch, histories = SweepWatch(observe, should_stop), dict[Path, list[Record]]()
    for task in tasks:
        # A baseline's settings are those of its plan: its data has to be there.
        known = complete_history(task.config, task.folder) if task.config.train.algorithm == "tdcd" else None
        if known is not None:
            histories[task.folder] = known
            watch.finished(task)
    left = [task for task in tasks if task.folder not in histories]
    if left:
        groups = [partial(_planned, group, devices) for group in _groups(left)]
        histories |= _run_groups(groups, _workers(left) if devices == 1 else 1, watch)
    return [histories[task.folder] for task in tasks]


def run_planned(
    groups: Sequence[Sequence[Planned]],
    *,
    observe: Callable[[SweepProgress], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[Path, list[Record]]:
    """The same for tasks whose plans are at hand: the histories by folder.

    Args:
        groups: tasks that differ in nothing but seed, step size and l2 are in one.
    """
    tasks, plans = zip(*(task for group in groups for task in group), strict=True)
    workers = _workers(tasks) if all(plan.execution.devices == 1 for plan in plans) else 1
    return _run_groups([partial(iter, group) for group in groups], workers, SweepWatch(observe, should_stop))


def _run_groups(
    groups: Sequence[Callable[[], Iterator[Planned]]], workers: int, watch: SweepWatch
) -> dict[Path, list[Record]]:
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(_run_group, group, watch) for group in groups]
        ended, _ = wait(running, return_when=FIRST_EXCEPTION)
        failed = [future for future in running if future in ended and future.exception() is not None]
        if failed:
            watch.give_up()
            pool.shutdown(cancel_futures=True)
            failed[0].result()
    return {folder: history for future in running for folder, history in future.result().items()}


def _planned(group: Sequence[RunTask], devices: int | None) -> Iterator[Planned]:
    return zip(group, plan_alike([task.config for task in group], devices), strict=True)


def _workers(tasks: Sequence[RunTask]) -> int:
    """How many groups to run side by side: each holds a few copies of the data for a while."""
    sources = {config.data.source: config for _, config, _ in tasks}
    if jax.default_backend() != "cpu" or "files" in sources:
        return 1
    largest = max(source_table(config).features.nbytes for config in sources.values())
    return max(1, min(2 * (os.cpu_count() or 1), MOST_WORKERS, BYTES_SIDE_BY_SIDE // largest))


def _run_group(group: Callable[[], Iterator[Planned]], watch: SweepWatch) -> dict[Path, list[Record]]:
    """The histories of tasks that differ in nothing but seed, step size and l2."""
    histories: dict[Path, list[Record]] = {}
    pending = []
    for task, planned in group():
        history = complete_history(planned.config, task.folder)
        if history is None:
            pending.append((task, planned))
        else:
            histories[task.folder] = history
            watch.finished(task)
    for tasks, plans in _batched_runs(pending):

        def news(progress: Progress, tasks: Sequence[RunTask] = tasks) -> None:
            watch.progress(tasks, progress)

        folders = [task.folder for task in tasks]
        if len(tasks) > 1:
            results = train_together(plans, folders, observe=news, should_stop=watch.should_stop)
        else:
            results = [finish(plans[0], folders[0], observe=news, should_stop=watch.should_stop)]
        histories |= dict(zip(folders, results, strict=True))
    return histories


def _batched_runs(pending: Sequence[Planned]) -> Iterator[tuple[list[RunTask], list[Plan]]]:
    """The runs that go together: those with the same arrays and as many clients, as many as pay."""
    by_data: dict[tuple[int, ...], list[Planned]] = {}
    for task, planned in pending:
        silos = planned.federation.silos
        alike = (id(silos[0].features), *(silo.num_clients for silo in silos))
        by_data.setdefault(alike, []).append((task, planned))
    for some in by_data.values():
        plan = some[0][1]
        size = max(1, runs_at_once(plan)) if len(some) > 1 and _batchable(plan) else 1
        for begin in range(0, len(some), size):
            tasks, plans = zip(*some[begin : begin + size], strict=True)
            yield list(tasks), list(plans)


def _groups(tasks: Sequence[RunTask]) -> list[list[RunTask]]:
    """Tasks that differ in nothing but seed, step size and l2; groups and tasks in their order."""
    groups: dict[str, list[RunTask]] = {}
    for task in tasks:
        groups.setdefault(_neutral(task.config).model_dump_json(), []).append(task)
    return list(groups.values())


def _neutral(config: Config) -> Config:
    return config.model_copy(
        update={
            "seed": 0,
            "train": config.train.model_copy(update={} if config.train.is_automatic else {"step_size": 1.0}),
            "model": config.model.model_copy(update={"l2": 0.0}),
        }
    )


def _batchable(plan: Plan) -> bool:
    """Whether runs of this kind may be batched at all, whatever their size."""
    config = plan.config
    if config.train.engine == "flat":
        return False
    return not config.evaluate.alone and plan.variant.is_batchable and plan.execution.devices == 1
