"""Running many settings: those of the same shapes in batches, the rest one after another.

A run that is finished is not run again, and one that was interrupted continues.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from tdcd.config import Config
from tdcd.config.resolve import Plan
from tdcd.records.history import Record
from tdcd.training.run import complete_history, finish
from tdcd.training.sweep.batch import runs_at_once, train_together
from tdcd.training.sweep.plans import plan_alike, source_table
from tdcd.training.train import Progress

MOST_WORKERS, BYTES_SIDE_BY_SIDE = 8, 1 << 30
"""Groups that run side by side on a CPU, and bytes of their tables, at most."""


class Task(NamedTuple):
    """One run to do."""

    label: str
    config: Config
    folder: Path


Planned = tuple[Task, Plan]


class SweepProgress(NamedTuple):
    """News from a sweep: which runs it is about, how far they are, and how far the whole is."""

    label: str
    running: int
    """How many runs, all at the same round."""
    progress: Progress
    done: float
    """Runs done of all, what others have done so far counted in."""


class Watch:
    """What the runs of a sweep tell and ask while several are under way."""

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

    def finished(self, task: Task) -> None:
        """Count a task as done."""
        with self._lock:
            self._done[task.folder] = 1.0

    def progress(self, tasks: Sequence[Task], news: Progress) -> None:
        """Tell how far these tasks are."""
        label = tasks[0].label + (f" and {len(tasks) - 1} more" if len(tasks) > 1 else "")
        with self._lock:
            self._done |= dict.fromkeys((task.folder for task in tasks), news.round / max(news.rounds, 1))
            self._observe(SweepProgress(label, len(tasks), news, sum(self._done.values())))


def run_all(
    tasks: Sequence[Task],
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
        Interrupted: ``should_stop`` said so; what was done is in the folders.
    """
    watch, histories = Watch(observe, should_stop), dict[Path, list[Record]]()
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
    tasks, plans = zip(*(one for group in groups for one in group), strict=True)
    workers = _workers(tasks) if all(plan.execution.devices == 1 for plan in plans) else 1
    return _run_groups([partial(iter, group) for group in groups], workers, Watch(observe, should_stop))


def _run_groups(
    groups: Sequence[Callable[[], Iterator[Planned]]], workers: int, watch: Watch
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


def _planned(group: Sequence[Task], devices: int | None) -> Iterator[Planned]:
    return zip(group, plan_alike([task.config for task in group], devices), strict=True)


def _workers(tasks: Sequence[Task]) -> int:
    """How many groups to run side by side: each holds a few copies of the data for a while."""
    sources = {config.data.source: config for _, config, _ in tasks}
    if jax.default_backend() != "cpu" or "files" in sources:
        return 1
    largest = max(source_table(config).features.nbytes for config in sources.values())
    return max(1, min(2 * (os.cpu_count() or 1), MOST_WORKERS, BYTES_SIDE_BY_SIDE // largest))


def _run_group(group: Callable[[], Iterator[Planned]], watch: Watch) -> dict[Path, list[Record]]:
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

        def news(progress: Progress, tasks: Sequence[Task] = tasks) -> None:
            watch.progress(tasks, progress)

        folders = [task.folder for task in tasks]
        if len(tasks) > 1:
            found = train_together(plans, folders, observe=news, should_stop=watch.should_stop)
        else:
            found = [finish(plans[0], folders[0], observe=news, should_stop=watch.should_stop)]
        histories |= dict(zip(folders, found, strict=True))
    return histories


def _batched_runs(pending: Sequence[Planned]) -> Iterator[tuple[list[Task], list[Plan]]]:
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


def _batchable(plan: Plan) -> bool:
    """Whether runs of this kind may be batched at all, whatever their size."""
    config = plan.config
    if "torch" in config.block_names or config.train.engine == "flat":
        return False
    return (
        not config.evaluate.alone
        and not plan.variant.is_private
        and plan.variant.carried is None
        and plan.execution.devices == 1
    )
